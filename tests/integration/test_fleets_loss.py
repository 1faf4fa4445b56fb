"""Nodes fall silent: suspect, lost, replaced; and when too many do at once, nothing is touched."""

from __future__ import annotations

from datetime import timedelta

import pytest

from denvweb.core.errors import ConflictError, InvalidError
from fleets.domain.protocol import ReplicaReadiness
from fleets.domain.types import NodeState, Role
from fleets.models import Fleet, GpuClaim, Node, Replica, Unit
from fleets.selectors import fleet_maps, fleet_views, router_table
from fleets.services import fleet_thaw, unit_set_routable, unit_stop
from metrics.selectors import events_view
from tests.integration.fleets_world import RELEASE, STAGE, World, unit_spec

pytestmark = pytest.mark.django_db


def _kinds() -> list[str]:
    return [event.kind for event in events_view(fleet="gb200-use1")]


def test_a_silent_node_is_suspect_then_lost_then_back() -> None:
    world = World(domains=1)
    name = "gb200-use1-d01-n01"
    world.tick(9, silent={name})
    assert Node.objects.get(name=name).state == NodeState.READY
    world.tick(2, silent={name})
    assert Node.objects.get(name=name).state == NodeState.SUSPECT
    world.tick(9, silent={name})
    world.tick(9, silent={name})
    assert Node.objects.get(name=name).state == NodeState.SUSPECT
    world.tick(2, silent={name})
    assert Node.objects.get(name=name).state == NodeState.LOST
    assert fleet_maps()[0].nodes_silent == 1
    world.tick(2)
    assert Node.objects.get(name=name).state == NodeState.READY
    assert [kind for kind in _kinds() if kind.startswith("node.")] == ["node.back", "node.lost", "node.joined"]


def test_replicas_on_suspect_nodes_are_marked_and_on_lost_nodes_leave_the_table() -> None:
    world = World(domains=1, nodes=5)
    unit = world.unit()
    world.settle()
    unit_set_routable(unit=unit, routable=True)
    before = world.route({RELEASE: 10_000})
    lost = Replica.objects.filter(role=Role.PREFILL)[0]
    name = lost.ranks.get().node_id
    world.tick(9, silent={name})
    world.tick(2, silent={name})
    suspect = router_table(stage=STAGE)
    assert {replica.replica for replica in suspect.units[0].replicas if replica.readiness is ReplicaReadiness.SUSPECT} == {lost.id}
    assert suspect.generation > before
    world.tick(9, silent={name})
    world.tick(9, silent={name})
    world.tick(2, silent={name})
    gone = router_table(stage=STAGE)
    assert lost.id not in {replica.replica for replica in gone.units[0].replicas}
    assert gone.generation > suspect.generation
    world.settle(silent={name})
    view = world.view(unit)
    assert view.complete and not view.failed
    assert len(router_table(stage=STAGE).units[0].replicas) == 3
    assert GpuClaim.objects.filter(node_id=name).count() == 4  # it may still run there
    world.settle()
    assert GpuClaim.objects.filter(node_id=name).count() == 0
    assert not Replica.objects.filter(id=lost.id).exists()


def test_without_room_the_unit_fails_with_the_arithmetic_and_heals_when_the_node_is_back() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.settle()
    silent = {"gb200-use1-d01-n04"}
    for _ in range(4):
        world.tick(9, silent=silent)
    world.settle(silent=silent)
    view = world.view(unit)
    assert view.failed and "no room for decode 1" in view.detail and "short by 4" in view.detail
    world.settle()
    world.settle()
    assert world.view(unit).complete and not world.view(unit).failed


def test_when_over_a_third_goes_at_once_nothing_is_touched_and_it_says_so() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.settle()
    silent = {"gb200-use1-d01-n01", "gb200-use1-d01-n02"}
    ids = set(Replica.objects.values_list("id", flat=True))
    for _ in range(8):
        world.tick(9, silent=silent)
    shown = fleet_maps()[0]
    assert "2 of 4 nodes went silent at once" in shown.frozen
    assert {node.state for node in shown.domains[0].nodes} == {NodeState.READY, NodeState.SUSPECT}
    assert set(Replica.objects.values_list("id", flat=True)) == ids
    assert _kinds().count("fleet.frozen") == 1
    world.tick(2)
    assert fleet_maps()[0].frozen == ""
    assert world.view(unit).complete
    assert _kinds()[0] == "fleet.thawed"


def test_after_the_control_plane_was_away_nodes_get_their_time_to_report() -> None:
    world = World(domains=1, nodes=3)
    world.unit(unit_spec(prefill=(4, 1), decode=(4, 1)))
    world.settle()
    everyone = set(world.agents)
    world.tick(300, silent=everyone)  # nobody could report, and nobody looked
    first = next(iter(world.agents))
    for _ in range(3):
        world.tick(9, silent=everyone - {first})
    assert {node.state for node in fleet_maps()[0].domains[0].nodes} == {NodeState.READY, NodeState.SUSPECT}
    for _ in range(2):
        world.tick(9, silent=everyone - {first})
    assert {node.state for node in fleet_maps()[0].domains[0].nodes} == {NodeState.READY, NodeState.LOST}


