"""Serving units as they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime

from denvweb.core import wire
from fleets.domain.protocol import UnitGauge
from fleets.domain.types import PoolSpec, RankState
from fleets.domain.views import PoolView, RankView, ReplicaState, ReplicaView, RoutersView, UnitView
from fleets.models import Router, RouteState
from fleets.selectors.routing import live_routers, route_states, routers_of
from fleets.selectors.unit_rows import RankRow, ReplicaRow, UnitRow, unit_rows


def units_view(*, stage: str, now: datetime) -> tuple[UnitView, ...]:
    """The units of a stage by slot, those on their way out included: three queries."""
    return units_views(stages=[stage], now=now)[stage]


def units_views(*, stages: Collection[str], now: datetime) -> dict[str, tuple[UnitView, ...]]:
    """The same for any number of stages, in three queries too."""
    return {stage: units for stage, (units, _) in service_views(stages=stages, now=now).items()}


def service_views(*, stages: Collection[str], now: datetime) -> dict[str, tuple[tuple[UnitView, ...], RoutersView]]:
    """Units and routers of any number of stages, in three queries."""
    units: dict[str, list[UnitRow]] = {stage: [] for stage in stages}
    for unit in unit_rows(stages):
        units[unit.stage].append(unit)
    live, states = live_routers(stages=stages, now=now), route_states(stages=stages)
    return {
        stage: (_units_view(units[stage], live[stage], states.get(stage)), routers_of(stage, states.get(stage), live[stage]))
        for stage in stages
    }


def _units_view(units: Sequence[UnitRow], routers: Sequence[Router], state: RouteState | None) -> tuple[UnitView, ...]:
    inflight = _inflight(routers)
    pools = [tuple(_pool_view(unit, pool) for pool in unit.spec.pools) for unit in units]
    shares = _shares(units, pools, routers, state)
    return tuple(
        _unit_view(unit, found, inflight[unit.id], shares.get(unit.id, 0.0) if shares is not None else None)
        for unit, found in zip(units, pools, strict=True)
    )


def _inflight(routers: Sequence[Router]) -> Counter[str]:
    """Requests by unit over all routers; one is in its prefill leg or in its decode leg, never in both."""
    counts: Counter[str] = Counter()
    for router in routers:
        for gauge in wire.from_plain(router.gauges, tuple[UnitGauge, ...]):
            counts[gauge.unit] += gauge.prefill_inflight + gauge.decode_inflight
    return counts


def _shares(
    units: Sequence[UnitRow], pools: Sequence[Sequence[PoolView]], routers: Sequence[Router], state: RouteState | None
) -> dict[str, float] | None:
    """Each unit's share of the traffic by the tables that the routers have in force; None without a live router."""
    if state is None or not routers:
        return None
    shares: Counter[str] = Counter()
    serving: dict[str, list[str]] = {}
    for unit, found in zip(units, pools, strict=True):
        if unit.routable and unit.running and _ready(found):
            serving.setdefault(unit.release, []).append(unit.id)
    for router in routers:
        weights = state.weights if router.table_generation >= state.weights_generation else state.weights_before
        for release, ids in serving.items():
            for unit_id in ids:
                shares[unit_id] += weights.get(release, 0) / 10_000 / len(ids) / len(routers)
    return dict(shares)


def _ready(pools: Sequence[PoolView]) -> bool:
    """Whether every pool has at least one ready replica."""
    return all(pool.ready >= 1 for pool in pools)


def _unit_view(unit: UnitRow, pools: tuple[PoolView, ...], inflight: int, share: float | None) -> UnitView:
    spec, leaving = unit.spec, unit.leaving
    return UnitView(
        unit=unit.id,
        slot=unit.slot,
        stage=unit.stage,
        release=unit.release,
        shape=spec.shape,
        gpus=spec.gpus,
        fleet=unit.fleet,
        domain=unit.domain,
        stopping=not unit.running,
        ready=_ready(pools),
        complete=all(pool.ready == pool.desired for pool in pools),
        probed=unit.probed,
        routable=unit.routable and unit.running,
        failed=bool(unit.failed),
        detail=unit.failed or _detail(unit, pools) or leaving,
        inflight=inflight,
        weight_seen=share,
        pools=pools,
        leaving=leaving if unit.running else "",
    )


def _detail(unit: UnitRow, pools: Sequence[PoolView]) -> str:
    reasons = [replica.detail for pool in pools for replica in pool.replicas if replica.detail]
    waiting = [f"{pool.role.value}: {pool.ready} of {pool.desired} ready" for pool in pools if pool.ready < pool.desired]
    if reasons or waiting:
        return (reasons or waiting)[0]
    return f"probe: {unit.probe_detail}" if unit.probe_detail and not unit.probed else ""


def _pool_view(unit: UnitRow, pool: PoolSpec) -> PoolView:
    rows = [replica for replica in unit.replicas if replica.role is pool.role]
    views = tuple(_replica_view(replica) for replica in rows)
    ready = sum(view.state is ReplicaState.READY and row.counts_for(pool) for view, row in zip(views, rows, strict=True))
    return PoolView(pool.role, pool.gpus, pool.replicas, ready, views)


def _replica_view(replica: ReplicaRow) -> ReplicaView:
    state = replica.state
    leader = next(rank for rank in replica.ranks if rank.index == 0)
    return ReplicaView(
        replica=replica.id,
        role=replica.role,
        ordinal=replica.ordinal,
        release=replica.release,
        generation=replica.generation,
        state=state,
        detail="" if state is ReplicaState.READY else _replica_detail(replica),
        gauges=leader.gauges,
        ranks=tuple(_rank_view(rank) for rank in replica.ranks),
    )


def _replica_detail(replica: ReplicaRow) -> str:
    """Why the replica is not ready: the first of its ranks that says something."""
    said = [rank for rank in replica.ranks if rank.state is not RankState.READY and rank.detail]
    return f"{replica.role} {replica.ordinal + 1} on {said[0].node}: {said[0].detail}" if said else ""


def _rank_view(rank: RankRow) -> RankView:
    return RankView(rank.id, rank.index, rank.node, rank.gpus, rank.state, rank.restarts, rank.detail)
