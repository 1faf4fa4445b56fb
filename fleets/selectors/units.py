"""Serving units as they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime

from denvweb.core import wire
from fleets.domain.protocol import UnitGauge
from fleets.domain.types import PoolSpec, RankState, Role, UnitSpec
from fleets.domain.views import PoolView, RankView, ReplicaState, ReplicaView, UnitView
from fleets.models import Rank, Replica, Router, RouteState, Unit
from fleets.selectors.routing import live_routers, route_states
from fleets.selectors.rows import current, leader_of, leaving, probed, spec_of, state_of, unit_ready, units_with_ranks


def units_view(*, stage: str, now: datetime) -> tuple[UnitView, ...]:
    """The units of a stage by slot, those on their way out included: five queries."""
    return units_views(stages=[stage], now=now)[stage]


def units_views(*, stages: Collection[str], now: datetime) -> dict[str, tuple[UnitView, ...]]:
    """The same for any number of stages, in five queries too."""
    units: dict[str, list[Unit]] = {stage: [] for stage in stages}
    for unit in units_with_ranks(Unit.objects.filter(stage__in=stages).exclude(desired=Unit.Desired.GONE)):
        units[unit.stage].append(unit)
    routers, states = live_routers(stages=stages, now=now), route_states(stages=stages)
    return {stage: _units_view(units[stage], routers[stage], states.get(stage)) for stage in stages}


def _units_view(units: Sequence[Unit], routers: Sequence[Router], state: RouteState | None) -> tuple[UnitView, ...]:
    inflight = _inflight(routers)
    shares = _shares(units, routers, state)
    return tuple(_unit_view(unit, inflight[unit.id], shares.get(unit.id, 0.0) if shares is not None else None) for unit in units)


def _inflight(routers: Sequence[Router]) -> Counter[str]:
    """Requests by unit over all routers; one is in its prefill leg or in its decode leg, never in both."""
    counts: Counter[str] = Counter()
    for router in routers:
        for gauge in wire.from_plain(router.gauges, tuple[UnitGauge, ...]):
            counts[gauge.unit] += gauge.prefill_inflight + gauge.decode_inflight
    return counts


def _shares(units: Sequence[Unit], routers: Sequence[Router], state: RouteState | None) -> dict[str, float] | None:
    """Each unit's share of the traffic by the tables that the routers have in force; None without a live router."""
    if state is None or not routers:
        return None
    shares: Counter[str] = Counter()
    serving: dict[str, list[str]] = {}
    for unit in units:
        if unit.routable and unit.desired == Unit.Desired.RUN and unit_ready(unit, spec_of(unit)):
            serving.setdefault(unit.release, []).append(unit.id)
    for router in routers:
        weights = state.weights if router.table_generation >= state.weights_generation else state.weights_before
        for release, ids in serving.items():
            for unit_id in ids:
                shares[unit_id] += weights.get(release, 0) / 10_000 / len(ids) / len(routers)
    return dict(shares)


def _unit_view(unit: Unit, inflight: int, share: float | None) -> UnitView:
    spec = spec_of(unit)
    running = unit.desired == Unit.Desired.RUN
    pools = tuple(_pool_view(unit, pool) for pool in spec.pools)
    return UnitView(
        unit=unit.id,
        slot=unit.slot,
        stage=unit.stage,
        release=unit.release,
        shape=spec.shape,
        gpus=spec.gpus,
        fleet=unit.fleet_id,
        domain=unit.domain,
        stopping=not running,
        ready=all(pool.ready >= 1 for pool in pools),
        complete=all(pool.ready == pool.desired for pool in pools),
        probed=probed(unit),
        routable=unit.routable and running,
        failed=bool(unit.failed),
        detail=_detail(unit, spec, pools),
        inflight=inflight,
        weight_seen=share,
        pools=pools,
        leaving=leaving(unit) if running else "",
    )


def _detail(unit: Unit, spec: UnitSpec, pools: Sequence[PoolView]) -> str:
    if unit.failed:
        return unit.failed
    reasons = [replica.detail for pool in pools for replica in pool.replicas if replica.detail]
    waiting = [f"{pool.role.value}: {pool.ready} of {pool.desired} ready" for pool in pools if pool.ready < pool.desired]
    if reasons or waiting:
        return (reasons or waiting)[0]
    return f"probe: {unit.probe_detail}" if unit.probe_detail and not probed(unit) else leaving(unit)


def _pool_view(unit: Unit, pool: PoolSpec) -> PoolView:
    counted = {replica.id for replica in current(unit, pool)}
    replicas = [replica for replica in unit.replicas.all() if replica.role == pool.role]
    views = tuple(_replica_view(replica) for replica in replicas)
    ready = sum(view.state is ReplicaState.READY for view in views if view.replica in counted)
    return PoolView(pool.role, pool.gpus, pool.replicas, ready, views)


def _replica_view(replica: Replica) -> ReplicaView:
    state, leader = state_of(replica), leader_of(replica)
    ranks = list(replica.ranks.all())
    return ReplicaView(
        replica=replica.id,
        role=Role(replica.role),
        ordinal=replica.ordinal,
        release=replica.release,
        generation=replica.generation,
        state=state,
        detail="" if state is ReplicaState.READY else replica_detail(replica, ranks),
        gauges=dict(leader.gauges),
        ranks=tuple(_rank_view(rank) for rank in ranks),
    )


def replica_detail(replica: Replica, ranks: Sequence[Rank]) -> str:
    """Why the replica is not ready: the first of its ranks that says something."""
    said = [rank for rank in ranks if rank.state != RankState.READY and rank.detail]
    return f"{replica.role} {replica.ordinal + 1} on {said[0].node_id}: {said[0].detail}" if said else ""


def _rank_view(rank: Rank) -> RankView:
    state = RankState(rank.state) if rank.state else None
    return RankView(rank.id, rank.index, rank.node_id, tuple(rank.gpus), state, rank.restarts, rank.detail)
