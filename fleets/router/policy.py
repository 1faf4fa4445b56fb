"""The stage as this router sees it now: units, replicas, what runs on them, who is taken out; and the choice for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleets.domain import routing
from fleets.domain.protocol import ConditionalPolicy, ReplicaReadiness, RouteReplica, RouterTable, RouteUnit, UnitGauge
from fleets.domain.routing import Decision, Reason
from fleets.domain.types import Role
from fleets.router.admission import Gate
from fleets.router.moved import Ledger
from fleets.router.prefix import Blocks, PrefixIndex
from fleets.router.upstream import LegFailure

EJECT_FIRST_S = 1.0
EJECT_CAP_S = 30.0
_AGGREGATED = Decision(False, Reason.AGGREGATED)


class ReplicaState:
    """One engine: where it is, how busy we keep it, and whether it is out."""

    __slots__ = (
        "answers",
        "engine_id",
        "failures",
        "kv_use",
        "ledger",
        "name",
        "out_until_s",
        "outs",
        "role",
        "running",
        "spec",
        "tokens",
        "unreachable",
        "used_seq",
    )

    def __init__(self, spec: RouteReplica) -> None:
        self.spec = spec
        self.name = spec.replica
        self.role = spec.role
        self.engine_id = spec.engine_id
        self.running = 0
        self.tokens = 0
        self.kv_use: float | None = None
        self.used_seq = 0
        self.ledger = Ledger()
        self.reset()

    def reset(self) -> None:
        """As new: it restarted, or served well."""
        self.failures = 0
        self.outs = 0
        self.out_until_s: float | None = None
        self.answers = True  # to the poller, when last asked
        self.unreachable = False  # it is out because it took no connection

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.spec.host, self.spec.port

    def usable(self, now_s: float) -> bool:
        """Whether a new request may go to it. One that was out gets a single request at first."""
        if self.spec.readiness is ReplicaReadiness.DRAINING:
            return False
        if self.out_until_s is None:
            return True
        return now_s >= self.out_until_s and self.running == 0 and self.answers

    def eject(self, now_s: float) -> None:
        """Take it out, each time for longer."""
        self.outs += 1
        self.out_until_s = now_s + min(EJECT_CAP_S, EJECT_FIRST_S * 2.0 ** (self.outs - 1))


class UnitState:
    """One serving unit, and its prefill queue."""

    __slots__ = ("decodes", "gate", "inflight", "prefills", "spec", "used_seq")

    def __init__(self, spec: RouteUnit, gate: Gate) -> None:
        self.spec = spec
        self.gate = gate
        self.inflight = 0
        self.used_seq = 0
        self.prefills: tuple[ReplicaState, ...] = ()
        self.decodes: tuple[ReplicaState, ...] = ()  # or those that do both

    @property
    def load(self) -> float:
        """Requests for each replica that decodes."""
        return self.inflight / max(1, len(self.decodes))

    @property
    def aggregated(self) -> bool:
        """The unit has no roles."""
        return bool(self.decodes) and self.decodes[0].role is Role.AGGREGATED

    def gauge(self) -> UnitGauge:
        """For the report."""
        return UnitGauge(
            unit=self.spec.unit,
            prefill_queue=self.gate.depth,
            prefill_inflight=sum(replica.running for replica in self.prefills),
            decode_inflight=sum(replica.running for replica in self.decodes),
            ejected=tuple(replica.name for replica in (*self.prefills, *self.decodes) if replica.out_until_s is not None),
        )


@dataclass(frozen=True, slots=True)
class Pin:
    """Where a probe must go; its prefill is always remote where the unit can."""

    unit: str
    prefill: str
    decode: str


@dataclass(slots=True)
class Choice:
    """Where a request goes. The prefill replica is picked later, once it has its place."""

    unit: UnitState
    decode: ReplicaState
    decision: Decision
    decode_held_tokens: int
    release: str = ""  # as picked by weight; another than the unit's when that had no usable unit
    fallback: bool = False
    pin: Pin | None = None


_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class Want:
    """What the choice depends on. Made for each request, and so not frozen, which would triple its cost."""

    blocks: Blocks
    prompt_tokens: int
    tokens_per_byte: float
    samples: int = 1
    session_point: float | None = None  # the session's hash in [0, 1)
    pin: Pin | None = None
    avoid: frozenset[str] = _NONE  # replicas that failed this request already
    release: str | None = None  # picked for it already: a second try is not a second request

    def tokens(self, held_bytes: int) -> int:
        """Tokens of so many prompt bytes."""
        return int(held_bytes * self.tokens_per_byte)


class Stage:
    """The table in force with the live state of its units and replicas."""

    def __init__(
        self,
        *,
        clock_s: Callable[[], float],
        make_gate: Callable[[Callable[[], int]], Gate],
        prefill_inflight: int,
        eject_after: int,
        index: PrefixIndex,
    ) -> None:
        self._clock_s = clock_s
        self._make_gate = make_gate
        self._prefill_inflight = prefill_inflight
        self._eject_after = eject_after
        self.index = index
        self.table: RouterTable | None = None
        self.units: dict[str, UnitState] = {}
        self.replicas: dict[str, ReplicaState] = {}
        self._by_release: dict[str, list[UnitState]] = {}
        self._shares = routing.ExactShares({})
        self._seq = 0
        self.inflight: dict[str, int] = {}  # by release

    @property
    def weights(self) -> Mapping[str, int]:
        """Of the table in force."""
        return self.table.weights if self.table else {}

    @property
    def conditional(self) -> ConditionalPolicy:
        """Of the table in force."""
        return self.table.conditional if self.table else ConditionalPolicy()

    # -- table --

    def swap(self, table: RouterTable) -> None:
        """Put a new table in force. Requests in flight keep the units and replicas that they have."""
        if self.table is None or self.table.weights != table.weights:
            self._shares = routing.ExactShares(table.weights)
        self.table = table
        units: dict[str, UnitState] = {}
        replicas: dict[str, ReplicaState] = {}
        for spec in table.units:
            unit = self.units.get(spec.unit) or self._new_unit(spec)
            unit.spec = spec
            states = [self._replica(item) for item in spec.replicas]
            replicas.update((state.name, state) for state in states)
            unit.prefills = tuple(state for state in states if state.role is Role.PREFILL)
            unit.decodes = tuple(state for state in states if state.role is not Role.PREFILL)
            units[spec.unit] = unit
        for gone in self.replicas.keys() - replicas.keys():
            self.index.forget(gone)
        self.units, self.replicas = units, replicas
        self._by_release = {}
        for unit in units.values():
            if unit.spec.routable:
                self._by_release.setdefault(unit.spec.release, []).append(unit)
            unit.gate.admit()

    def _new_unit(self, spec: RouteUnit) -> UnitState:
        def capacity() -> int:
            now_s = self._clock_s()
            return self._prefill_inflight * max(1, sum(replica.usable(now_s) for replica in unit.prefills))

        unit = UnitState(spec, self._make_gate(capacity))
        return unit

    def _replica(self, spec: RouteReplica) -> ReplicaState:
        state = self.replicas.get(spec.replica)
        if state is None:
            return ReplicaState(spec)
        if (spec.engine_id, spec.host, spec.port) != (state.engine_id, state.spec.host, state.spec.port):
            self.index.forget(state.name)  # another process: its KV is empty, and what the old one did is not its fault
            state.reset()
            state.kv_use = None
            state.ledger = Ledger()
        state.spec, state.role, state.engine_id = spec, spec.role, spec.engine_id
        return state

    # -- choice --

    def choose(self, want: Want) -> Choice | None:
        """Release, unit, decode replica, and local or remote; None when no unit can take it."""
        if want.pin is not None:
            return self._pinned(want, want.pin)
        release = want.release or self._release(want.session_point)
        if release is None:
            return None
        unit = self._unit(release, want)
        fallback = unit is None
        if unit is None:
            others = sorted((name for name in self._shares.weights if name != release), key=lambda name: -self._shares.weights[name])
            unit = next((found for name in others if (found := self._unit(name, want)) is not None), None)
        if unit is None:
            return None
        decodes = self._usable(unit.decodes, want.avoid)
        held = self._held(decodes, want)
        decode = decodes[0] if len(decodes) == 1 else routing.pick_decode(decodes, held)
        if decode is None:
            return None
        return self._choice(unit, decode, held[decodes.index(decode)], want, release=release, fallback=fallback)

    def _release(self, session_point: float | None) -> str | None:
        if session_point is None:
            return self._shares.pick()
        return routing.sticky_release(self._shares.weights, session_point)

    def _unit(self, release: str, want: Want) -> UnitState | None:
        usable = [unit for unit in self._by_release.get(release, ()) if self._usable(unit.decodes, want.avoid)]
        if len(usable) < 2:
            return usable[0] if usable else None
        held = [max(self._held((*unit.decodes, *unit.prefills), want)) for unit in usable]
        return routing.pick_unit(usable, held)

    def _held(self, replicas: Sequence[ReplicaState], want: Want) -> list[int]:
        """Tokens of the prompt that each of `replicas` holds."""
        if not want.blocks.hashes:
            return [0] * len(replicas)
        return [want.tokens(size) for size in self.index.held_bytes(want.blocks, [replica.name for replica in replicas])]

    def _usable(self, replicas: Iterable[ReplicaState], avoid: frozenset[str]) -> list[ReplicaState]:
        now_s = self._clock_s()
        usable = [replica for replica in replicas if replica.usable(now_s)]
        return [replica for replica in usable if replica.name not in avoid] if avoid else usable

    def _choice(self, unit: UnitState, decode: ReplicaState, held_tokens: int, want: Want, *, release: str, fallback: bool) -> Choice:
        if unit.aggregated:
            decision = _AGGREGATED
        else:
            decision = routing.decide(
                self.conditional,
                prompt_tokens=want.prompt_tokens,
                held_tokens=held_tokens,
                prefill_queue=unit.gate.depth,
                decode_kv_use=decode.kv_use,
                has_prefill=unit.spec.protocol == "vllm-nixl" and bool(self._usable(unit.prefills, want.avoid)),
                samples=want.samples,
            )
        self._seq += 1
        unit.used_seq = decode.used_seq = self._seq
        return Choice(unit, decode, decision, held_tokens, release=release, fallback=fallback)

    def _pinned(self, want: Want, pin: Pin) -> Choice | None:
        unit = self.units.get(pin.unit)
        decode = next((replica for replica in unit.decodes if replica.name == pin.decode), None) if unit else None
        if unit is None or decode is None:
            return None
        if unit.aggregated:
            decision = Decision(False, Reason.AGGREGATED)
        else:
            decision = Decision(True, Reason.REMOTE) if pin.prefill else Decision(False, Reason.NO_PREFILL)
        return Choice(unit, decode, decision, 0, pin=pin)

    def pick_prefill(self, choice: Choice, want: Want) -> ReplicaState | None:
        """The prefill replica for a request that has its place: always of the decode replica's own unit."""
        if choice.pin is not None:
            return next((replica for replica in choice.unit.prefills if replica.name == choice.pin.prefill), None)
        replicas = self._usable(choice.unit.prefills, want.avoid)
        picked = routing.pick_prefill(replicas, self._held(replicas, want), want.prompt_tokens)
        if picked is not None:
            self._seq += 1
            picked.used_seq = self._seq
        return picked

    # -- health --

    def served(self, replica: ReplicaState, engine_id: str) -> None:
        """An answer without fault, by the process that was asked."""
        if (replica.failures or replica.out_until_s is not None) and engine_id == replica.engine_id:
            replica.reset()

    def failed(self, replica: ReplicaState, failure: LegFailure | None, engine_id: str) -> None:
        """A fault. `failure` is None for an answer with status 5xx.

        An engine that takes no connections is out at once. For any other fault a replica is out only while as many others of its
        release and role are in: a release that is bad as a whole must show in its figures, and not vanish from them.
        """
        if engine_id != replica.engine_id:
            return
        replica.failures += 1
        now_s = self._clock_s()
        if failure is LegFailure.CONNECT:
            replica.unreachable = True
            replica.eject(now_s)
        elif replica.failures >= self._eject_after or replica.spec.readiness is ReplicaReadiness.SUSPECT or replica.out_until_s is not None:
            peers = [item for item in self.replicas.values() if item.spec.release == replica.spec.release and item.role is replica.role]
            out = sum(item.out_until_s is not None for item in peers if item is not replica)
            if out < len(peers) // 2:
                replica.eject(now_s)
            else:
                replica.out_until_s = None
