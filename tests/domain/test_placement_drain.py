"""What a drain makes of each unit on a node, and which of them healing replaces."""

from __future__ import annotations

from dataclasses import replace

from fleets.domain.drain import DrainHow, plan_moves
from fleets.domain.placement import place_units
from fleets.domain.standing import StandingUnit
from fleets.domain.types import FleetView, UnitSpec
from releases.domain.rollout_leave import give_up_leaving
from releases.domain.rollout_room import Fleets, take
from tests.domain.rollout_world import NEW, OLD, Unit
from tests.domain.rollout_world import fleet as three_nodes
from tests.domain.test_placement import fleet, unit

SMALL = unit((1, 4), (1, 4))


def stand(spec: UnitSpec, view: FleetView, count: int) -> tuple[list[StandingUnit], FleetView]:
    """Units where placement puts them, and the fleet with them in it."""
    placed = place_units(spec, count, [view])
    assert isinstance(placed, tuple)
    for placement in placed:
        (view,) = take([view], placement)
    return [StandingUnit(f"u{slot}", slot, spec, placement) for slot, placement in enumerate(placed, 1)], view


def test_with_room_another_unit_comes_up_first() -> None:
    (one,), view = stand(SMALL, fleet("f", 2, 2, 4), 1)
    (move,) = plan_moves("f-d01-n01", [one], [view])
    assert (move.how, move.to, move.here) == (DrainHow.ELSEWHERE, "f/d02", ("P1",))
    assert move.sentence == "unit 1 of m/prod comes up in f/d02 first, and ends here then"
    assert plan_moves("f-d02-n01", [one], [view]) == ()


def test_with_room_in_its_own_place_only_it_ends_first() -> None:
    (one,), view = stand(SMALL, fleet("f", 1, 3, 4), 1)
    (move,) = plan_moves("f-d01-n01", [one], [view])
    assert (move.how, move.to) == (DrainHow.AFTER, "f/d01")


def test_without_room_it_stays_and_the_arithmetic_says_why() -> None:
    (one,), view = stand(SMALL, fleet("f", 1, 2, 4), 1)
    (move,) = plan_moves("f-d01-n01", [one], [view])
    assert (move.how, move.to) == (DrainHow.WAITS, "")
    assert "1 prefill x 4 + 1 decode x 4 = 8; the freest of 1 domain has 4, short by 4; 1 node is silent or cordoned" in move.sentence


def test_units_after_one_another_do_not_count_on_the_same_room_and_warm_ones_need_none() -> None:
    two, view = stand(unit((1, 2), (1, 2)), fleet("f", 2, 2, 4), 2)
    view = replace(view, domains=(view.domains[0], replace(view.domains[1], nodes=view.domains[1].nodes[:1])))
    moves = plan_moves("f-d01-n01", two, [view])
    assert [move.how for move in moves] == [DrainHow.ELSEWHERE]
    both = [replace(each, placement=two[0].placement) for each in two]
    assert len({move.to for move in plan_moves("f-d01-n01", both, [view])}) == 2
    assert plan_moves("f-d01-n01", [replace(two[0], warm=True)], [view])[0].how is DrainHow.STOPPED


def test_the_fleets_of_the_stage_are_tried_in_their_order() -> None:
    spec = replace(SMALL, fleets=("f", "g"))
    (one,), view = stand(spec, fleet("f", 1, 2, 4), 1)
    (move,) = plan_moves("f-d01-n01", [one], [fleet("g", 1, 2, 4), view])
    assert (move.how, move.to) == (DrainHow.ELSEWHERE, "g/d01")


# ---- which units healing replaces ----


def _world(domains: int, units: int) -> tuple[list[Unit], Fleets]:
    """Units of 12 GPUs, each in a domain of 12."""
    view = three_nodes(domains)
    placed = place_units(OLD, units, [view])
    assert isinstance(placed, tuple)
    views: Fleets = (view,)
    for placement in placed:
        views = take(views, placement)
    return [Unit(f"u{slot}", slot, OLD, where, ready=True, routable=True) for slot, where in enumerate(placed, 1)], views


def _given_up(units: list[Unit], leaving: set[str], views: Fleets, replicas: int) -> set[str]:
    shown = [replace(unit.view(), leaving="n01 is being drained" if unit.id in leaving else "") for unit in units]
    return {unit.unit for unit in give_up_leaving(shown, stable=OLD, replicas=replicas, fleets=views) if unit.failed}


def test_units_are_given_up_only_as_far_as_they_can_be_replaced() -> None:
    units, views = _world(3, 2)
    assert _given_up(units, set(), views, 2) == set()
    assert _given_up(units, {"u1"}, views, 2) == {"u1"}
    assert len(_given_up(units, {"u1", "u2"}, _without_first_nodes(views), 2)) == 1, "there is room for one"
    full, no_room = _world(2, 2)
    assert _given_up(full, {"u1"}, _without_first_nodes(no_room), 2) == set(), "it goes on serving"


def _without_first_nodes(views: Fleets) -> Fleets:
    """Each domain that is in use loses its first node to a cordon."""
    (view,) = views
    domains = tuple(
        domain if domain.free == domain.size else replace(domain, nodes=(replace(domain.nodes[0], cordoned=True), *domain.nodes[1:]))
        for domain in view.domains
    )
    return (replace(view, domains=domains),)


def test_a_unit_that_has_a_replacement_stays_given_up_though_the_room_is_gone() -> None:
    units, views = _world(2, 2)  # u2 came up for u1, and took the last room
    assert _given_up(units, {"u1"}, _without_first_nodes(views), 1) == {"u1"}


def test_a_warm_unit_of_another_release_needs_no_replacement() -> None:
    units, views = _world(2, 2)
    warm = replace(units[1], spec=NEW)
    assert _given_up([units[0], warm], {"u2"}, _without_first_nodes(views), 1) == {"u2"}
