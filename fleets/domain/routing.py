"""Which release, unit and replicas a request goes to, and whether its prefill is remote. Pure: the router hands in what it sees.

Candidates are Protocols, not values: a router asks thousands of times a second, and copying every replica's load
into a fresh value would cost more than the decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from fleets.domain.protocol import ConditionalPolicy

KV_SPARE_BELOW_RATIO = 0.80  # a decode replica with less of its KV in use has room to prefill for itself
KV_FULL_ABOVE_RATIO = 0.95  # above this a decode replica is taken only when all are
LOCAL_RISE_MAX = 8.0  # how far a full prefill queue may raise the local limit: a long prompt would stall decode for all
OVERTAKEN_MAX = 3  # of those who wait for prefill, the one who came first is overtaken by so many shorter ones
LOAD_SLACK_RATIO = 1.25  # a replica that holds the prefix may be this much busier than the idlest ...
LOAD_SLACK_REQUESTS = 2.0  # ... or this many requests


class Reason(StrEnum):
    """Why a request was computed the way it was; counted as `reason.<value>`."""

    SHORT = "short"  # local: the whole prompt is under the limit
    CACHED = "cached"  # local: decode holds so much of the prompt that the rest is under the limit
    REMOTE = "remote"  # the uncached part is at or over the limit
    QUEUE_FULL_LOCAL = "queue-full-local"  # local only because the prefill queue is over its threshold and decode has KV to spare
    NO_PREFILL = "no-prefill"  # local: the unit has no usable prefill replica
    PREFILL_FAILED_LOCAL = "prefill-failed-local"  # local: prefill failed, and nothing had been sent to the client
    KV_LOST_LOCAL = "kv-lost-local"  # local: decode could not fetch prefill's KV, and nothing had been sent to the client
    SAMPLES_LOCAL = "samples-local"  # local: n > 1 cannot share one KV handoff
    PROMPT_LOGPROBS_LOCAL = "prompt-logprobs-local"  # local: decode computes such a prompt itself, whatever KV it is given
    AGGREGATED = "aggregated"  # the unit has no roles
    FALLBACK_RELEASE = "fallback-release"  # counted beside the others: the picked release had no usable unit


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether prefill is remote, and why."""

    remote: bool
    reason: Reason


# Made once: a frozen value costs more to make than the decision to come to.
_NO_PREFILL = Decision(False, Reason.NO_PREFILL)
_SAMPLES_LOCAL = Decision(False, Reason.SAMPLES_LOCAL)
_PROMPT_LOGPROBS_LOCAL = Decision(False, Reason.PROMPT_LOGPROBS_LOCAL)
_SHORT = Decision(False, Reason.SHORT)
_CACHED = Decision(False, Reason.CACHED)
_QUEUE_FULL_LOCAL = Decision(False, Reason.QUEUE_FULL_LOCAL)
_REMOTE = Decision(True, Reason.REMOTE)


class ReplicaLoad(Protocol):
    """A replica as the router sees it. `kv_use` is 0 to 1, None while unknown; `used_seq` says when it was last picked."""

    running: int  # requests that this router has on it
    tokens: int  # prompt tokens of these that it still has to compute
    kv_use: float | None
    used_seq: int


class UnitLoad(Protocol):
    """A unit as the router sees it."""

    used_seq: int

    @property
    def load(self) -> float:
        """Requests in flight and queued, for each replica that can decode."""


ReplicaT = TypeVar("ReplicaT", bound=ReplicaLoad)
UnitT = TypeVar("UnitT", bound=UnitLoad)


