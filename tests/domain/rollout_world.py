"""A stage with its fleets and routers as the rollout state machine sees them, moved by hand: no clock, no process, no database."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from fleets.domain.placement import Refusal
from fleets.domain.types import (
    DomainView,
    EngineSpec,
    FleetView,
    ModelShape,
    NodeView,
    PlacementRule,
    PoolSpec,
    RankState,
    Role,
    UnitPlacement,
    UnitSpec,
)
from fleets.domain.views import PoolView, RankView, ReplicaState, ReplicaView, RoutersView, UnitView
from metrics.domain.types import AlarmSpec
from metrics.domain.views import AlarmVerdict
from releases.domain.freezes import Frozen
from releases.domain.plan import StagePlan, plan_stage
from releases.domain.rollout import EDGES, step
from releases.domain.rollout_commands import superseded
from releases.domain.rollout_room import place_near, take
from releases.domain.rollout_settle import left_by
from releases.domain.rollout_types import (
    CreateUnit,
    Decision,
    Effect,
    HoldRelease,
    Observations,
    Phase,
    RequestProbe,
    RetargetUnit,
    RollbackWish,
    RolloutState,
    SetRoutable,
    SetStable,
    SetWeights,
    StopUnit,
    Turn,
)
from releases.domain.spec_types import RolloutPolicy

STAGE, MODEL = "ds-flash/prod-us", "ds-flash"
START = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
SHAPE = ModelShape(4, 64, 8, 1e9, 1e9, 1e9, 2e9, 1024)
ALARM = AlarmSpec("ttft-p99", "ttft", 0.01, 1.5)
POLICY = RolloutPolicy(hold_s=600, bake_s=600, deadline_s=1800, max_wait_s=1800, min_requests=100)


def engine(protocol: str = "vllm-nixl") -> EngineSpec:
    return EngineSpec("sim", "tiny/sim@1", MODEL, "hf://a/b@c", protocol, SHAPE, 4)


def unit_spec(number: int, *, prefill: str = "p1", decode: str = "d1", compat: str = "kv1", decodes: int = 1) -> UnitSpec:
    """2 x 2 + 8 GPUs: one domain."""
    release = f"{MODEL}@{number}"
    pools = (
        PoolSpec(Role.PREFILL, 2, 2, release, prefill, engine()),
        PoolSpec(Role.DECODE, 8 // decodes, decodes, release, decode, engine()),
    )
    return UnitSpec(STAGE, MODEL, release, compat, PlacementRule.SAME_DOMAIN, pools)


OLD, NEW = unit_spec(7), unit_spec(8, decode="d2", compat="kv2")
NEW_DECODE = unit_spec(8, decode="d2")  # KV stays compatible: prefill is kept


def fleet(domains: int) -> FleetView:
    return FleetView(
        "gb200",
        "GB200",
        tuple(
            DomainView(f"gb200/d{d:02d}", tuple(NodeView(f"gb200-d{d:02d}-n{n:02d}", 4, (0, 1, 2, 3)) for n in range(1, 4)))
            for d in range(1, domains + 1)
        ),
    )


@dataclass
class Unit:
    """One unit of the world."""

    id: str
    slot: int
    spec: UnitSpec
    placement: UnitPlacement
    ready: bool = False
    probed: bool = False
    probe_wanted: bool = False
    routable: bool = False
    stopping: bool = False
    failed: bool = False
    silent: bool = False
    inflight: int = 0
    restarts: int = 0
    rank_state: RankState | None = None

    def view(self) -> UnitView:
        state = ReplicaState.READY if self.ready else ReplicaState.UNKNOWN if self.silent else ReplicaState.STARTING
        places = {(place.role, place.ordinal): place for place in self.placement.replicas}
        pools = []
        for pool in self.spec.pools:
            views = []
            for ordinal in range(pool.replicas):
                place = places.get((pool.role, ordinal))
                ranks = tuple(
                    RankView(f"{self.id}{pool.role}{ordinal}{i}", i, rank.node, rank.gpus, self.rank_state, self.restarts, "")
                    for i, rank in enumerate(place.ranks if place else ())
                )
                views.append(ReplicaView(f"{self.id}{pool.role}{ordinal}", pool.role, ordinal, pool.release, "", state, "", {}, ranks))
            pools.append(PoolView(pool.role, pool.gpus, pool.replicas, pool.replicas if self.ready else 0, tuple(views)))
        return UnitView(
            unit=self.id,
            slot=self.slot,
            stage=STAGE,
            release=self.spec.release,
            shape=self.spec.shape,
            gpus=self.spec.gpus,
            fleet=self.placement.fleet,
            domain=self.placement.domain,
            stopping=self.stopping,
            ready=self.ready and not self.stopping,
            complete=self.ready and not self.stopping,
            probed=self.probed,
            routable=self.routable and not self.stopping,
            failed=self.failed,
            detail="it died" if self.failed else "",
            inflight=self.inflight,
            weight_seen=None,
            pools=tuple(pools),
        )


def verdict(
    n: int = 500,
    k: float = 0,
    *,
    evidence: float = 0.1,
    tripped: bool = False,
    healthy: bool = True,
    fresh: bool = True,
    relative: float | None = None,
    baseline_breaching: bool = False,
    metric: str = "ttft",
    low: float | None = None,
    baseline: tuple[int, float] = (0, 0),
) -> AlarmVerdict:
    rate = k / n if n else None
    return AlarmVerdict(
        alarm="ttft-p99" if metric == "ttft" else "error-rate",
        metric=metric,
        limit_s=1.5 if metric == "ttft" else None,
        p0=0.01,
        n=n,
        k=k,
        rate=rate,
        rate_low=low if low is not None else rate,
        rate_high=rate,
        evidence=evidence,
        trips_at=300,
        tripped=tripped,
        health=100 if healthy else 1,
        health_needs=20,
        healthy=healthy,
        baseline_n=baseline[0],
        baseline_k=baseline[1],
        baseline_breaching=baseline_breaching,
        relative_evidence=relative,
        fresh=fresh,
    )


@dataclass
class World:
    """The stage. `tick` decides once and applies; `settle` lets engines, routers and agents do their part and ticks until nothing moves."""

    old: UnitSpec | None = OLD
    new: UnitSpec = NEW
    replicas: int = 2
    domains: int = 3
    policy: RolloutPolicy = POLICY
    now: datetime = START
    units: dict[str, Unit] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    generation: int = 1
    confirmed: int = 1
    live: int = 1
    verdicts: tuple[AlarmVerdict, ...] = ()
    rollback: RollbackWish | None = None
    turn: Turn = Turn.NOW
    frozen: Frozen | None = None
    stable: str = ""
    held: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    weight_log: list[int] = field(default_factory=list)
    created: int = 0
    come_up: bool = True
    allow_dead_weight: bool = False
    trail: list[Phase] = field(default_factory=list)
    plan: StagePlan = field(init=False)
    state: RolloutState = field(init=False)

    def __post_init__(self) -> None:
        fleets = (fleet(self.domains),)
        if self.old is not None:
            for slot in range(1, self.replicas + 1):
                placed = place_near(self.old, self.fleets(), None)
                assert not isinstance(placed, Refusal)
                self._add(slot, self.old, placed, up=True)
            self.weights = {self.old.release: 10_000}
            self.stable = self.old.release
        self.base = fleets
        self.plan = self.plan_now()
        self.state = RolloutState(
            STAGE,
            MODEL,
            self.old,
            self.new,
            self.replicas,
            self.policy,
            alarms=(ALARM,),
            moves=self.plan.moves,
        )

    # ---- what is seen ----

    def plan_now(self) -> StagePlan:
        return plan_stage(
            stage=STAGE,
            old=self.old,
            new=self.new,
            replicas=self.replicas,
            policy=self.policy,
            units=self.views(),
            fleets=self.fleets(),
        )

    def fleets(self) -> tuple[FleetView, ...]:
        fleets: tuple[FleetView, ...] = (fleet(self.domains),)
        for unit in self.units.values():
            fleets = take(fleets, unit.placement)
        return fleets

    def views(self) -> tuple[UnitView, ...]:
        return tuple(unit.view() for unit in sorted(self.units.values(), key=lambda unit: unit.slot))

    def place(self, spec: UnitSpec, planned: UnitPlacement | None) -> UnitPlacement | Refusal:
        return place_near(spec, self.fleets(), planned)

    def obs(self) -> Observations:
        routers = RoutersView(STAGE, self.generation, self.confirmed if self.live else 0, self.live, (), dict(self.weights), {})
        return Observations(self.views(), routers, self.place, self.verdicts, self.rollback, self.turn, self.frozen)

    def of(self, spec: UnitSpec) -> list[Unit]:
        return [unit for unit in self.units.values() if unit.spec.release == spec.release and not unit.stopping]

    @property
    def share(self) -> int:
        return self.weights.get(self.new.release, 0)

    # ---- what happens ----

    def supersede(self, new: UnitSpec) -> None:
        """Another release takes the rollout's place. ConflictError when that is on its way back."""
        before = self.state
        assert superseded(before, by=new.release, actor="a").state.phase is Phase.SUPERSEDED
        self.new, self.weight_log = new, []
        self.state = RolloutState(
            STAGE,
            MODEL,
            self.old,
            new,
            self.replicas,
            self.policy,
            alarms=(ALARM,),
            why="waits for the next look",
            replicas_back=before.replicas_back,
            draining=before.draining,
            left=left_by(before),
        )

    def scale(self, replicas: int) -> None:
        """Other numbers of units from now on."""
        self.replicas = replicas
        self.state = replace(self.state, replicas=replicas, replicas_back=replicas if self.state.replicas_back else 0)

    def _begin(self) -> None:
        """As whoever drives does: the plan is made when the rollout begins, against what stands then."""
        held_up = self.rollback or self.turn is not Turn.NOW or (self.frozen and not self.state.break_glass)
        if self.state.phase is Phase.PENDING and self.state.left is None and not held_up:
            plan = self.plan_now()
            if plan.refusal is None:
                self.state = replace(self.state, moves=plan.moves)

    def tick(self, obs: Observations | None = None) -> Decision:
        self._begin()
        decision = step(self.state, obs or self.obs(), self.now)
        assert decision.state.phase is self.state.phase or decision.state.phase in EDGES[self.state.phase], (
            self.state.phase,
            decision.state.phase,
        )
        if decision.state.phase is not self.state.phase:
            self.trail.append(decision.state.phase)
        self.state = decision.state
        for effect in decision.effects:
            self.apply(effect)
        self.events += [event.kind for event in decision.events]
        self.sentences += [event.sentence for event in decision.events]
        return decision

    def settle(self, most: int = 80) -> World:
        """Everybody does their part at once, and time stands still."""
        for _ in range(most):
            before = (self.state, self.snapshot())
            self.nature()
            self.tick()
            if before == (self.state, self.snapshot()):
                return self
        raise AssertionError(f"it never comes to rest: {self.state.phase} {self.state.why}")

    def wait(self, seconds: float) -> World:
        self.now += timedelta(seconds=seconds)
        return self.settle()

    def wait_only(self, seconds: float) -> None:
        """Time passes, and nobody looks."""
        self.now += timedelta(seconds=seconds)

    def snapshot(self) -> object:
        return (self.weights.copy(), self.generation, self.confirmed, [replace(unit) for unit in self.units.values()])

    def nature(self) -> None:
        """Agents and routers."""
        for unit in list(self.units.values()):
            if unit.stopping:
                del self.units[unit.id]
                self.generation += 1
                continue
            if not unit.ready and not unit.failed and self.come_up and not unit.silent:
                unit.ready = True
                self.generation += 1
            if unit.ready and unit.probe_wanted and self.live:
                unit.probed, unit.probe_wanted = True, False
            if not unit.routable:
                unit.inflight = 0
        if self.live:
            self.confirmed = self.generation

    def _add(self, slot: int, spec: UnitSpec, placement: UnitPlacement, *, up: bool = False) -> None:
        self.created += 1
        unit = Unit(f"u{self.created}", slot, spec, placement, ready=up, probed=up, routable=up)
        self.units[unit.id] = unit

    def apply(self, effect: Effect) -> None:  # noqa: C901  one case an effect
        """As the fleets app would."""
        unit = self.units.get(getattr(effect, "unit", ""))
        match effect:
            case CreateUnit(slot, spec, placement):
                nodes = {
                    (rank.node, gpu)
                    for other in self.units.values()
                    for r in other.placement.replicas
                    for rank in r.ranks
                    for gpu in rank.gpus
                }
                mine = {(rank.node, gpu) for r in placement.replicas for rank in r.ranks for gpu in rank.gpus}
                if not nodes & mine:  # else: gpu-taken, and the next look decides anew
                    self._add(slot, spec, placement)
            case RetargetUnit(_, spec):
                if unit and not unit.stopping:
                    same = {pool.generation for pool in unit.spec.pools} == {pool.generation for pool in spec.pools}
                    unit.spec, unit.probed, unit.ready, unit.failed = spec, False, unit.ready and same, False
            case StopUnit():
                if unit:
                    unit.stopping, unit.routable = True, False
            case SetRoutable(_, routable):
                if unit and not unit.stopping:
                    unit.routable = routable
            case RequestProbe():
                if unit and not unit.probed:
                    unit.probe_wanted = True
                return
            case SetWeights(weights):
                self.set_weights(weights)
            case SetStable(release):
                self.stable = release
            case HoldRelease(release, _):
                self.held.append(release)
        self.generation += 1

    def set_weights(self, weights: dict[str, int]) -> None:
        assert not weights or sum(weights.values()) == 10_000
        assert all(weight > 0 for weight in weights.values())
        for release, weight in weights.items():
            if weight <= self.weights.get(release, 0):
                continue  # what is taken from a release that has just died is no gift to it
            up = [u for u in self.units.values() if u.spec.release == release and u.ready and u.routable and not u.stopping]
            assert up or self.allow_dead_weight, f"{release} gets weight without ready capacity: {weights}"
        self.weights = dict(weights)
        self.weight_log.append(self.share)