def test_while_no_node_at_all_is_heard_none_is_given_up() -> None:
    world = World(domains=1, nodes=2)
    for _ in range(10):
        world.tick(9, silent=set(world.agents))
    assert {node.state for node in fleet_maps()[0].domains[0].nodes} == {NodeState.SUSPECT}


def test_a_stopping_unit_on_a_lost_node_is_gone_from_view_but_keeps_its_claims_there() -> None:
    world = World(domains=1)
    unit = world.unit(unit_spec(prefill=(4, 1), decode=(4, 1)))
    world.settle()
    name = "gb200-use1-d01-n01"
    unit_stop(unit=unit)
    for _ in range(4):
        world.tick(9, silent={name}, rounds=2)
    world.settle(silent={name})
    assert world.units() == []
    assert set(GpuClaim.objects.values_list("node_id", flat=True)) == {name}
    world.settle()
    assert not GpuClaim.objects.exists() and not Unit.objects.exists()


def test_a_pass_with_nothing_to_do_changes_nothing() -> None:
    world = World(domains=1)
    world.unit()
    world.route({RELEASE: 10_000})
    world.settle()
    nodes = dict(Node.objects.values_list("name", "generation"))
    table = router_table(stage=STAGE)
    for _ in range(3):
        world.tick()
    assert dict(Node.objects.values_list("name", "generation")) == nodes
    assert router_table(stage=STAGE) == table


def test_a_frozen_fleet_is_thawed_by_somebody_who_knows_that_its_nodes_are_dead() -> None:
    world = World(domains=1, nodes=5)
    unit = world.unit(unit_spec(prefill=(4, 1), decode=(4, 1)))
    world.settle()
    silent = {"gb200-use1-d01-n01", "gb200-use1-d01-n02"}
    with pytest.raises(ConflictError, match="not frozen"):
        fleet_thaw(fleet="gb200-use1", actor="op", via="cli", reason="a rack lost power", now=world.now)
    for _ in range(4):
        world.tick(9, silent=silent)
    assert fleet_maps()[0].frozen
    with pytest.raises(InvalidError, match="how you know"):
        fleet_thaw(fleet="gb200-use1", actor="op", via="cli", reason=" ", now=world.now)
    fleet_thaw(fleet="gb200-use1", actor="op", via="cli", reason="a rack lost power", now=world.now)
    world.settle(silent=silent)
    assert Node.objects.filter(state=NodeState.LOST).count() == 2
    assert world.view(unit).complete and not fleet_maps()[0].frozen
    told = next(event for event in events_view(fleet="gb200-use1") if event.kind == "fleet.thawed")
    assert (told.actor, told.via) == ("op", "cli") and told.sentence.endswith("(a rack lost power)")
    Node.objects.filter(state=NodeState.LOST).update(state=NodeState.SUSPECT)
    Fleet.objects.update(thawed_until=world.now)  # its quarter of an hour is over
    for _ in range(3):
        world.tick(9, silent=silent)
    assert fleet_maps()[0].frozen


def test_while_no_node_of_any_fleet_is_heard_it_is_said_though_none_is_given_up() -> None:
    world = World(domains=1, nodes=2)
    everyone = set(world.agents)
    for seconds in (9, 9, 9, 9):
        world.tick(seconds, silent=everyone)
        assert not fleet_maps()[0].frozen
    world.tick(9, silent=everyone)
    assert "2 of 2 nodes went silent at once" in fleet_maps()[0].frozen
    world.tick(300, silent=everyone)  # and while nobody looked either, nothing new is made of it
    world.tick(2)
    world.tick(2)
    assert not fleet_maps()[0].frozen and {node.state for node in Node.objects.all()} == {NodeState.READY}


def test_a_node_that_comes_and_goes_is_given_nothing_new_for_a_while() -> None:
    world = World(domains=1, nodes=4)
    name = "gb200-use1-d01-n04"
    for losses in (1, 2, 3):
        for _ in range(4):
            world.tick(9, silent={name})
        assert (Node.objects.get(name=name).state, Node.objects.get(name=name).losses) == (NodeState.LOST, losses)
        world.tick(2)
        assert (Node.objects.get(name=name).rests_until is not None) == (losses == 3)
    node = fleet_maps()[0].domains[0].nodes[3]
    assert node.state is NodeState.READY and "came and went 3 times" in node.troubles[0]
    assert fleet_views()[0].domains[0].free == 12
    assert "so it takes nothing new for 5:00 min" in events_view(fleet="gb200-use1")[0].sentence
    Node.objects.filter(name=name).update(rests_until=world.now - timedelta(days=1))
    assert fleet_views()[0].domains[0].free == 16 and not fleet_maps()[0].domains[0].nodes[3].troubles


def test_units_move_off_gpus_that_a_node_came_back_without() -> None:
    world = World(domains=1, nodes=3)
    unit = world.unit(unit_spec(prefill=(4, 1), decode=(4, 1)))
    world.settle()
    name = Replica.objects.get(role=Role.PREFILL).ranks.get().node_id
    Node.objects.filter(name=name).update(gpus=3)
    world.settle()
    assert Replica.objects.get(role=Role.PREFILL, retired=False).ranks.get().node_id != name
    assert world.view(unit).complete
