"""GPUs break under what runs: the replica is replaced in its unit's place, or the unit says that it has to move, and serves on."""

from __future__ import annotations

import pytest

from fleets.domain.protocol import GpuReport
from fleets.domain.types import NodeState, RankState, Role
from fleets.models import Node, Replica
from fleets.selectors import fleet_maps
from metrics.selectors import events_view
from tests.integration.fleets_world import World

pytestmark = pytest.mark.django_db
XID = "Xid 79 (fell off the bus)"


def _break(world: World, node: str, *broken: int, unsure: bool = False, detail: str = XID) -> None:
    gpus = tuple(GpuReport(index, healthy=index not in broken, detail=detail * (index in broken), unsure=unsure) for index in range(4))
    world.agents[node].gpus = gpus


def _prefill(world: World) -> Replica:
    return Replica.objects.filter(role=Role.PREFILL, retired=False).order_by("ordinal")[0]


def _sentences(kind: str) -> list[str]:
    return [event.sentence for event in events_view(fleet="gb200-use1") if event.kind == kind]


def test_a_replica_on_a_broken_gpu_is_replaced_beside_it_and_everybody_says_why() -> None:
    world = World(domains=1, nodes=5)
    unit = world.unit()
    world.settle()
    sick = _prefill(world)
    node = sick.ranks.get().node_id
    _break(world, node, 2)
    world.settle()
    view = world.view(unit)
    assert view.complete and not view.leaving
    assert not Replica.objects.filter(id=sick.id).exists()
    used = {(rank.node, gpu) for pool in view.pools for replica in pool.replicas for rank in replica.ranks for gpu in rank.gpus}
    assert (node, 2) not in used
    shown = next(each for domain in fleet_maps()[0].domains for each in domain.nodes if each.node == node)
    assert shown.troubles == (f"GPU 2 is broken: {XID}",)
    assert _sentences("node.gpus") == [f"node {node}: GPU 2 is broken: {XID}"]
    assert f"prefill 1: GPU 2 of {node} is broken: {XID}; it is replaced" in _sentences("replica.replaced")[0]
    _break(world, node)
    world.tick()
    assert _sentences("node.gpus")[0] == f"node {node}: GPU 2 may be used again"


def test_without_room_the_unit_serves_on_and_says_that_it_has_to_move() -> None:
    world = World(domains=1, nodes=4)  # the unit fills its domain
    unit = world.unit()
    world.settle()
    node = _prefill(world).ranks.get().node_id
    _break(world, node, 0)
    world.settle()
    view = world.view(unit)
    assert view.complete and not view.failed
    assert view.leaving.startswith(f"prefill 1: GPU 0 of {node} is broken: {XID}; no room for another in gb200-use1/d01: 1 prefill x 4 = 4")
    assert "1 GPU is broken" in view.leaving
    _break(world, node)
    world.settle()
    assert world.view(unit).leaving == ""
    assert _sentences("unit.leaving")[0].endswith("is broken: Xid 79 (fell off the bus) no more)")


def test_a_driver_that_is_silent_or_many_that_break_at_once_replace_nothing() -> None:
    world = World(domains=1, nodes=6)
    unit = world.unit()
    world.settle()
    before = {replica.id for replica in Replica.objects.all()}
    node = _prefill(world).ranks.get().node_id
    _break(world, node, 0, 1, 2, 3, unsure=True, detail="the GPU driver has not answered for 61 s")
    world.settle()
    assert {replica.id for replica in Replica.objects.all()} == before
    assert [view.free for view in fleet_maps()[0].domains] == [8]  # nothing new goes there, and what serves is left alone
    for name in world.agents:
        _break(world, name, 0)
    world.settle()
    assert {replica.id for replica in Replica.objects.all()} == before
    assert world.view(unit).leaving == ""


def test_an_agent_that_has_not_looked_yet_takes_nothing_back() -> None:
    world = World(domains=1, nodes=1)
    node = "gb200-use1-d01-n01"
    _break(world, node, 1)
    world.tick()
    world.agents[node].gpus = ()
    world.tick()
    assert [cell.state for cell in fleet_maps()[0].domains[0].nodes[0].cells] == ["free", "broken", "free", "free"]
    assert Node.objects.get().state == NodeState.READY


def test_a_replica_that_died_of_its_gpu_goes_to_another() -> None:
    world = World(domains=1, nodes=5)
    unit = world.unit()
    world.settle()
    rank = _prefill(world).ranks.get()
    _break(world, rank.node_id, 0)
    agent = world.agents[rank.node_id]
    world.sync()
    for known in agent.snapshot.ranks:
        if known.rank_id == rank.id:
            agent.states[rank.id] = _dead(rank.id)
    world.sync()
    agent.states.clear()
    world.settle()
    assert world.view(unit).complete
    assert not any(0 in other.gpus for other in Node.objects.get(name=rank.node_id).ranks.all())


def _dead(rank_id: str):  # type: ignore[no-untyped-def]  # a report
    from fleets.domain.protocol import RankReport

    return RankReport(rank_id, RankState.BACKOFF, detail="ended with code 1")
