"""`make bench-placement`: how long a plan of a large fleet takes, and how tightly it packs. Prints a table, then one JSON object."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ortools.sat.python import cp_model

from fleets.domain.packing import place_all
from fleets.domain.types import DomainView, FleetView, UnitPlacement, UnitSpec
from releases.catalog import catalog
from releases.domain.dry_run import World, check_stage
from tests.domain.packing_world import Instance, random_instance, unit_of, used_gpus
from tests.domain.releases_world import DS_FLASH, file_of
from tests.domain.releases_world import fleet as fleet_of

_STAGES = 500
_INSTANCES = 200
_SHAPES = [((1, 4), (1, 4)), ((2, 2), (1, 4)), ((1, 8), (1, 16)), ((2, 4), (1, 16)), ((2, 4), (1, 32)), ((2, 4), (1, 64)), ((4, 4), (7, 8))]
_SMALL = [((1, 4), (1, 4)), ((1, 2), (1, 4)), ((1, 2), (1, 2)), ((1, 1), (1, 1))]


def stages(rng: random.Random) -> list[UnitSpec]:
    """Units of 500 stages, four in five of them on the large domains; together they ask for about nine GPUs in ten."""
    specs = []
    for number in range(_STAGES):
        large = number % 5 != 0
        prefill, decode = rng.choice(_SHAPES if large else _SMALL)
        spec = replace(unit_of(prefill, decode), stage=f"m{number}/prod", fleets=("nvl",) if large else ("hgx",))
        share = 100_008 * 0.9 / (_STAGES * 0.8) if large else 16_000 * 0.9 / (_STAGES * 0.2)
        specs += [spec] * max(1, round(share / spec.gpus))
    return specs


def best_s(run: Callable[[], object], times: int = 3) -> float:
    """The best of some runs, in seconds of this process's own time: the machine may have other work."""
    spent = []
    for _ in range(times):
        began_s = time.process_time()
        run()
        spent.append(time.process_time() - began_s)
    return min(spent)


def in_use(fleet: FleetView, placed: Sequence[UnitPlacement | None]) -> FleetView:
    """The fleet with the GPUs of these placements held."""
    held: dict[str, set[int]] = {}
    for rank in (rank for where in placed if where for replica in where.replicas for rank in replica.ranks):
        held.setdefault(rank.node, set()).update(rank.gpus)
    domains = []
    for domain in fleet.domains:
        nodes = [replace(node, free=tuple(gpu for gpu in node.free if gpu not in held.get(node.name, ()))) for node in domain.nodes]
        domains.append(DomainView(domain.name, tuple(nodes)))
    return replace(fleet, domains=tuple(domains))


def dry_run_ms(text: str, world: World, *, planned: bool) -> float:
    """The file's only stage checked against the fleets: what the server computes once it has read them."""
    file = file_of(text)
    assert (check_stage(file, file.stages[0], 1, world).plan is not None) == planned
    return best_s(lambda: check_stage(file, file.stages[0], 1, world), 10) * 1000


def exact_gpus(instance: Instance) -> int:
    """The most GPUs that can be put to use: a multiple knapsack, solved to the end."""
    model = cp_model.CpModel()
    inside = [[model.new_bool_var(f"{i}-{d}") for d in range(len(instance.free))] for i in range(len(instance.sizes))]
    for each in inside:
        model.add_at_most_one(each)
    for domain, free in enumerate(instance.free):
        model.add(sum(size * inside[i][domain] for i, size in enumerate(instance.sizes)) <= free)
    model.maximize(sum(size * var for size, each in zip(instance.sizes, inside, strict=True) for var in each))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return int(solver.objective_value + 0.5)


def packing_ratios(rng: random.Random) -> Sequence[float]:
    """GPUs put to use over the most that could be, for each random instance."""
    instances = [random_instance(rng) for _ in range(_INSTANCES)]
    return [used_gpus(instance) / most for instance in instances if (most := exact_gpus(instance))]


def main() -> None:
    """Full plan, dry run, packing."""
    rng = random.Random(72)
    fleets = (fleet_of("nvl", "GB200", 1389, 18, 4), replace(fleet_of("hgx", "H200", 2000, 1, 8), fabric_spans_nodes=False))
    specs = stages(rng)
    placed = place_all(specs, fleets)
    missed = sum(where is None for where in placed)
    plan_s = best_s(lambda: place_all(specs, fleets))
    world = World(catalog(), tuple(in_use(fleet, placed) for fleet in fleets))
    fits, refused = DS_FLASH.replace("gb200-use1", "nvl"), DS_FLASH.replace("gb200-use1", "hgx")
    fits_ms, refused_ms = dry_run_ms(fits, world, planned=True), dry_run_ms(refused, world, planned=False)
    ratios = packing_ratios(rng)
    gpus = sum(domain.size for fleet in fleets for domain in fleet.domains)
    print(f"{gpus:,} GPUs in 1,389 domains of 72 and 2,000 of 8; {_STAGES} stages, {len(specs):,} serving units, {missed} without room")
    print(f"full plan             {plan_s:8.3f} s    of one core")
    print(f"one dry run           {fits_ms:8.1f} ms   of one core, beside all those units")
    print(f"one that is refused   {refused_ms:8.1f} ms   of one core, with the nearest shapes that fit")
    print(f"packing over exact    {sum(ratios) / len(ratios):8.4f}      mean of {len(ratios)} random instances; worst {min(ratios):.4f}")
    figures = {
        "plan_s": round(plan_s, 3),
        "dry_run_ms": round(max(fits_ms, refused_ms), 1),
        "packing_vs_exact_ratio": round(sum(ratios) / len(ratios), 4),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
