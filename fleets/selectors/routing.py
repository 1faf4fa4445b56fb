"""What routers should do, and what they say that they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from denvweb.core import wire
from denvweb.core.errors import NotFoundError
from fleets.domain.ports import EVENTS, REPLAY
from fleets.domain.protocol import ConditionalPolicy, ReplicaReadiness, RouteReplica, RouterTable, RouteUnit, Synthetic
from fleets.domain.types import PREFILL_TOKENS, NodeState, PoolSpec, Role, UnitSpec
from fleets.domain.views import ReplicaState, RoutersView
from fleets.models import Replica, Router, RouteState, Unit
from fleets.selectors.keys import keys_of
from fleets.selectors.rows import current, leader_of, probed, spec_of, state_of, unit_ready, units_with_ranks
from metrics.domain.types import AlarmSpec

LIVE_WITHIN_S = 10.0  # routers report every second


def table_generation(*, stage: str) -> int | None:
    """The generation of the stage's table; None before the stage has one."""
    return RouteState.objects.filter(stage=stage).values_list("generation", flat=True).first()


def router_table(*, stage: str) -> RouterTable:
    """The table of a stage: four queries. The generation is read first: the rest is never older than it says."""
    state = RouteState.objects.filter(stage=stage).first()
    if state is None:
        raise NotFoundError(f"Stage {stage} has no routes yet.")
    return table_of(state, units_with_ranks(Unit.objects.filter(stage=stage)))


def table_of(state: RouteState, units: Sequence[Unit]) -> RouterTable:
    """The table from loaded rows."""
    routes = [route for unit in units if (route := _route_unit(unit))]
    return RouterTable(
        stage=state.stage,
        model=state.model,
        epoch=state.epoch,
        generation=state.generation,
        weights=dict(state.weights),
        units=tuple(routes),
        conditional=wire.from_plain(state.conditional, ConditionalPolicy),
        alarms=wire.from_plain(state.alarms, tuple[AlarmSpec, ...]),
        synthetic=wire.from_plain(state.synthetic, Synthetic) if state.synthetic else None,
        keys=keys_of(state),
        keys_required=state.keys_required,
    )


def _route_unit(unit: Unit) -> RouteUnit | None:
    """None when nothing of the unit can be sent to."""
    if unit.desired not in (Unit.Desired.RUN, Unit.Desired.DRAIN):
        return None
    spec = spec_of(unit)
    replicas = [route for pool in spec.pools for replica in current(unit, pool) if (route := _route_replica(replica, pool))]
    if not replicas:
        return None
    running = unit.desired == Unit.Desired.RUN
    decode = _pool(spec, Role.DECODE)
    return RouteUnit(
        unit=unit.id,
        release=unit.release,
        prefill_release=_pool(spec, Role.PREFILL).release,
        decode_release=decode.release,
        compat=spec.compat,
        routable=unit.routable and running,
        probe=unit.probe_wanted and running and not probed(unit) and unit_ready(unit, spec),
        protocol=decode.engine.protocol,
        replicas=tuple(replicas),
        block_tokens=decode.engine.block_tokens,
        kv_lease_s=_pool(spec, Role.PREFILL).engine.kv_lease_s,
        tokenizer=spec.tokenizer,
        prefill_tokens=PREFILL_TOKENS * _groups(_pool(spec, Role.PREFILL)),
    )


def _groups(pool: PoolSpec) -> int:
    """Data-parallel groups of a replica: each has batches of its own."""
    return max(1, pool.gpus // max(1, pool.engine.tensor_parallel))


def _pool(spec: UnitSpec, role: Role) -> PoolSpec:
    """The pool of a role; an aggregated unit's only pool plays both."""
    return next((pool for pool in spec.pools if pool.role is role), spec.pools[0])


def _route_replica(replica: Replica, pool: PoolSpec) -> RouteReplica | None:
    state = state_of(replica)
    if state not in (ReplicaState.READY, ReplicaState.DRAINING):
        return None
    leader, ranks = leader_of(replica), replica.ranks.all()
    readiness = ReplicaReadiness.READY
    if state is ReplicaState.DRAINING:
        readiness = ReplicaReadiness.DRAINING
    elif any(rank.node.state != NodeState.READY for rank in ranks):
        readiness = ReplicaReadiness.SUSPECT
    host, port, width = leader.node.host, leader.port, _named_width(pool, len(ranks))
    events, replay = _events_ports(pool, port, len(ranks))
    return RouteReplica(replica.id, Role(replica.role), replica.release, host, port, readiness, leader.engine_id, width, events, replay)


def _events_ports(pool: PoolSpec, port: int, ranks: int) -> tuple[int, int]:
    """Where a replica that is one group on one node tells of its KV cache, and where again; of others no router could make one picture."""
    tells = pool.engine.options.get("kv-events", "false") == "true" and ranks == 1 and _groups(pool) == 1
    return (port + EVENTS, port + REPLAY) if tells else (0, 0)


def _named_width(pool: PoolSpec, ranks: int) -> int:
    """The tensor parallelism of an engine whose KV identity is the agent's name for it; 0 when it makes one up, as most do."""
    engine = pool.engine
    pushes = pool.role is Role.PREFILL and engine.protocol == "vllm-nixl-push"
    return engine.tensor_parallel if pushes and ranks == 1 and engine.tensor_parallel == pool.gpus else 0


def live_routers(*, stages: Collection[str], now: datetime) -> dict[str, list[Router]]:
    """Routers that reported lately, by stage: one query."""
    found: dict[str, list[Router]] = {stage: [] for stage in stages}
    for router in Router.objects.filter(stage__in=stages, last_seen_at__gt=now - timedelta(seconds=LIVE_WITHIN_S)).order_by("name"):
        found[router.stage].append(router)
    return found


def route_states(*, stages: Collection[str]) -> dict[str, RouteState]:
    """How the stages are routed, those that are: one query."""
    return RouteState.objects.in_bulk(list(stages))


def routers_view(*, stage: str, now: datetime) -> RoutersView:
    """What the stage's routers have confirmed: two queries."""
    return routers_views(stages=[stage], now=now)[stage]


def routers_views(*, stages: Collection[str], now: datetime) -> dict[str, RoutersView]:
    """The same for any number of stages, in two queries too."""
    states, live = route_states(stages=stages), live_routers(stages=stages, now=now)
    return {stage: routers_of(stage, states.get(stage), live[stage]) for stage in stages}


def routers_of(stage: str, state: RouteState | None, live: Sequence[Router]) -> RoutersView:
    """What the live routers of a stage have confirmed of its state."""
    inflight: Counter[str] = Counter()
    for router in live:
        inflight.update({release: int(count) for release, count in router.inflight.items()})
    return RoutersView(
        stage=stage,
        generation=state.generation if state else 0,
        confirmed=min((router.table_generation for router in live), default=0),
        live=len(live),
        urls=tuple(router.url for router in live),
        weights=dict(state.weights) if state else {},
        inflight=dict(inflight),
    )
