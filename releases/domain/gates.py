"""Gates: what the alarms say of a release that is being judged. Values in, verdict out.

Going back needs an absolute breach, and one relative to the old release where that serves the same minutes: a burst moves both.
Going on needs a proof of health or enough requests without a breach, and figures that are fresh: nothing passes by silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from denvweb.core.units import format_ratio
from metrics.domain.types import SYNTHETIC, AlarmSpec
from metrics.domain.views import AlarmVerdict
from releases.domain.rollout_types import Reason
from releases.domain.spec_types import RolloutPolicy

ERRORS_PLAINLY = 0.20  # of requests; over it nobody waits for statistics
ERRORS_FEWEST = 10
GUARD = AlarmSpec(name="errors-plainly", metric="error-rate", p0=ERRORS_PLAINLY)
"""Counted on every stage, also on one that sets no alarm."""

SPEAKS_AGAINST = 20.0  # evidence at 5%
_LARGEST = 1e18  # evidence grows without bound, and JSON has no infinity


class Ruling(StrEnum):
    """What follows from the verdicts."""

    PASS = "pass"  # nothing speaks against going on
    HOLD = "hold"  # wait, for the reason given
    BACK = "back"  # go back


@dataclass(frozen=True, slots=True)
class Judgement:
    """A ruling with its reason and evidence."""

    ruling: Ruling
    code: str = ""
    sentence: str = ""
    urgent: bool = False
    evidence: dict[str, Any] = field(default_factory=dict)


def judge(verdicts: Sequence[AlarmVerdict], *, doubted_s: float | None, policy: RolloutPolicy, overruled: bool = False) -> Judgement:
    """Whether an alarm is broken. `doubted_s` is how long an unconfirmed breach has lasted; None when there was none at the last look."""
    plain = next((verdict for verdict in verdicts if _errors_plainly(verdict)), None)
    if plain is not None:
        return _plain(plain, overruled)
    tripped = sorted((verdict for verdict in verdicts if verdict.tripped), key=lambda verdict: -verdict.evidence)
    for verdict in tripped:
        if verdict.relative_evidence is None or verdict.relative_evidence >= verdict.trips_at:
            return Judgement(Ruling.BACK, "breach", told(verdict), evidence=evidence_of(verdict))
    for verdict in tripped:
        if verdict.baseline_breaching:
            if overruled:
                continue
            sentence = f"{told(verdict)}; the old release is over the limit too, so the cause is elsewhere and going back would not help"
            return Judgement(Ruling.HOLD, Reason.BASELINE_BREACHING, sentence, evidence=evidence_of(verdict))
        overwhelming = verdict.evidence >= verdict.trips_at**2 and _not_acquitted(verdict)
        if overwhelming or (doubted_s is not None and doubted_s >= policy.max_wait_s):
            return Judgement(Ruling.BACK, "breach", told(verdict), evidence=evidence_of(verdict))
        sentence = f"{told(verdict)}; not proved worse than the old release, whose figures it is compared with"
        return Judgement(Ruling.HOLD, Reason.BREACH_UNCONFIRMED, sentence, evidence=evidence_of(verdict))
    return Judgement(Ruling.PASS)


def _not_acquitted(verdict: AlarmVerdict) -> bool:
    """Whether the comparison speaks against the new release, if not loudly, or has too little of the old one to speak at all."""
    return (verdict.relative_evidence or 0) >= SPEAKS_AGAINST or verdict.baseline_n * verdict.p0 < 1


def _errors_plainly(verdict: AlarmVerdict) -> bool:
    return (
        verdict.metric == "error-rate" and verdict.n >= ERRORS_FEWEST and verdict.rate_low is not None and verdict.rate_low > ERRORS_PLAINLY
    )


def _plain(verdict: AlarmVerdict, overruled: bool) -> Judgement:
    ratio = verdict.k / verdict.n
    made = "synthetic requests" if verdict.synthetic else "requests"
    sentence = f"errors: {verdict.k:g} of {verdict.n:,} {made} failed ({format_ratio(ratio)}), plainly over {ERRORS_PLAINLY:.0%}"
    if verdict.baseline_n >= ERRORS_FEWEST and verdict.baseline_k / verdict.baseline_n > ratio / 2 and not overruled:
        both = f"{sentence}; of the old release's, {verdict.baseline_k:g} of {verdict.baseline_n:,}: the cause is elsewhere"
        return Judgement(Ruling.HOLD, Reason.BASELINE_BREACHING, both, evidence=evidence_of(verdict))
    return Judgement(Ruling.BACK, "errors", sentence, urgent=True, evidence=evidence_of(verdict))


def hold_over(
    verdicts: Sequence[AlarmVerdict], *, policy: RolloutPolicy, waited_s: float, hold_s: float, counted: Mapping[str, int]
) -> Judgement:
    """Whether a hold that lasted `waited_s` of `hold_s` may end. `counted` is each alarm's n when it began."""
    if waited_s < hold_s:
        return Judgement(Ruling.HOLD, "", _missing(verdicts, policy, counted))
    if not verdicts or not any(verdict.n for verdict in verdicts):
        return Judgement(Ruling.HOLD, Reason.NO_DATA, "no request was counted on the new release, and nothing is promoted by silence")
    stale = [verdict.alarm for verdict in verdicts if not verdict.fresh]
    if stale:
        sentence = f"figures for {_and(stale)} have stopped coming in, and nothing is promoted by silence"
        return Judgement(Ruling.HOLD, Reason.STALE_METRICS, sentence)
    doubted = next((verdict for verdict in verdicts if verdict.relative_evidence is None and verdict.evidence >= verdict.trips_at), None)
    if doubted is not None:  # nothing is compared with it, and it has not lasted yet
        return Judgement(Ruling.HOLD, Reason.BREACH_UNCONFIRMED, told(doubted), evidence=evidence_of(doubted))
    missing = _missing(verdicts, policy, counted)
    if missing:
        return Judgement(Ruling.HOLD, Reason.INSUFFICIENT_SAMPLES, missing)
    return Judgement(Ruling.PASS)


