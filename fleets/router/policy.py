"""The stage as this router sees it now: units, replicas, what runs on them, who is taken out; and the choice for each request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fleets.domain import routing
from fleets.domain.protocol import ConditionalPolicy, ReplicaReadiness, RouteReplica, RouterTable, RouteUnit, UnitGauge
from fleets.domain.routing import Decision, Reason
from fleets.domain.stall import Pulse
from fleets.domain.types import Role
from fleets.router.admission import Gate
from fleets.router.moved import Ledger
from fleets.router.offers import Offers
from fleets.router.openai import Ask
from fleets.router.prefix import Blocks, PrefixIndex
from fleets.router.taker import LegFailure
from fleets.router.wires import NIXL, WIRES, Wire

log = logging.getLogger(__name__)

EJECT_FIRST_S = 1.0
EJECT_CAP_S = 30.0
_AGGREGATED = Decision(False, Reason.AGGREGATED)
_REMOTE = Decision(True, Reason.REMOTE)
_NONE: frozenset[str] = frozenset()


class ReplicaState:
    """One engine: where it is, how busy we keep it, and whether it is out."""

    __slots__ = (
        "address",
        "answered_s",
        "answers",
        "draining",
        "engine_id",
        "failures",
        "hung",
        "kv_use",
        "ledger",
        "name",
        "offers",
        "offers_at_s",
        "out_until_s",
        "outs",
        "pulse",
        "release",
        "role",
        "running",
        "running_elsewhere",
        "spec",
        "tokens",
        "tokens_elsewhere",
        "unreachable",
        "used_seq",
    )

    def __init__(self, spec: RouteReplica) -> None:
        self.name = spec.replica
        self.take(spec)
        self.running = 0  # requests there, those of this router's other processes included
        self.tokens = 0  # to prefill there, likewise
        self.running_elsewhere = self.tokens_elsewhere = 0  # the others' part of the two, as last told
        self.kv_use: float | None = None
        self.used_seq = 0
        self.ledger = Ledger()
        self.offers: Offers = {}  # its models, by name
        self.offers_at_s = float("-inf")  # when it was last asked for them
        self.answered_s = float("-inf")  # when the poller's last question that it answered was asked
        self.reset()

    def reset(self) -> None:
        """As new: it restarted, or served well."""
        self.failures = 0
        self.outs = 0
        self.out_until_s: float | None = None
        self.answers = True  # to the poller, when last asked
        self.unreachable = False  # it is out because it took no connection, or answered nothing
        self.pulse: Pulse | None = None
        self.hung = ""  # why it is taken for hung

    def share(self, running: int, tokens: int) -> None:
        """What other processes of this router have there."""
        self.running += running - self.running_elsewhere
        self.tokens += tokens - self.tokens_elsewhere
        self.running_elsewhere, self.tokens_elsewhere = running, tokens

    def take(self, spec: RouteReplica) -> None:
        """What the newest table says of it."""
        self.spec = spec
        self.role = spec.role
        self.engine_id = spec.engine_id
        self.release = spec.release
        self.address = (spec.host, spec.port)
        self.draining = spec.readiness is ReplicaReadiness.DRAINING

    @property
    def tensor_parallel(self) -> int:
        """See `wires.Host`."""
        return self.spec.tensor_parallel

    def usable(self, now_s: float) -> bool:
        """Whether a new request may go to it. One that was out gets a single request at first."""
        if self.draining:
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

    __slots__ = ("aggregated", "decodes", "gate", "hands_over", "inflight", "needs_prefill", "prefills", "spec", "used_seq", "wire")

    def __init__(self, spec: RouteUnit, gate: Gate) -> None:
        self.spec = spec
        self.gate = gate
        self.inflight = 0
        self.used_seq = 0
        self.prefills: tuple[ReplicaState, ...] = ()
        self.decodes: tuple[ReplicaState, ...] = ()  # or those that do both
        self.aggregated = False  # it has no roles
        self.wire: Wire = NIXL
        self.hands_over = False  # whether the router speaks its protocol
        self.needs_prefill = False  # its decodes never work alone

    def take(self, spec: RouteUnit, states: Sequence[ReplicaState]) -> None:
        """What the newest table says of it."""
        self.spec = spec
        self.prefills = tuple(state for state in states if state.role is Role.PREFILL)
        self.decodes = tuple(state for state in states if state.role is not Role.PREFILL)
        self.aggregated = bool(self.decodes) and self.decodes[0].role is Role.AGGREGATED
        self.hands_over = spec.protocol in WIRES
        self.wire = WIRES.get(spec.protocol, NIXL)
        self.needs_prefill = not self.aggregated and not self.wire.local_prefill

    @property
    def load(self) -> float:
        """Requests for each replica that decodes."""
        return self.inflight / max(1, len(self.decodes))

    def gauge(self) -> UnitGauge:
        """For the report."""
        return UnitGauge(
            unit=self.spec.unit,
            prefill_queue=self.gate.depth,
            prefill_inflight=sum(replica.running - replica.running_elsewhere for replica in self.prefills),
            decode_inflight=sum(replica.running - replica.running_elsewhere for replica in self.decodes),
            hung={replica.engine_id: replica.hung for replica in (*self.prefills, *self.decodes) if replica.hung},
            ejected=tuple(replica.name for replica in (*self.prefills, *self.decodes) if replica.out_until_s is not None),
            kv_use=max((replica.kv_use for replica in self.decodes if replica.kv_use is not None), default=None),
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
    counted: str = ""  # the release that it counts to as in flight


class Want(Protocol):
    """What the choice depends on, of one request."""

    pin: Pin | None
    only: str | None  # the release that it is for, and no other; None for users' requests
    avoid: frozenset[str]  # replicas that failed this request already
    release: str | None  # picked for it already: a second try is not a second request
    ask: Ask
    samples: int
    session_point: float | None  # the session's hash in [0, 1)

    @property
    def blocks(self) -> Blocks:
        """The prompt's hashes."""

    @property
    def prompt_tokens(self) -> int:
        """Of the whole prompt."""

    def held_tokens(self, held_bytes: int) -> int:
        """Tokens of so many prompt bytes."""


