"""The values of the rollout state machine: its state, what it observes, what it decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.refusal import Refusal
from fleets.domain.types import UnitPlacement, UnitSpec
from fleets.domain.views import RoutersView, UnitView
from metrics.domain.types import AlarmSpec
from metrics.domain.views import AlarmVerdict
from releases.domain.freezes import Frozen
from releases.domain.plan import Move
from releases.domain.spec_types import RolloutPolicy


class Phase(StrEnum):
    """Where the journey is."""

    PENDING = "pending"  # waits for its turn: an earlier stage of the same release, or its first tick
    ROLLING = "rolling"  # bringing up, shifting, holding
    HELD = "held"  # waits, for the reason in `reason`; alarms and rollback requests still count
    BAKING = "baking"  # all traffic is on the new release, alarms still roll back
    SUCCEEDED = "succeeded"  # the new release is the stage's stable one
    ROLLING_BACK = "rolling-back"  # no edge leads forward out of here
    ROLLED_BACK = "rolled-back"  # the old release has all traffic and all its units
    ROLLBACK_BLOCKED = "rollback-blocked"  # the way back does not get on, a person is needed; it goes on trying
    SUPERSEDED = "superseded"  # a newer release took its place, or it never began because the stage before it did not succeed


ENDED = frozenset({Phase.SUCCEEDED, Phase.ROLLED_BACK, Phase.SUPERSEDED})
BACKWARD = frozenset({Phase.ROLLING_BACK, Phase.ROLLBACK_BLOCKED, Phase.ROLLED_BACK})


class Reason(StrEnum):
    """Why a rollout is HELD."""

    MANUAL = "manual"  # a person paused it
    FROZEN = "frozen"  # a freeze window is on; the way back stays open
    APPROVAL = "approval"  # the canary is proved healthy, a person decides on the rest
    INSUFFICIENT_SAMPLES = "insufficient_samples"  # too few requests for a proof of health before max-wait
    NO_DATA = "no_data"  # no figures at all
    STALE_METRICS = "stale_metrics"  # figures have stopped coming in
    BASELINE_BREACHING = "baseline_breaching"  # old and new are over the limit alike: the cause is elsewhere
    BREACH_UNCONFIRMED = "breach_unconfirmed"  # the new release is over the limit, but not proved worse than the old one
    CAPACITY = "capacity"  # the unit to bring up finds no room
    NODES_UNREACHABLE = "nodes_unreachable"  # the nodes of the new unit are silent
    WEIGHTS_UNVERIFIED = "weights_unverified"  # no router has confirmed the weights


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a rollout goes back, with its evidence. `urgent`: the release that is left is not fit to carry anything meanwhile."""

    code: str  # `requested`, `breach`, `no-ready-canary`, `unit-failed`, `crash-loop`, `errors`, `deadline`
    sentence: str
    at: datetime
    urgent: bool = False
    actor: str = "system"
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step of the plan that is over: when, and what was known of the alarms when its watch ended, in their own words."""

    step: int
    began_at: datetime
    ended_at: datetime
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutState:
    """All that a rollout remembers between two ticks. `old` is the release it came from and goes back to; None: nothing ran before.

    A rollback after a success is a rollout of kind `rollback` that begins in ROLLING_BACK, with `old` its target and `new` what it leaves.
    """

    stage: str
    model: str
    old: UnitSpec | None
    new: UnitSpec
    replicas: int
    policy: RolloutPolicy
    kind: str = "rollout"
    fleets: tuple[str, ...] = ()  # where units of the new release may stand
    fleets_back: tuple[str, ...] = ()  # and those of the old one
    alarms: tuple[AlarmSpec, ...] = ()
    conditional: ConditionalPolicy = field(default_factory=ConditionalPolicy)
    moves: tuple[Move, ...] = ()
    phase: Phase = Phase.PENDING
    cursor: int = 0  # index of the present move
    entered_at: datetime | None = None  # when it began; moved on by the time spent paused or blind
    held_at: datetime | None = None
    reason: str = ""  # of HELD, or what the present move waits for
    why: str = ""
    weight_bp: int = 0  # of the new release, wanted
    judged_since: datetime | None = None  # evidence counts from here
    counted: dict[str, int] = field(default_factory=dict)  # n of each alarm when the present hold began
    doubted_at: datetime | None = None  # since when a breach is unconfirmed
    paused: bool = False
    approved: bool = False  # the present APPROVE, or the present hold, is waived by a person
    full: bool = False  # all further holds and approvals are waived
    overruled: bool = False  # a person goes on although both releases are over the limit
    draining: dict[str, datetime] = field(default_factory=dict)  # unit -> since when nothing new is routed to it
    bring_up_s: float | None = None  # how long a unit took, from its creation to a proof by a real request
    replicas_back: int = 0  # units that the old release had, and gets back
    cause: Cause | None = None
    done: tuple[StepDone, ...] = ()  # in their order
    left: UnitSpec | None = None  # of the rollout that this one superseded, until nothing of it is left
    break_glass: str = ""  # who goes on in spite of freeze windows, and why
    table_generation: int = 0  # of the routing table at the last look that decided something; an older look decides nothing

    @property
    def move(self) -> Move | None:
        """The present move; None when all are done."""
        return self.moves[self.cursor] if self.cursor < len(self.moves) else None


@dataclass(frozen=True, slots=True)
class RollbackWish:
    """A person's, or a program's, committed request to go back."""

    requested_by: str
    via: str
    reason: str = ""


class Turn(StrEnum):
    """Whether a rollout that waits for an earlier stage may begin."""

    NOW = "now"  # it waits for nothing
    LATER = "later"  # the one before it is under way
    NEVER = "never"  # the one before it was rolled back or superseded


Placer = Callable[[UnitSpec, UnitPlacement | None], UnitPlacement | Refusal]


@dataclass(frozen=True, slots=True)
class Observations:
    """What is seen in one look. `place` finds room for a unit in what is free now, near the planned place if it can."""

    units: tuple[UnitView, ...]
    routers: RoutersView
    place: Placer
    verdicts: tuple[AlarmVerdict, ...] = ()
    rollback: RollbackWish | None = None
    turn: Turn = Turn.NOW
    frozen: Frozen | None = None


@dataclass(frozen=True, slots=True)
class CreateUnit:
    """Have a new unit stand at a placement."""

    slot: int
    spec: UnitSpec
    placement: UnitPlacement


@dataclass(frozen=True, slots=True)
class RetargetUnit:
    """Turn a unit into another release where it stands."""

    unit: str
    spec: UnitSpec


@dataclass(frozen=True, slots=True)
class StopUnit:
    """End a unit and free its GPUs."""

    unit: str


@dataclass(frozen=True, slots=True)
class SetRoutable:
    """Let routers send to a unit, or not any more; its engines stay up either way."""

    unit: str
    routable: bool


@dataclass(frozen=True, slots=True)
class RequestProbe:
    """Ask the routers for a real request to this very unit."""

    unit: str


@dataclass(frozen=True, slots=True)
class SetWeights:
    """Share of the traffic by release, basis points; they sum to 10,000, or there are none before the first release."""

    weights: dict[str, int]


@dataclass(frozen=True, slots=True)
class SetStable:
    """The release that the stage now stands on; empty: none."""

    release: str


@dataclass(frozen=True, slots=True)
class HoldRelease:
    """Keep automation from deploying a release until a person lifts it."""

    release: str
    reason: str


Effect = CreateUnit | RetargetUnit | StopUnit | SetRoutable | RequestProbe | SetWeights | SetStable | HoldRelease


@dataclass(frozen=True, slots=True)
class Event:
    """One row for the journal."""

    kind: str
    sentence: str
    level: str = "info"
    actor: str = "system"
    evidence: dict[str, Any] = field(default_factory=dict)
    via: str = ""  # `alarm` where one spoke; else as the decision came about


@dataclass(frozen=True, slots=True)
class Decision:
    """What one step comes to. Effects are idempotent; the order they are in is the order to apply them in."""

    state: RolloutState
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