class ExactShares:
    """Hands out names so that after any number of picks each name's count is within 1 of its exact share.

    The k-th pick of a name with share w/W may not come before pick floor((k-1)W/w) and must have come by ceil(kW/w);
    of those that may, the earliest deadline goes first. Deadlines of this form can always be met (Baruah, Cohen, Plaxton,
    Varvel: "Proportionate progress", Algorithmica 15, 1996), which bounds the deviation below 1. Smooth weighted round robin
    does not. Integers only, so nothing drifts.
    """

    __slots__ = ("_counts", "_only", "_picked", "_total", "weights")

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.weights: dict[str, int] = {name: weight for name, weight in sorted(weights.items()) if weight > 0}
        self._total = sum(self.weights.values())
        self._only = next(iter(self.weights)) if len(self.weights) == 1 else None
        self._counts = dict.fromkeys(self.weights, 0)
        self._picked = 0

    def pick(self) -> str | None:
        """The next name; None when no name has weight."""
        if self._only is not None:
            return self._only
        best, best_deadline = None, 0
        for name, weight in self.weights.items():
            count = self._counts[name]
            if count * self._total // weight > self._picked:
                continue
            deadline = -(-(count + 1) * self._total // weight)
            if best is None or deadline < best_deadline:
                best, best_deadline = name, deadline
        if best is None:
            return None
        self._counts[best] += 1
        self._picked += 1
        if self._picked == self._total:  # every count equals its weight here: start over, so that numbers stay small
            self._counts = dict.fromkeys(self.weights, 0)
            self._picked = 0
        return best


def release_number(release: str) -> int:
    """7 of `ds-flash@7`; 0 when there is none."""
    tail = release.rpartition("@")[2]
    return int(tail) if tail.isdigit() else 0


def sticky_release(weights: Mapping[str, int], point: float) -> str | None:
    """The release of a session whose hash is `point`, in [0, 1).

    The newest release takes the low end, so while a canary's weight grows sessions only move to it and never back and forth,
    and every router agrees without speaking to the others.
    """
    names = sorted((name for name, weight in weights.items() if weight > 0), key=lambda name: (-release_number(name), name))
    at = point * sum(weights[name] for name in names)
    for name in names:
        at -= weights[name]
        if at < 0:
            return name
    return names[-1] if names else None


def local_limit(policy: ConditionalPolicy, *, prefill_queue: int, decode_kv_use: float | None) -> float:
    """Uncached tokens below which decode prefills for itself.

    Over the queue's threshold the limit grows with the queue, up to `LOCAL_RISE_MAX` times, as long as decode has KV to spare;
    an unknown KV use is not spare.
    """
    if prefill_queue <= policy.prefill_queue_above or decode_kv_use is None or decode_kv_use >= KV_SPARE_BELOW_RATIO:
        return float(policy.local_prefill_below)
    rise = 2.0 * prefill_queue / max(1, policy.prefill_queue_above)
    return policy.local_prefill_below * min(LOCAL_RISE_MAX, rise)


def decide(
    policy: ConditionalPolicy,
    prompt_tokens: int,
    held_tokens: int,
    prefill_queue: int,
    decode_kv_use: float | None,
    *,
    has_prefill: bool = True,
    samples: int = 1,
    reads_prompt: bool = False,
) -> Decision:
    """Local or remote prefill for one request to a unit with roles; `held_tokens` is what the decode replica already has.

    `reads_prompt`: the client wants log-probabilities of the prompt itself.
    """
    if not has_prefill:
        return _NO_PREFILL
    if samples > 1:
        return _SAMPLES_LOCAL
    if reads_prompt:
        return _PROMPT_LOGPROBS_LOCAL
    below = policy.local_prefill_below
    if prompt_tokens < below:
        return _SHORT
    uncached = prompt_tokens - held_tokens
    if uncached < below:
        return _CACHED
    if uncached < local_limit(policy, prefill_queue=prefill_queue, decode_kv_use=decode_kv_use):
        return _QUEUE_FULL_LOCAL
    return _REMOTE


def pick_unit(units: Sequence[UnitT], held_tokens: Sequence[int]) -> UnitT | None:
    """The unit that holds most of the prompt among those that are not much busier than the idlest; then the idlest.

    `held_tokens[i]` is the longest prefix that any replica of `units[i]` holds.
    """
    if not units:
        return None
    bound = min(unit.load for unit in units) * LOAD_SLACK_RATIO + LOAD_SLACK_REQUESTS
    near = [(unit, held) for unit, held in zip(units, held_tokens, strict=True) if unit.load <= bound]
    return min(near, key=lambda pair: (-pair[1], pair[0].load, pair[0].used_seq))[0]


def pick_prefill(replicas: Sequence[ReplicaT], held_tokens: Sequence[int], prompt_tokens: int) -> ReplicaT | None:
    """The replica that would finish this prompt first: what it still has to compute, plus what it lacks of the prompt."""
    if not replicas:
        return None
    cost = [replica.tokens + max(0, prompt_tokens - held) for replica, held in zip(replicas, held_tokens, strict=True)]
    index = min(range(len(replicas)), key=lambda i: (cost[i], replicas[i].running, replicas[i].used_seq))
    return replicas[index]


def pick_decode(replicas: Sequence[ReplicaT], held_tokens: Sequence[int]) -> ReplicaT | None:
    """The replica that holds most of the prompt among those that run few requests and have KV left; then by KV use and requests."""
    if not replicas:
        return None
    pairs = list(zip(replicas, held_tokens, strict=True))
    roomy = [pair for pair in pairs if (pair[0].kv_use or 0.0) < KV_FULL_ABOVE_RATIO] or pairs
    bound = min(replica.running for replica, _ in roomy) * LOAD_SLACK_RATIO + LOAD_SLACK_REQUESTS
    near = [pair for pair in roomy if pair[0].running <= bound]
    return min(near, key=lambda pair: (-pair[1], _tenths(pair[0].kv_use), pair[0].running, pair[0].used_seq))[0]


def next_in_line(sizes: Sequence[int], overtaken: int) -> int:
    """Who goes next of those who wait for prefill: the shortest, the earliest among equals. `sizes` are tokens in order of arrival.

    A queue served in order makes everybody late once it is longer than users wait, and mostly for the sake of a few long prompts.
    The first in line has been passed over `overtaken` times; after `OVERTAKEN_MAX` it is its turn, so nobody waits for ever.
    """
    return 0 if overtaken >= OVERTAKEN_MAX else min(range(len(sizes)), key=sizes.__getitem__)


def _tenths(kv_use: float | None) -> int:
    """KV use in tenths: a finer comparison would send every request of one second to the same replica."""
    return int((kv_use or 0.0) * 10)
