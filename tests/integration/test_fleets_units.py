"""Units: launched as gangs, drained, stopped, changed in place; and no GPU twice."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection

from denvweb.core.errors import ConflictError, NotFoundError
from fleets.domain.protocol import RankReport
from fleets.domain.types import RankDesired, RankState, Role
from fleets.domain.views import ReplicaState
from fleets.models import GpuClaim, Rank, Replica, Unit
from fleets.reconcile import reconcile
from fleets.selectors import fleet_maps, fleet_views, table_generation
from fleets.services import unit_create, unit_drain, unit_retarget, unit_stop
from metrics.selectors import events_view, metrics_view
from tests.integration.fleets_world import STAGE, World, unit_spec

pytestmark = pytest.mark.django_db


def test_a_gang_starts_when_all_its_nodes_have_taken_it_up() -> None:
    world = World(domains=1)
    unit = world.unit()
    decode = Replica.objects.get(unit_id=unit, role=Role.DECODE)
    nodes = list(Rank.objects.filter(replica=decode).values_list("node_id", flat=True))
    assert len(nodes) == 2 and decode.desired == RankDesired.HOLD
    world.agents[nodes[0]].sync(world.now)  # reads the snapshot
    world.agents[nodes[0]].sync(world.now)  # reports its claim
    decode.refresh_from_db()
    assert decode.desired == RankDesired.HOLD
    world.agents[nodes[1]].sync(world.now)
    snapshot = world.agents[nodes[1]].sync(world.now)
    decode.refresh_from_db()
    assert decode.desired == RankDesired.RUN
    spec = next(rank for rank in snapshot.ranks if rank.replica == decode.id)
    leader = Rank.objects.get(replica=decode, index=0)
    assert (spec.count, spec.leader_port, spec.desired) == (2, leader.port, RankDesired.RUN)


def test_a_unit_becomes_ready_and_complete_and_is_drawn_on_the_map() -> None:
    world = World(domains=1)
    unit = world.unit()
    assert not world.view(unit).ready
    world.settle()
    view = world.view(unit)
    assert (view.ready, view.complete, view.probed, view.routable, view.failed) == (True, True, False, False, False)
    assert (view.shape, view.gpus, view.domain) == ("2P1D", 16, "gb200-use1/d01")
    assert [pool.ready for pool in view.pools] == [2, 1]
    assert view.pools[1].replicas[0].gauges["kv_use"] == 0.5
    cells = [cell for node in fleet_maps()[0].domains[0].nodes for cell in node.cells]
    assert [cell.role for cell in cells] == [Role.PREFILL] * 8 + [Role.DECODE] * 8
    assert [cell.index for cell in cells if cell.first] == [0, 0, 0]
    assert fleet_maps()[0].free == 0


def test_what_engines_count_is_kept_of_a_whole_unit_and_gauges_of_those_that_decode() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.settle()
    for more in (0.0, 5.0):
        for place, agent in enumerate(world.agents.values()):
            agent.gauges = {"kv_use": 0.5, "running": 2.0, "preemptions": 10 * place + more}
        world.tick(10.0)
    counted = metrics_view(stage=STAGE, span_s=60, by="unit", now=world.now).total
    assert counted.engines == {"preemptions": 15.0}, "five more of each of three replicas"
    assert (counted.gauges["running"], counted.gauges["kv_use"]) == (2.0, 0.5), unit


def test_ports_of_one_node_are_four_apart() -> None:
    world = World(domains=1, nodes=1, gpus=8)
    world.unit(unit_spec(prefill=(2, 2), decode=(4, 1)))
    base = world.agents["gb200-use1-d01-n01"].facts.port_base
    assert sorted(Rank.objects.values_list("port", flat=True)) == [base, base + 4, base + 8]


def test_a_claimed_gpu_is_refused_with_its_holder() -> None:
    world = World(domains=1)
    spec = unit_spec()
    placement = world.place(spec)
    first = unit_create(spec=spec, placement=placement, slot=1)
    with pytest.raises(ConflictError, match=f"claimed by {first}") as caught:
        unit_create(spec=spec, placement=placement, slot=2)
    assert caught.value.code == "gpu-taken"
    assert world.units() == [first]


@pytest.mark.django_db(transaction=True)
def test_of_two_claims_at_once_one_wins() -> None:
    world = World(domains=1)
    spec, outcomes, gate = unit_spec(), [], threading.Barrier(2)
    placement = world.place(spec)

    def claim(stage: str) -> None:
        gate.wait()
        try:
            outcomes.append(unit_create(spec=replace(spec, stage=stage), placement=placement, slot=1))
        except ConflictError as error:
            outcomes.append(error.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=claim, args=(stage,)) for stage in ("a/prod", "b/prod")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("gpu-taken") == 1
    assert GpuClaim.objects.count() == 16 and Unit.objects.count() == 1


def test_a_stopped_unit_keeps_its_gpus_until_its_agents_say_that_it_ended() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.settle()
    unit_stop(unit=unit)
    assert world.view(unit).stopping
    assert fleet_views()[0].domains[0].free == 0
    for agent in list(world.agents.values())[:2]:
        agent.sync(world.now)
        agent.sync(world.now)
    assert fleet_views()[0].domains[0].free == 8
    world.settle()
    assert fleet_views()[0].domains[0].free == 16
    assert world.units() == [] and not Unit.objects.exists() and not Rank.objects.exists()
    unit_drain(unit=unit)
    unit_stop(unit=unit)  # of one that is gone already: nothing happens
    with pytest.raises(NotFoundError):
        unit_retarget(unit=unit, spec=unit_spec())
    assert all(not agent.snapshot.ranks for agent in world.agents.values())


def test_a_unit_stopped_before_any_agent_saw_it_goes_too() -> None:
    world = World(domains=1)
    unit = world.unit()
    unit_stop(unit=unit)
    for agent in world.agents.values():  # these agents say nothing of ranks that they never started
        agent.sync(world.now)
        agent.snapshot = replace(agent.snapshot, ranks=())
        agent.sync(world.now)
    world.settle()
    assert not Unit.objects.exists() and not GpuClaim.objects.exists()


def test_draining_finishes_and_is_stopped_at_its_deadline() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.settle()
    unit_drain(unit=unit)
    world.tick()
    view = world.view(unit)
    assert view.stopping and not view.routable
    assert {replica.state for pool in view.pools for replica in pool.replicas} == {ReplicaState.DRAINING}
    for _ in range(13):
        world.tick(9.5)
    world.settle()
    assert world.units() == []
    stopped = next(event for event in events_view(stage=STAGE) if event.kind == "unit.stopped")
    assert "has stopped after a drain of" in stopped.sentence


def test_retarget_replaces_only_what_changed_and_on_its_own_gpus() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.settle()
    before = {replica.id for replica in Replica.objects.filter(role=Role.PREFILL)}
    old = Replica.objects.get(role=Role.DECODE)
    spec = unit_spec(release="ds-flash@2")
    spec = replace(spec, pools=(spec.pools[0], replace(spec.pools[1], generation="g2")))
    unit_drain(unit=unit)
    unit_retarget(unit=unit, spec=spec)
    view = world.view(unit)
    assert (view.release, view.complete, view.stopping) == ("ds-flash@2", False, False)
    assert fleet_views()[0].domains[0].free == 0
    world.sync(rounds=2)
    assert fleet_views()[0].domains[0].free == 0  # kept for the unit though nobody uses them
    world.settle()
    view = world.view(unit)
    assert view.complete and not view.failed
    assert {replica.id for replica in Replica.objects.filter(role=Role.PREFILL)} == before
    assert {replica.release for replica in Replica.objects.all()} == {"ds-flash@2"}
    new = Replica.objects.get(role=Role.DECODE)
    assert new.id != old.id and new.generation == "g2"
    assert GpuClaim.objects.count() == 16 and not GpuClaim.objects.filter(rank=None).exists()


def test_retarget_back_before_anything_ended_keeps_a_drained_pool() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.settle()
    ids = set(Replica.objects.values_list("id", flat=True))
    unit_drain(unit=unit)
    world.tick()
    unit_retarget(unit=unit, spec=unit_spec())
    world.settle()
    assert set(Replica.objects.values_list("id", flat=True)) == ids
    assert world.view(unit).complete


def test_a_smaller_pool_gives_its_gpus_back() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.settle()
    unit_retarget(unit=unit, spec=unit_spec(prefill=(4, 1)))
    world.settle()
    assert fleet_views()[0].domains[0].free == 0, "it has requests to finish"
    world.idle()
    world.tick(12.0)
    world.router(seq=1, generation=table_generation(stage=STAGE) or 0)
    world.settle()
    assert fleet_views()[0].domains[0].free == 4
    assert world.view(unit).complete and world.view(unit).shape == "1P1D"


def test_a_replica_that_never_started_fails_its_unit_with_the_reason() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.sync()
    agent = next(iter(world.agents.values()))
    rank = agent.snapshot.ranks[0]
    agent.states[rank.rank_id] = replace(agent._rank(rank), state=RankState.FAILED, detail="CUDA out of memory")
    world.settle()
    view = world.view(unit)
    assert view.failed and "CUDA out of memory" in view.detail and "prefill 1" in view.detail


def test_a_replica_that_served_and_gave_up_is_replaced_in_place() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.settle()
    agent = next(iter(world.agents.values()))
    rank = agent.snapshot.ranks[0]
    agent.states[rank.rank_id] = replace(agent._rank(rank), state=RankState.FAILED, detail="segfault")
    world.tick()
    agent.states[rank.rank_id] = replace(agent._rank(rank), state=RankState.STOPPED)
    world.settle()
    view = world.view(unit)
    assert view.complete and not view.failed
    assert not Replica.objects.filter(id=rank.replica).exists()


def test_a_gang_that_is_not_taken_up_says_on_whom_it_waits() -> None:
    world = World(domains=1)
    unit = world.unit()
    decode = Replica.objects.get(role=Role.DECODE)
    deaf = Rank.objects.filter(replica=decode).values_list("node_id", flat=True)[0]
    for _ in range(7):
        for name, agent in world.agents.items():
            if name == deaf:
                agent.snapshot = replace(agent.snapshot, generation=0, ranks=())
            agent.sync(world.now)
        world.now += timedelta(seconds=9)
        reconcile(world.now)
    assert deaf in world.view(unit).detail and world.view(unit).failed


def test_units_of_two_stages_share_a_domain() -> None:
    world = World(domains=1)
    world.unit(unit_spec(prefill=(2, 1), decode=(4, 1)))
    world.unit(unit_spec(prefill=(2, 1), decode=(4, 1), stage="llama/prod"))
    world.settle()
    assert world.view(world.units()[0]).complete
    assert world.view(world.units(stage="llama/prod")[0], stage="llama/prod").complete
    assert GpuClaim.objects.count() == 12


def test_a_gang_waits_for_the_weights_of_all_its_nodes_and_its_time_to_start_counts_from_then() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.sync()
    decode = Replica.objects.get(role=Role.DECODE)
    slow = decode.ranks.order_by("index").last()
    assert slow is not None
    agent = world.agents[slow.node_id]
    said = "weights 43% (12 GB of 28 GB), about 3 min"
    agent.states[slow.id] = RankReport(slow.id, RankState.FETCHING, detail=said)
    world.settle()
    for _ in range(5):
        world.tick(200)
    view = world.view(unit)
    assert not view.failed
    assert said in view.detail
    assert Replica.objects.get(role=Role.DECODE).desired == RankDesired.HOLD
    agent.states.clear()
    world.settle()
    assert world.view(unit).complete


def test_a_replica_of_one_node_has_its_time_to_start_from_when_its_weights_are_there() -> None:
    world = World(domains=1)
    unit = world.unit()
    world.sync()
    rank = Replica.objects.filter(role=Role.PREFILL)[0].ranks.get()
    agent = world.agents[rank.node_id]
    agent.states[rank.id] = RankReport(rank.id, RankState.FETCHING)
    for _ in range(8):
        world.tick(100)
    assert not world.view(unit).failed
    agent.states[rank.id] = RankReport(rank.id, RankState.STARTING)
    for _ in range(5):
        world.tick(100)
    assert not world.view(unit).failed
    world.tick(200)
    assert "was not ready within 600 s" in world.view(unit).detail
