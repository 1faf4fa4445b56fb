"""Small random packing problems, and the most GPUs that placement puts to use in them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from fleets.domain.packing import place_all
from fleets.domain.types import DomainView, FleetView, NodeView, UnitSpec
from tests.domain.test_placement import unit


@dataclass(frozen=True, slots=True)
class Instance:
    """Free GPUs of each domain, and the sizes of the units that want them."""

    free: tuple[int, ...]
    sizes: tuple[int, ...]


def unit_of(prefill: tuple[int, int], decode: tuple[int, int]) -> UnitSpec:
    """(replicas, GPUs) of the two pools."""
    return unit(prefill, decode)


def random_instance(rng: random.Random, *, most_units: int = 9) -> Instance:
    """Two to four domains, partly in use, and about as much wanted as is free: of NVL72s, or of nodes of 8."""
    wide = rng.random() < 0.5
    free = tuple(4 * rng.randint(3, 18) if wide else rng.randint(2, 8) for _ in range(rng.randint(2, 4)))
    sizes: list[int] = []
    while sum(sizes) < sum(free) * rng.uniform(0.8, 1.3) and len(sizes) < most_units:
        wanted = rng.choice([1, 2, 3]) * rng.choice([4, 8]) + rng.choice([1, 2]) * rng.choice([4, 8, 16, 32])
        sizes.append(wanted if wide else rng.choice([2, 3, 4, 5, 6, 8]))
    return Instance(free, tuple(sizes))


def used_gpus(instance: Instance) -> int:
    """GPUs that `place_all` puts to use."""
    domains = tuple(
        DomainView(f"f/d{number}", (NodeView(f"f-d{number}-n1", free, tuple(range(free))),)) for number, free in enumerate(instance.free)
    )
    specs = [unit_of((1, 1), (1, size - 1)) for size in instance.sizes]
    placed = place_all(specs, [FleetView("f", "GB200", domains)])
    return sum(spec.gpus for spec, where in zip(specs, placed, strict=True) if where is not None)
