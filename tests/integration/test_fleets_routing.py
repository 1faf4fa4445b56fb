"""What routers are told and what they tell: tables, generations, reports, probes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from denvweb.core.errors import InvalidError
from fleets.domain.protocol import ProbeResult, ReplicaReadiness, UnitGauge
from fleets.domain.types import RankState, Role
from fleets.models import Router
from fleets.selectors import router_table, routers_view
from fleets.services import unit_drain, unit_request_probe, unit_retarget, unit_set_routable, unit_stop
from metrics.selectors import frame_view
from tests.integration.fleets_world import RELEASE, STAGE, World, unit_spec

pytestmark = pytest.mark.django_db


def _serving() -> tuple[World, str]:
    world = World(domains=1)
    unit = world.unit()
    world.settle()
    unit_set_routable(unit=unit, routable=True)
    world.route({RELEASE: 10_000})
    return world, unit


def test_the_table_lists_ready_replicas_by_their_leaders() -> None:
    world, unit = _serving()
    table = router_table(stage=STAGE)
    assert (table.model, table.weights) == ("ds-flash", {RELEASE: 10_000})
    (route,) = table.units
    assert (route.unit, route.routable, route.probe, route.compat, route.protocol) == (unit, True, False, "compat1", "vllm-nixl")
    assert (route.prefill_release, route.decode_release) == (RELEASE, RELEASE)
    assert [replica.role for replica in route.replicas] == [Role.PREFILL, Role.PREFILL, Role.DECODE]
    assert all(replica.engine_id and replica.port for replica in route.replicas)
    assert world.view(unit).routable


@pytest.mark.parametrize(
    ("told", "lease_s", "groups"), [({"kv-events": "true"}, 30.0, 1), ({"kv-lease-s": "8", "kv-events": "true"}, 8.0, 4)]
)
def test_routers_know_how_long_prefill_keeps_kv_how_much_it_computes_at_a_time_and_where_it_tells_of_its_cache(
    told: dict[str, str], lease_s: float, groups: int
) -> None:
    world, spec = World(domains=1), unit_spec()
    prefill, decode = spec.pools
    engine = replace(prefill.engine, options=told, tensor_parallel=prefill.gpus // groups)
    world.unit(replace(spec, pools=(replace(prefill, engine=engine), decode), tokenizer="hf://org/name"))
    world.settle()
    world.route({RELEASE: 10_000})
    (route,) = router_table(stage=STAGE).units
    assert (route.kv_lease_s, route.tokenizer, route.prefill_tokens) == (lease_s, "hf://org/name", 8192 * groups)
    told_at = [(item.role, item.events_port - item.port, item.replay_port - item.port) for item in route.replicas if item.events_port]
    assert told_at == ([(Role.PREFILL, 3, 2)] * 2 if groups == 1 else [])  # several groups tell several stories


@pytest.mark.parametrize(
    ("protocol", "narrower", "widths"), [("vllm-nixl", 1, {0}), ("vllm-nixl-push", 1, {4, 0}), ("vllm-nixl-push", 2, {0})]
)
def test_routers_know_the_width_of_a_prefill_that_has_its_agents_name(protocol: str, narrower: int, widths: set[int]) -> None:
    world, spec = World(domains=1), unit_spec()
    pools = []
    for pool in spec.pools:
        engine = replace(pool.engine, protocol=protocol, tensor_parallel=pool.gpus // narrower)
        pools.append(replace(pool, engine=engine))
    world.unit(replace(spec, pools=tuple(pools)))
    world.settle()
    world.route({RELEASE: 10_000})
    replicas = router_table(stage=STAGE).units[0].replicas
    assert {replica.tensor_parallel for replica in replicas} == widths
    assert not any(replica.tensor_parallel for replica in replicas if replica.role is Role.DECODE)


def test_a_dead_replica_leaves_the_table_with_the_report_that_says_so() -> None:
    world, _ = _serving()
    before = router_table(stage=STAGE)
    agent = next(iter(world.agents.values()))
    rank = agent.snapshot.ranks[0]
    agent.states[rank.rank_id] = replace(agent._rank(rank), state=RankState.BACKOFF, detail="exit code 3", restarts=1)
    agent.sync(world.now)
    after = router_table(stage=STAGE)
    assert after.generation > before.generation
    assert rank.replica not in {replica.replica for replica in after.units[0].replicas}
    agent.states[rank.rank_id] = replace(agent._rank(rank), state=RankState.READY, engine_id="second")
    agent.sync(world.now)
    back = {replica.replica: replica.engine_id for replica in router_table(stage=STAGE).units[0].replicas}
    assert back[rank.replica] == "second"


def test_figures_alone_draw_no_new_generation() -> None:
    world, _ = _serving()
    before = router_table(stage=STAGE).generation
    agent = next(iter(world.agents.values()))
    rank = agent.snapshot.ranks[0]
    agent.states[rank.rank_id] = replace(agent._rank(rank), gauges={"kv_use": 0.9}, detail="busy")
    agent.sync(world.now)
    world.tick()
    assert router_table(stage=STAGE).generation == before


def test_weights_must_sum_and_setting_them_again_changes_nothing() -> None:
    world, _ = _serving()
    with pytest.raises(InvalidError, match="sum to 10000"):
        world.route({RELEASE: 9_999})
    first = world.route({RELEASE: 9_000, "ds-flash@2": 1_000})
    assert world.route({RELEASE: 9_000, "ds-flash@2": 1_000}) == first
    assert world.route({RELEASE: 10_000}) > first


def test_a_draining_unit_is_listed_but_not_routable_and_a_stopped_one_is_not_listed() -> None:
    _, unit = _serving()
    unit_drain(unit=unit)
    (route,) = router_table(stage=STAGE).units
    assert not route.routable
    assert {replica.readiness for replica in route.replicas} == {ReplicaReadiness.DRAINING}
    unit_stop(unit=unit)
    assert router_table(stage=STAGE).units == ()


def test_a_changed_pool_is_never_listed_beside_the_other_generation() -> None:
    world, unit = _serving()
    spec = unit_spec(release="ds-flash@2")
    unit_retarget(unit=unit, spec=replace(spec, pools=(spec.pools[0], replace(spec.pools[1], generation="g2"))))
    (route,) = router_table(stage=STAGE).units
    assert {replica.role for replica in route.replicas} == {Role.PREFILL}
    world.settle()
    (route,) = router_table(stage=STAGE).units
    assert {(replica.role, replica.release) for replica in route.replicas} == {(Role.PREFILL, "ds-flash@2"), (Role.DECODE, "ds-flash@2")}


def test_a_probe_holds_for_the_engines_that_answered_it() -> None:
    world, unit = _serving()
    unit_request_probe(unit=unit)
    table = router_table(stage=STAGE)
    assert table.units[0].probe
    world.router(seq=1, generation=table.generation, probes=(ProbeResult(unit, ok=False, detail="HTTP 500"),))
    assert not world.view(unit).probed and world.view(unit).detail == "probe: HTTP 500"
    world.router(seq=2, generation=table.generation, probes=(ProbeResult(unit, ok=True, engines=("some-other",)),))
    assert not world.view(unit).probed
    engines = tuple(replica.engine_id for replica in table.units[0].replicas[:2])
    world.router(seq=3, generation=table.generation, probes=(ProbeResult(unit, ok=True, engines=engines),))
    assert world.view(unit).probed and world.view(unit).detail == ""
    assert not router_table(stage=STAGE).units[0].probe
    unit_retarget(unit=unit, spec=unit_spec(release="ds-flash@2"))
    assert not world.view(unit).probed
    assert router_table(stage=STAGE).units[0].probe


def test_a_report_counts_once_and_says_what_is_confirmed() -> None:
    world, unit = _serving()
    table = router_table(stage=STAGE)
    gauges = (UnitGauge(unit, prefill_queue=3, prefill_inflight=1, decode_inflight=4),)
    assert world.router(seq=1, generation=table.generation, gauges=gauges, inflight={RELEASE: 5})
    assert not world.router(seq=1, generation=table.generation, gauges=gauges, inflight={RELEASE: 5})
    seen = routers_view(stage=STAGE, now=world.now)
    assert (seen.live, seen.confirmed, seen.generation) == (1, table.generation, table.generation)
    assert (seen.inflight, seen.urls) == ({RELEASE: 5}, ("http://127.0.0.1:9000",))
    assert (world.view(unit).inflight, world.view(unit).weight_seen) == (5, 1.0)
    held = frame_view(stage=STAGE, names=["gauge.gpus"], span_s=120, step_s=10, by="unit", now=world.now + timedelta(seconds=20))
    assert {value for value in held.lines[0].values if value is not None} == {float(world.view(unit).gpus)}
    world.tick(9)
    world.tick(2)
    assert routers_view(stage=STAGE, now=world.now).live == 0
    assert world.view(unit).weight_seen is None


def test_the_share_seen_is_that_of_the_table_in_force() -> None:
    world, unit = _serving()
    old = router_table(stage=STAGE).generation
    new = world.route({RELEASE: 2_500, "ds-flash@2": 7_500})
    world.router(seq=1, generation=old)
    assert world.view(unit).weight_seen == 1.0
    world.router(seq=2, generation=new)
    assert world.view(unit).weight_seen == 0.25
    assert Router.objects.count() == 1
