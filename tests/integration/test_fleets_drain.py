"""A node is drained: its units are replaced elsewhere without a gap, it keeps its name, and it comes back."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleets.selectors import drain_plan, fleet_maps, node_standing
from fleets.services import node_cordon, node_drain
from metrics.selectors import events_view
from tests.integration.rollouts_world import Demo

pytestmark = pytest.mark.django_db


def _nodes(demo: Demo) -> list[str]:
    return sorted({rank.node for unit in demo.units() for pool in unit.pools for replica in pool.replicas for rank in replica.ranks})


def _fleet_events() -> list[str]:
    return [event.kind for event in reversed(events_view(fleet="gb200-use1", limit=500)) if event.kind.startswith("node.")]


def test_units_move_off_a_drained_node_and_traffic_never_lacks_one() -> None:
    demo = Demo()
    demo.first()
    node = "gb200-use1-d01-n01"
    assert [(move.slot, move.how, move.to) for move in drain_plan(node=node).moves] == [(1, "elsewhere", "gb200-use1/d03")]
    node_drain(node=node, actor="op", via="cli", reason="fan")
    least = 2
    for _ in range(12):
        demo.tick()
        least = min(least, sum(unit.ready and unit.routable for unit in demo.units()))
    assert least == 2, "the new unit serves before the old one goes"
    assert _nodes(demo) == ["gb200-use1-d02-n01", "gb200-use1-d03-n01"]
    assert demo.weights() == {"ds-flash@1": 10_000}
    assert drain_plan(node=node).done
    assert _fleet_events()[-2:] == ["node.draining", "node.drained"]
    node_cordon(node=node, cordoned=False, actor="op", via="cli")
    standing = node_standing(node=node)
    assert (standing.cordoned, standing.draining, standing.reason, standing.used) == (False, False, "", 0)
    demo.settle()
    assert _nodes(demo) == ["gb200-use1-d02-n01", "gb200-use1-d03-n01"], "nothing moves back by itself"


def test_without_room_a_drain_waits_and_the_unit_goes_on_serving_until_there_is_some() -> None:
    demo = Demo(domains=2)
    demo.first()
    node = "gb200-use1-d01-n01"
    node_drain(node=node, actor="op", via="cli")
    before = {unit.unit for unit in demo.units()}
    for _ in range(6):
        demo.tick()
    assert {unit.unit for unit in demo.units()} == before and all(unit.routable for unit in demo.units())
    (move,) = drain_plan(node=node).moves
    assert move.how == "waits" and "short by 8" in move.sentence
    (leaving,) = [unit for unit in demo.units() if unit.leaving]
    assert leaving.detail == f"{node} is being drained"
    node_cordon(node=node, cordoned=False, actor="op", via="cli")
    demo.settle()
    assert {unit.unit for unit in demo.units()} == before


def test_a_drain_in_a_rollout_waits_for_its_end_and_sends_nothing_back() -> None:
    demo = Demo(domains=4)
    demo.first()
    demo.release(block=32)
    demo.settle()
    canary = next(unit for unit in demo.units(2))
    node = canary.pools[0].replicas[0].ranks[0].node
    node_drain(node=node, actor="op", via="cli")
    row = demo.through(until={"SUCCEEDED", "ROLLED_BACK", "succeeded", "rolled-back"})
    assert row.to_release.number == 2 and demo.stage().release == row.to_release, row.why
    demo.settle(most=60)
    assert node not in _nodes(demo) and len(demo.units(2)) == 2


def test_drain_over_rest(client: Client) -> None:
    demo = Demo()
    demo.first()
    client.force_login(User.objects.create_user("op"))
    path = "/api/v1/nodes/gb200-use1-d01-n01"
    plan = client.get(f"{path}/drain-plan").json()
    assert (plan["cordoned"], plan["draining"], [move["here"] for move in plan["moves"]]) == (False, False, [["P1", "D1"]])
    assert client.post(f"{path}/drain", {"reason": "fan"}, content_type="application/json").json()["draining"] is True
    shown = fleet_maps()[0].domains[0].nodes[0]
    assert (shown.cordoned, shown.draining, shown.cordon_reason) == (True, True, "fan")
    assert client.get("/api/v1/nodes/nowhere/drain-plan").status_code == 404
