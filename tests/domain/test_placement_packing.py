"""Many units at once: nothing is given out twice, and hardly a GPU less is put to use than an exact solver manages."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from fleets.domain.packing import place_all
from fleets.domain.types import DomainView, FleetView, PlacementRule, UnitSpec
from tests.domain.packing_world import Instance, random_instance, used_gpus
from tests.domain.test_placement import GB200, H200, fleet, fleets, specs, unit


def exact_gpus(instance: Instance) -> int:
    """The most GPUs that can be put to use, by trying everything."""
    sizes = sorted(instance.sizes, reverse=True)

    @cache
    def best(at: int, free: tuple[int, ...]) -> int:
        if at == len(sizes):
            return 0
        size, found = sizes[at], best(at + 1, free)
        for index, room in enumerate(free):
            if room >= size and room not in free[:index]:
                left = tuple(sorted((*free[:index], room - size, *free[index + 1 :])))
                found = max(found, size + best(at + 1, left))
        return found

    return best(0, tuple(sorted(instance.free)))


def test_packing_is_within_two_percent_of_the_exact_best() -> None:
    rng = random.Random(2)
    instances = [random_instance(rng) for _ in range(150)]
    ratios = [used_gpus(instance) / most for instance in instances if (most := exact_gpus(instance))]
    assert max(ratios) == 1.0, "none beats the exact one"
    assert sum(ratios) / len(ratios) >= 0.99
    assert min(ratios) >= 0.9


def test_where_the_largest_first_would_waste_the_most_domains_are_filled_instead() -> None:
    assert used_gpus(Instance((8,), (5, 4, 4))) == 8
    assert used_gpus(Instance((12, 8), (9, 8, 6, 6))) == 20


def test_each_unit_goes_to_the_fleets_of_its_stage_only() -> None:
    small = unit((1, 4), (1, 4))
    wanted = [replace(small, fleets=("h200-use1",))] * 5 + [replace(small, fleets=("gb200-use1", "h200-use1"))]
    placed = place_all(wanted, [GB200, H200])
    assert [where.fleet if where else None for where in placed] == ["h200-use1"] * 4 + [None, "gb200-use1"]


def test_what_is_freed_and_taken_is_counted() -> None:
    view = fleet("f", 1, 2, 4)
    (first,) = place_all([unit((1, 4), (1, 4))], [view])
    assert first is not None
    assert place_all([unit((1, 4), (1, 4))], [view], taken=[first]) == (None,)
    assert place_all([unit((1, 4), (1, 4))], [view], taken=[first], freed=[first]) == (None,), "what is taken stays so"


@given(st.lists(fleets(), min_size=1, max_size=2), st.lists(specs(), max_size=8))
def test_what_is_placed_is_free_whole_and_given_out_once(views: list[FleetView], wanted: list[UnitSpec]) -> None:
    views = [replace(view, name=f"f{number}", domains=_renamed(view, number)) for number, view in enumerate(views)]
    placed = place_all(wanted, views)
    assert placed == place_all(wanted, views)
    nodes = {node.name: node for view in views for domain in view.domains for node in domain.nodes}
    domain_of = {node.name: domain.name for view in views for domain in view.domains for node in domain.nodes}
    used: Counter[tuple[str, int]] = Counter()
    for spec, where in zip(wanted, placed, strict=True):
        if where is None:
            continue
        ranks = [rank for replica in where.replicas for rank in replica.ranks]
        used.update((rank.node, gpu) for rank in ranks for gpu in rank.gpus)
        assert sum(len(rank.gpus) for rank in ranks) == spec.gpus
        if spec.placement is PlacementRule.SAME_DOMAIN:
            assert {domain_of[rank.node] for rank in ranks} == {where.domain}
    assert all(times == 1 for times in used.values())
    assert all(gpu in nodes[node].free for node, gpu in used)


def _renamed(view: FleetView, number: int) -> tuple[DomainView, ...]:
    return tuple(
        replace(domain, name=f"{number}{domain.name}", nodes=tuple(replace(node, name=f"{number}{node.name}") for node in domain.nodes))
        for domain in view.domains
    )