def _missing(verdicts: Sequence[AlarmVerdict], policy: RolloutPolicy, counted: Mapping[str, int]) -> str:
    """What is not proved yet; empty when all is. Where denv makes requests of its own, an alarm is proved on those or on users'."""
    by_alarm: dict[str, list[AlarmVerdict]] = {}
    for verdict in verdicts:
        by_alarm.setdefault(verdict.alarm.removesuffix(SYNTHETIC), []).append(verdict)
    open_ = []
    for alarm, asked in by_alarm.items():
        if any(verdict.tripped for verdict in asked) or not any(_proved(verdict, policy, counted) for verdict in asked):
            open_.append(f"{alarm} has {' and '.join(_short(verdict, policy, counted) for verdict in asked)}")
    return "; ".join(open_)


def _new(verdict: AlarmVerdict, counted: Mapping[str, int]) -> int:
    return verdict.n - counted.get(verdict.alarm, 0)


def _proved(verdict: AlarmVerdict, policy: RolloutPolicy, counted: Mapping[str, int]) -> bool:
    new = _new(verdict, counted)
    return (verdict.healthy and new > 0) or new >= policy.min_requests


def _short(verdict: AlarmVerdict, policy: RolloutPolicy, counted: Mapping[str, int]) -> str:
    own = "synthetic " if verdict.synthetic else ""
    plain = verdict.over is not None or verdict.alarm.removesuffix(SYNTHETIC) == GUARD.name
    health = "" if plain else f", health {_ratio(verdict.health)} : 1 of {_ratio(verdict.health_needs)} : 1"
    return f"{own}n={_new(verdict, counted):,} of {policy.min_requests:,}{health}"


def told(verdict: AlarmVerdict) -> str:
    """`itl-p99: n=1,204 k=61, 5.1% over the limit of 1%; evidence 340 : 1, rolls back at 300 : 1`."""
    return verdict.sentence or (
        f"{verdict.alarm}: n={verdict.n:,} k={verdict.k:g}, {format_ratio(verdict.rate)} over the limit of {format_ratio(verdict.p0)}; "
        f"evidence {_ratio(verdict.evidence)} : 1, rolls back at {_ratio(verdict.trips_at)} : 1"
    )


def evidence_of(verdict: AlarmVerdict) -> dict[str, Any]:
    """What the journal keeps of a verdict."""
    return {
        "alarm": verdict.alarm,
        "synthetic": verdict.synthetic,
        "n": verdict.n,
        "k": verdict.k,
        "rate": verdict.rate,
        "evidence": min(verdict.evidence, _LARGEST),
        "trips_at": verdict.trips_at,
        "baseline_n": verdict.baseline_n,
        "baseline_k": verdict.baseline_k,
        "relative_evidence": None if verdict.relative_evidence is None else min(verdict.relative_evidence, _LARGEST),
    }


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)
