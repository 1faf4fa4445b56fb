"""A small fleet whose agents do as they are told, for tests of what the control plane makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from fleets.domain.placement import place_unit
from fleets.domain.protocol import (
    AgentReport,
    ConditionalPolicy,
    GpuReport,
    JoinRequest,
    NodeFacts,
    NodeSnapshot,
    ProbeResult,
    RankReport,
    RankSpec,
    RouterReport,
)
from fleets.domain.types import (
    EngineSpec,
    ModelShape,
    PlacementRule,
    PoolSpec,
    RankDesired,
    RankState,
    Role,
    UnitPlacement,
    UnitSpec,
)
from fleets.domain.views import UnitView
from fleets.reconcile import reconcile
from fleets.selectors import fleet_views, units_view
from fleets.services import join_token_create, nodes_join, report_take, router_report_take, routing_set, unit_create

STAGE = "ds-flash/prod-us"
RELEASE = "ds-flash@1"
_SHAPE = ModelShape(
    layers=4,
    hidden=512,
    kv_heads=4,
    total_params=1e9,
    prefill_active_params=1e9,
    decode_active_params=1e9,
    weight_bytes=1e9,
    kv_bytes_per_token=1e3,
)
_AS_TOLD = {
    RankDesired.HOLD: RankState.CLAIMED,
    RankDesired.RUN: RankState.READY,
    RankDesired.DRAIN: RankState.DRAINING,
    RankDesired.STOP: RankState.STOPPED,
}


def pool(role: Role, gpus: int, replicas: int, *, release: str = RELEASE, generation: str = "g1") -> PoolSpec:
    engine = EngineSpec(
        engine="deepinfer",
        recipe="r@1",
        model="ds-flash",
        weights="hf://x@1",
        protocol="vllm-nixl",
        shape=_SHAPE,
        tensor_parallel=min(4, gpus),
    )
    return PoolSpec(role, gpus, replicas, release, generation, engine)


def unit_spec(
    *, prefill: tuple[int, int] = (4, 2), decode: tuple[int, int] = (8, 1), release: str = RELEASE, stage: str = STAGE
) -> UnitSpec:
    """`prefill` and `decode` are (GPUs, replicas)."""
    pools = (pool(Role.PREFILL, *prefill, release=release), pool(Role.DECODE, *decode, release=release))
    return UnitSpec(stage, stage.partition("/")[0], release, "compat1", PlacementRule.SAME_DOMAIN, pools)


@dataclass
class Agent:
    """One node's agent: `sync` reports what it has made of the last snapshot, and reads the next."""

    facts: NodeFacts
    credential: str
    boot: str = "boot1"
    snapshot: NodeSnapshot = field(default_factory=lambda: NodeSnapshot(node="", generation=0))
    states: dict[str, RankReport] = field(default_factory=dict)  # over what it would say as told
    gauges: dict[str, float] = field(default_factory=lambda: {"kv_use": 0.5, "running": 2.0})  # of every engine on it
    gpus: tuple[GpuReport, ...] = ()

    def report(self, now: datetime) -> AgentReport:
        ranks = tuple(self._rank(rank) for rank in self.snapshot.ranks)
        return AgentReport(self.facts.name, self.boot, self.snapshot.generation, now.timestamp(), gpus=self.gpus, ranks=ranks)

    def _rank(self, rank: RankSpec) -> RankReport:
        state = _AS_TOLD[rank.desired]
        told = RankReport(rank.rank_id, state, pid=1, engine_id=f"{rank.replica}-e1", gauges=dict(self.gauges))
        return self.states.get(rank.rank_id, told)

    def sync(self, now: datetime) -> NodeSnapshot:
        answer = report_take(credential=self.credential, report=self.report(now), now=now)
        if not answer.unchanged:
            self.snapshot = answer
        return answer


class World:
    """A fleet, its agents, and a clock that only `tick` moves."""

    def __init__(self, *, fleet: str = "gb200-use1", domains: int = 2, nodes: int = 4, gpus: int = 4, kind: str = "GB200") -> None:
        self.fleet = fleet
        self.now = timezone.now().astimezone(UTC)
        facts = tuple(
            NodeFacts(
                name=f"{fleet}-d{domain:02}-n{node:02}",
                fleet=fleet,
                domain=f"d{domain:02}",
                gpu_kind=kind,
                gpus=gpus,
                host="127.0.0.1",
                port_base=20_000 + 100 * ((domain - 1) * nodes + node),
                port_count=64,
                simulated=True,
                fabric_spans_nodes=kind == "GB200",
            )
            for domain in range(1, domains + 1)
            for node in range(1, nodes + 1)
        )
        token = join_token_create(fleet=fleet, created_by="tests")
        reply = nodes_join(request=JoinRequest(token, facts))
        self.agents = {each.name: Agent(each, reply.credentials[each.name]) for each in facts}
        self.sync()
        reconcile(self.now)

    def living(self, silent: AbstractSet[str]) -> Iterator[Agent]:
        return (agent for name, agent in self.agents.items() if name not in silent)

    def sync(self, *, silent: AbstractSet[str] = frozenset(), rounds: int = 1) -> None:
        for _ in range(rounds):
            for agent in self.living(silent):
                agent.sync(self.now)

    def tick(self, seconds: float = 2.0, *, silent: AbstractSet[str] = frozenset(), rounds: int = 1) -> None:
        """Time passes, agents report, the reconciler passes."""
        self.now += timedelta(seconds=seconds)
        self.sync(silent=silent, rounds=rounds)
        reconcile(self.now)

    def idle(self) -> None:
        """Every engine has finished what it had."""
        for agent in self.agents.values():
            agent.gauges = {"kv_use": 0.0, "running": 0.0, "waiting": 0.0}

    def settle(self, *, silent: AbstractSet[str] = frozenset()) -> None:
        """Until nothing changes any more: gangs claim, start and are ready; what stops has stopped."""
        for _ in range(3):
            self.tick(1.0, silent=silent, rounds=2)

    def place(self, spec: UnitSpec) -> UnitPlacement:
        placed = place_unit(spec, fleet_views(names=[self.fleet]))
        assert isinstance(placed, UnitPlacement), placed
        return placed

    def unit(self, spec: UnitSpec | None = None, *, slot: int = 1) -> str:
        spec = spec or unit_spec()
        return unit_create(spec=spec, placement=self.place(spec), slot=slot)

    def view(self, unit: str, *, stage: str = STAGE) -> UnitView:
        return next(view for view in units_view(stage=stage, now=self.now) if view.unit == unit)

    def units(self, *, stage: str = STAGE) -> list[str]:
        return [view.unit for view in units_view(stage=stage, now=self.now)]

    def route(self, weights: dict[str, int], *, stage: str = STAGE) -> int:
        return routing_set(stage=stage, model=stage.partition("/")[0], weights=weights, conditional=ConditionalPolicy(), alarms=())

    def router(self, *, seq: int, generation: int, probes: tuple[ProbeResult, ...] = (), **fields: object) -> bool:
        report = RouterReport(
            router="r1", boot="b1", seq=seq, stage=STAGE, url="http://127.0.0.1:9000", table_generation=generation, at=self.now.timestamp()
        )
        return router_report_take(report=replace(report, probes=probes, **fields), now=self.now)  # type: ignore[arg-type]  # any of its fields
