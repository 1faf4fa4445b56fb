"""Why units are where they are, and which moves would open a domain."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleets.domain.defrag import advise
from fleets.domain.explain import explain
from fleets.domain.placement import place_unit
from fleets.domain.standing import StandingUnit
from fleets.domain.types import FleetView, UnitPlacement, UnitSpec
from releases.domain.rollout_room import take
from tests.domain.test_placement import GB200, H200, fleet, heavy, unit, with_free

SMALL = replace(unit((1, 4), (1, 4)), fleets=("f",))


def stand(view: FleetView, *places: tuple[UnitSpec, str]) -> tuple[list[StandingUnit], FleetView]:
    """Units in the named domains, and the fleet with them in it."""
    units = []
    for slot, (spec, name) in enumerate(places, 1):
        only = replace(view, domains=tuple(domain for domain in view.domains if domain.name == name))
        where = place_unit(spec, [only])
        assert isinstance(where, UnitPlacement)
        (view,) = take([view], where)
        units.append(StandingUnit(f"u{slot}", slot, spec, where))
    return units, view


def test_each_unit_says_why_it_is_there_and_each_fleet_what_it_would_do() -> None:
    big = replace(unit((2, 4), (1, 64)), fleets=("gb200-use1", "h200-use1"))
    units, view = stand(GB200, (big, "gb200-use1/d01"), (big, "gb200-use1/d02"))
    found = explain("m/prod", units, [H200, view, fleet("other", 1, 1, 4)])
    assert (found.shape, found.arithmetic) == ("2P1D", "2 prefill x 4 + 1 decode x 64 = 72")
    assert [one.where for one in found.units] == ["gb200-use1/d01", "gb200-use1/d02"]
    assert found.units[0].why == "the tightest of 2 domains that take it (72 GPUs free without it)"
    assert [(one.fleet, one.preference, one.to) for one in found.fleets] == [
        ("gb200-use1", 1, "gb200-use1/d03"),
        ("h200-use1", 2, ""),
        ("other", 0, ""),
    ]
    gb200, h200, _ = found.fleets
    assert (gb200.free, gb200.gpus, gb200.domains_that_take_it, gb200.largest_free) == (72, 216, 1, 72)
    assert h200.sentence == "fleet h200-use1 domain is 8 GPUs; serving unit needs 72 (same-domain)"
    assert h200.arithmetic.endswith("short by 64") and h200.fits
    assert h200.memory[0].startswith("prefill x 4 on H200: ")


def test_the_better_fleet_and_the_tighter_hole_are_named() -> None:
    spec = replace(SMALL, fleets=("g", "f"))
    units, view = stand(fleet("f", 2, 4, 4), (spec, "f/d01"))
    tight = with_free(view, {"f-d02-n01": (), "f-d02-n02": ()})
    (one,) = explain("m/prod", units, [fleet("g", 1, 1, 4), tight]).units
    better, tighter = one.why.split("; 16 ")
    assert better == "fleet g domain is 4 GPUs; serving unit needs 8 (same-domain)"
    assert tighter == "GPUs are free there without it; f/d02 is tighter by now (8 free)"
    (one,) = explain("m/prod", units, [fleet("g", 1, 2, 4), view]).units
    assert one.why.startswith("g comes first and has room by now; ")
    cordoned = replace(view, domains=(replace(view.domains[0], nodes=view.domains[0].nodes[:1]), view.domains[1]))
    (one,) = explain("m/prod", units, [cordoned]).units
    assert "would not fit there again" in one.why


def test_a_fleet_whose_memory_is_too_small_takes_nothing() -> None:
    units, view = stand(fleet("f", 1, 8, 4), (heavy(SMALL, 2e12), "f/d01"))
    found = explain("m/prod", units, [view]).fleets[0]
    assert (found.to, found.sentence) == ("", "fleet f has the GPUs, but their memory does not hold it")
    assert "so it needs at least" in found.memory[1]


def test_a_domain_is_opened_by_moving_its_units_into_holes_of_others() -> None:
    units, view = stand(fleet("f", 3, 6, 4), (SMALL, "f/d01"), (unit((2, 4), (2, 4)), "f/d02"))
    advice = advise(view, units)
    assert (advice.empty, [(each.domain, each.gpus, each.moved_gpus) for each in advice.openings]) == (1, [("f/d01", 24, 8)])
    (move,) = advice.openings[0].moves
    assert (move.slot, move.to) == (1, "f/d02")
    assert advice.sentence == "1 of 3 domains of f is empty; 1 move would open 1 more"


def test_without_a_hole_for_all_its_units_a_domain_stays() -> None:
    units, view = stand(fleet("f", 2, 4, 4), (unit((2, 4), (1, 4)), "f/d01"), (unit((2, 4), (1, 4)), "f/d02"))
    advice = advise(view, units)
    assert (advice.openings, advice.sentence) == ((), "0 of 2 domains of f are empty; no move would open another")


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4])), max_size=12), st.lists(st.integers(1, 6), max_size=12))
def test_advice_can_be_followed(shapes: list[tuple[int, int]], homes: list[int]) -> None:
    view, units = fleet("f", 6, 4, 4), []
    for slot, ((count, gpus), home) in enumerate(zip(shapes, homes, strict=False), 1):
        spec = unit((count, gpus), (1, gpus))
        only = replace(view, domains=(view.domains[home - 1],))
        where = place_unit(spec, [only])
        if isinstance(where, UnitPlacement):
            (view,) = take([view], where)
            units.append(StandingUnit(f"u{slot}", slot, spec, where))
    advice = advise(view, units)
    at = {each.unit: each.placement.domain for each in units}
    sizes = {each.unit: each.spec.gpus for each in units}
    for opening in advice.openings:
        at |= {move.unit: move.to for move in opening.moves}
        assert opening.domain not in at.values(), "it is empty then"
    assert advice.empty + len(advice.openings) == 6 - len(set(at.values()))
    for domain in view.domains:
        assert sum(sizes[name] for name, where in at.items() if where == domain.name) <= domain.size