class Stage:
    """The table in force with the live state of its units and replicas."""

    def __init__(
        self,
        *,
        clock_s: Callable[[], float],
        make_gate: Callable[[Callable[[int], bool]], Gate],
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
        self.indexed = False
        self.apart = _NONE  # replicas of units that have prefill and decode apart
        self.has_whole = False  # whether any unit has not

    @property
    def weights(self) -> Mapping[str, int]:
        """Of the table in force."""
        return self.table.weights if self.table else {}

    @property
    def tokenizer(self) -> str:
        """That of the release with the most weight; all of a stage's releases are of one model."""
        units = [unit.spec for unit in self.units.values() if unit.spec.tokenizer]
        return max(units, key=lambda spec: self.weights.get(spec.release, 0)).tokenizer if units else ""

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
            states = [self._replica(item) for item in spec.replicas]
            replicas.update((state.name, state) for state in states)
            unit.take(spec, states)
            units[spec.unit] = unit
        for gone in self.replicas.keys() - replicas.keys():
            self.index.forget(gone)
        self.units, self.replicas = units, replicas
        self.has_whole = any(unit.aggregated for unit in units.values())
        self.apart = frozenset(item.replica for unit in units.values() if not unit.aggregated for item in unit.spec.replicas)
        self.indexed = len(replicas) > 1  # else nothing depends on who holds what
        self._by_release = {}
        for unit in units.values():
            if unit.spec.routable:
                self._by_release.setdefault(unit.spec.release, []).append(unit)
            unit.gate.admit()

    def _new_unit(self, spec: RouteUnit) -> UnitState:
        def room(inflight: int) -> bool:
            """For one more leg: neither too many requests for the replicas, nor all of them with enough to compute."""
            replicas, enough = _usable(unit.prefills, _NONE, self._clock_s()), unit.spec.prefill_tokens
            if inflight >= self._prefill_inflight * max(1, len(replicas)):
                return False
            if unit.wire.concurrent:  # prefill's leg lasts until decode has room for the KV: its tokens do not say how busy prefill is
                return True
            for replica in replicas:
                if replica.tokens < enough:
                    return True
            return not replicas

        unit = UnitState(spec, self._make_gate(room))
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
            state.offers, state.offers_at_s = {}, float("-inf")
        state.take(spec)
        return state

    def enter(self, choice: Choice) -> None:
        """A request is in flight there; it stays counted to the release that the unit had, whatever tables come."""
        unit = choice.unit
        unit.inflight += 1
        choice.counted = release = unit.spec.release
        self.inflight[release] = self.inflight.get(release, 0) + 1

    def leave(self, choice: Choice) -> None:
        """It is over."""
        choice.unit.inflight -= 1
        release = choice.counted
        left = self.inflight[release] - 1
        if left:
            self.inflight[release] = left
        else:
            del self.inflight[release]

    # -- choice --

    def choose(self, want: Want) -> Choice | None:
        """Release, unit, decode replica, and local or remote; None when no unit can take it."""
        if want.pin is not None:
            return self._pinned(want, want.pin)
        release = want.release or want.only or self._release(want.session_point)
        if release is None:
            return None
        now_s = self._clock_s()
        unit = self._unit(release, want, now_s)
        fallback = unit is None
        if unit is None and want.only is None:
            others = sorted((name for name in self._shares.weights if name != release), key=lambda name: -self._shares.weights[name])
            unit = next((found for name in others if (found := self._unit(name, want, now_s)) is not None), None)
        if unit is None:
            return None
        decodes = _usable(unit.decodes, want.avoid, now_s)
        if len(decodes) == 1:
            decode = decodes[0]
            held = 0 if unit.aggregated else self._held(decodes, want)[0]
        else:
            all_held = self._held(decodes, want)
            picked = routing.pick_decode(decodes, all_held)
            if picked is None:
                return None
            decode, held = picked, all_held[decodes.index(picked)]
        return self._choice(unit, decode, held, want, release, fallback, now_s)

    def serves(self, release: str) -> bool:
        """Whether a release has a share of the traffic and a unit that can take it now."""
        return bool(self.weights.get(release)) and any(
            _usable(unit.decodes, _NONE, self._clock_s()) for unit in self._by_release.get(release, ())
        )

    def can_do_whole(self) -> bool:
        """Whether an aggregated unit takes users' requests now."""
        now_s = self._clock_s()
        weighted = (unit for release in self._shares.weights for unit in self._by_release.get(release, ()))
        return self.has_whole and any(unit.aggregated and _usable(unit.decodes, _NONE, now_s) for unit in weighted)

    def _release(self, session_point: float | None) -> str | None:
        if session_point is None:
            return self._shares.pick()
        return routing.sticky_release(self._shares.weights, session_point)

    def _unit(self, release: str, want: Want, now_s: float) -> UnitState | None:
        units = self._by_release.get(release, ())
        if len(units) == 1:
            return units[0] if _able(units[0], want.avoid, now_s) else None
        usable = [unit for unit in units if _able(unit, want.avoid, now_s)]
        if len(usable) < 2:
            return usable[0] if usable else None
        held = [max(self._held((*unit.decodes, *unit.prefills), want)) for unit in usable]
        return routing.pick_unit(usable, held)

    def _held(self, replicas: Sequence[ReplicaState], want: Want) -> list[int]:
        """Tokens of the prompt that each of `replicas` holds."""
        blocks = want.blocks
        if not blocks.hashes:
            return [0] * len(replicas)
        if len(replicas) == 1:
            return [want.held_tokens(self.index.held_by(blocks, replicas[0].name))]
        return [want.held_tokens(size) for size in self.index.held_bytes(blocks, [replica.name for replica in replicas])]

    def _choice(
        self, unit: UnitState, decode: ReplicaState, held_tokens: int, want: Want, release: str, fallback: bool, now_s: float
    ) -> Choice:
        if unit.aggregated:
            decision = _AGGREGATED
        elif unit.needs_prefill:
            decision = _REMOTE
        else:
            decision = routing.decide(
                self.conditional,
                want.prompt_tokens,
                held_tokens,
                unit.gate.depth,
                decode.kv_use,
                has_prefill=unit.hands_over and bool(_usable(unit.prefills, want.avoid, now_s)),
                samples=want.samples,
                reads_prompt=want.ask.reads_prompt,
            )
        self._seq += 1
        unit.used_seq = decode.used_seq = self._seq
        return Choice(unit, decode, decision, held_tokens, release, fallback)

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
        replicas = _usable(choice.unit.prefills, want.avoid, self._clock_s())
        picked = replicas[0] if len(replicas) == 1 else routing.pick_prefill(replicas, self._held(replicas, want), want.prompt_tokens)
        if picked is not None:
            self._seq += 1
            picked.used_seq = self._seq
        return picked

    def prefill_size(self, choice: Choice, want: Want) -> int:
        """Tokens that the prefill replica with most of the prompt would have to compute."""
        return max(0, want.prompt_tokens - max(self._held(choice.unit.prefills, want), default=0))

    # -- health --

    def served(self, replica: ReplicaState, engine_id: str) -> None:
        """An answer without fault, by the process that was asked."""
        if (replica.failures or replica.out_until_s is not None) and engine_id == replica.engine_id:
            replica.reset()

    def hangs(self, replica: ReplicaState, why: str, *, stuck: bool) -> None:
        """It is out at once, whatever its peers do: what hangs serves nobody. A silent one is back when it answers; one that is `stuck`
        is told to the control plane, which has it replaced, and is back with its next process or when its figures move again."""
        if replica.out_until_s is None:
            log.warning("replica %s is taken out: %s", replica.name, why)
        replica.unreachable = replica.unreachable or not stuck
        replica.hung = why if stuck else ""
        replica.eject(self._clock_s())

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


def _able(unit: UnitState, avoid: frozenset[str], now_s: float) -> bool:
    """Whether the unit can take a request."""
    return bool(_usable(unit.decodes, avoid, now_s)) and (not unit.needs_prefill or bool(_usable(unit.prefills, avoid, now_s)))


def _usable(replicas: Sequence[ReplicaState], avoid: frozenset[str], now_s: float) -> Sequence[ReplicaState]:
    """Those that a new request may go to."""
    if not avoid:
        for replica in replicas:
            if replica.out_until_s is not None or replica.draining:
                break
        else:
            return replicas
    return [replica for replica in replicas if replica.usable(now_s) and replica.name not in avoid]
