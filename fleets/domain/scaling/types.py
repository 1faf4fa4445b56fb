"""The nouns of scaling: what can be moved, between what, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleets.domain.types import Role


class Knob(StrEnum):
    """A number that may change at run time. Those of roles are replicas of one serving unit; all units of a stage are alike."""

    UNITS = "units"
    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"

    @property
    def role(self) -> Role | None:
        """The pool whose replicas it counts; None for units."""
        return None if self is Knob.UNITS else Role(self.value)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a number may be, both ends included."""

    least: int
    most: int

    @property
    def fixed(self) -> bool:
        """Whether only a release changes it."""
        return self.least == self.most

    def clamp(self, count: int) -> int:
        """The nearest number inside."""
        return max(self.least, min(self.most, count))


@dataclass(frozen=True, slots=True)
class Plant:
    """What is scaled: its ranges, its GPUs, its limits, and what one replica is thought to carry until that has been seen."""

    bounds: Mapping[Knob, Bounds]  # a number that a person holds is a range of one
    gpus: Mapping[Knob, int]  # of one replica, by role
    budget: int  # GPUs that one serving unit may have in its domain
    ttft_limit_s: float | None  # at the 99th percentile, as the stage's alarms have it
    itl_limit_s: float | None
    prefill_tokens_per_s: float  # prompt tokens that one prefill replica computes
    decode_sequences: float  # that one decode replica carries at once within the ITL limit and its KV memory
    bring_up_s: float  # from the decision until a replica serves
    local_prefill_below: int  # tokens, as the release has it
    local_prefill_most: int  # tokens over which a local prefill alone would break the ITL limit

    @property
    def roles(self) -> tuple[Knob, ...]:
        """The pools of a unit."""
        return tuple(knob for knob in self.bounds if knob is not Knob.UNITS)


@dataclass(frozen=True, slots=True)
class Signals:
    """One look at a stage. Rates and sequences are of the whole stage; None is "not known", never 0.

    Latencies are 99th percentiles over the last half minute or so: a mean hides the wait of those who wait.
    """

    at_s: float
    age_s: float | None  # of the newest report of a router; None: there is none
    counts: Mapping[Knob, int]  # in force
    ready: Mapping[Knob, int]  # replicas that serve, of all units together; and units that serve
    ttft_p99_s: float | None = None
    queue_p99_s: float | None = None  # in the router, for a prefill place
    itl_p99_s: float | None = None
    prefill_share: float | None = None  # of TTFT that is spent in the queue and in prefill
    prompts_per_s: float | None = None  # that arrived for the prefill pool, over the last minute
    prompt_tokens_per_s: float | None = None  # of these, uncached
    burst_tokens_per_s: float | None = None  # the same over the last ten seconds
    prefilled_tokens_per_s: float | None = None  # that the prefill pool did compute
    prefill_queue: int | None = None  # prompts that wait now
    sequences: float | None = None  # being decoded now
    kv_use: float | None = None  # of the fullest decode replica, 0 to 1


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that was seen within half a minute: what the next burst is expected to be like."""

    at_s: float  # when the half minute began
    prompts_per_s: float = 0.0
    prompt_tokens_per_s: float = 0.0
    burst_tokens_per_s: float = 0.0
    sequences: float = 0.0
    kv_replicas: float = 0.0  # decode replicas that would be full
    lifted: dict[Knob, int] = field(default_factory=dict)  # replicas that a p99 near its limit asked for, whatever was expected


@dataclass(frozen=True, slots=True)
class Moved:
    """The last move of one number, and when it last turned round."""

    at_s: float
    up: bool
    turned_s: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """All that is remembered from one look to the next."""

    peaks: tuple[Peak, ...] = ()  # oldest first
    moved: dict[Knob, Moved] = field(default_factory=dict)
    local_prefill_below: int | None = None  # None: as the release has it
    below_moved_s: float | None = None  # when that limit last moved
    tokens_per_s: float | None = None  # of one prefill replica, seen while prompts queued
    replica_sequences: float | None = None  # of one decode replica, seen at the ITL limit
    queued_looks: int = 0  # in a row at which prompts waited


@dataclass(frozen=True, slots=True)
class Decision:
    """What the numbers should be from now on. `sentence` has the figures that it was taken on."""

    counts: dict[Knob, int]
    local_prefill_below: int
    memory: Memory
    sentence: str
    cool_down_s: dict[Knob, float] = field(default_factory=dict)  # until a number that would move may

    def moves(self, before: Mapping[Knob, int]) -> dict[Knob, tuple[int, int]]:
        """Numbers that change, as (from, to)."""
        return {knob: (before[knob], count) for knob, count in self.counts.items() if count != before[knob]}
