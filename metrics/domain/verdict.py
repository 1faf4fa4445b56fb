"""What the evidence says of a canary, as a value for the rollout's judge and as a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from math import log

from metrics.domain.alarm import NOTHING
from metrics.domain.alarm_text import ERROR_RATE
from metrics.domain.beta import interval
from metrics.domain.evidence import (
    ArmState,
    RelativeState,
    arm_begin_anew,
    arm_look,
    as_ratio,
    baseline_count,
    log_arm_evidence,
    log_health_of,
    log_relative_evidence,
    plainly_broken,
    relative_begin_anew,
    relative_look,
    tolerance_of,
)
from metrics.domain.spell import LASTS_S, Spell, spell_look
from metrics.domain.types import AlarmCount, AlarmSpec
from metrics.domain.verdict_text import sentence_of
from metrics.domain.views import AlarmVerdict

HEALTH_NEEDS = 20.0  # health is proved at 5%


_NEW_ARM = ArmState()
_NEW_RELATIVE = RelativeState()
_NO_SPELL = Spell()


@dataclass(frozen=True, slots=True)
class JudgeState:
    """All that the test of one alarm of one rollout must remember."""

    canary: ArmState = _NEW_ARM
    baseline: ArmState = _NEW_ARM
    relative: RelativeState = _NEW_RELATIVE
    spell: Spell = _NO_SPELL


@dataclass(frozen=True, slots=True)
class AlarmAsk:
    """Which alarms of a rollout are looked at: all that its canary release did since a moment, each with a budget of `alpha`.

    Without a baseline release the comparison rests.
    """

    rollout: str
    stage: str
    alarms: tuple[AlarmSpec, ...]
    canary_release: str
    baseline_release: str | None
    since: datetime
    alpha: float

    @property
    def counted(self) -> tuple[AlarmSpec, ...]:
        """Those that can be judged: without a baseline, alarms that are nothing but a comparison rest."""
        return tuple(spec for spec in self.alarms if self.baseline_release is not None or spec.over is None)


@dataclass(frozen=True, slots=True)
class Arms:
    """Counts so far of the canary, and of the baseline over the same minutes (None: there is none)."""

    canary: AlarmCount = NOTHING
    baseline: AlarmCount | None = None


def state_begin_anew(spec: AlarmSpec, state: JudgeState) -> JudgeState:
    """Count from nothing without forgetting what was spent and proved: a new step has begun."""
    return JudgeState(
        canary=arm_begin_anew(spec, state.canary),
        baseline=arm_begin_anew(spec, state.baseline),
        relative=relative_begin_anew(state.relative),
    )


def state_look(spec: AlarmSpec, state: JudgeState, arms: Arms, now: datetime) -> JudgeState:
    """The state after a look. The same counts again change nothing but the time for which a breach has lasted."""
    if spec.over is not None:
        return _compare(spec, state, arms)
    baseline = arms.baseline or state.baseline.seen
    if _fell(state.canary.seen, arms.canary) or _fell(state.baseline.seen, baseline):
        state = state_begin_anew(spec, state)  # rows are gone; counts that fall have no meaning as a continuation
    return JudgeState(
        canary=arm_look(spec, state.canary, arms.canary),
        baseline=arm_look(spec, state.baseline, baseline),
        relative=relative_look(state.relative, arms.canary, baseline),
        spell=spell_look(spec.p0, state.spell, arms.canary, now),
    )


def _compare(spec: AlarmSpec, state: JudgeState, arms: Arms) -> JudgeState:
    """A look at a comparison: only whose exceedances they are matters, and no limit."""
    canary, baseline = arms.canary, baseline_count(spec, arms.baseline) if arms.baseline else state.relative.baseline
    if _fell(state.relative.canary, canary) or _fell(state.relative.baseline, baseline):
        state = state_begin_anew(spec, state)
    return replace(state, relative=relative_look(state.relative, canary, baseline, tolerance_of(spec)))


def _fell(before: AlarmCount, now: AlarmCount) -> bool:
    return now.n < before.n or now.k < before.k - 1e-6


def counted_verdict(spec: AlarmSpec, count: AlarmCount, *, log_evidence: float, trips_at: float, tripped: bool) -> AlarmVerdict:
    """What every verdict says: the counts with their interval, and the evidence. Of health and of a baseline nothing is said yet."""
    low, high = interval(count.n, count.k) if count.n else (None, None)
    return AlarmVerdict(
        alarm=spec.name,
        metric=spec.metric,
        limit_s=spec.limit_s if spec.base_s is None or spec.over is None else spec.base_s * spec.over,
        limit=spec.limit,
        p0=spec.p0,
        over=spec.over,
        base_s=spec.base_s,
        n=count.n,
        k=count.k,
        rate=count.k / count.n if count.n else None,
        rate_low=low,
        rate_high=high,
        evidence=as_ratio(log_evidence),
        trips_at=trips_at,
        tripped=tripped,
        health=0.0,
        health_needs=HEALTH_NEEDS,
        healthy=False,
        synthetic=spec.synthetic,
    )


def verdict_of(spec: AlarmSpec, state: JudgeState, arms: Arms, *, alpha: float, fresh: bool) -> AlarmVerdict:
    """The verdict on a state that has looked at `arms`. Without fresh figures nothing counts as healthy."""
    found = _compared(spec, state, arms, alpha) if spec.over is not None else _limited(spec, state, arms, alpha, fresh)
    found = replace(found, fresh=fresh)
    return replace(found, sentence=sentence_of(found))


def _limited(spec: AlarmSpec, state: JudgeState, arms: Arms, alpha: float, fresh: bool) -> AlarmVerdict:
    """Of an alarm that has a limit."""
    count = arms.canary
    log_evidence, log_health = log_arm_evidence(spec, state.canary), log_health_of(spec, count)
    at_once = spec.metric == ERROR_RATE and plainly_broken(count.n, count.k)
    with_baseline = arms.baseline is not None
    lasted_s = None if with_baseline else state.spell.lasted_s
    lasts = lasted_s is None or lasted_s >= LASTS_S
    tripped = at_once or (lasts and log_evidence >= -log(alpha))
    return replace(
        counted_verdict(spec, count, log_evidence=log_evidence, trips_at=1 / alpha, tripped=tripped),
        health=as_ratio(log_health),
        healthy=fresh and log_health >= log(HEALTH_NEEDS),
        baseline_n=state.baseline.seen.n if with_baseline else 0,
        baseline_k=state.baseline.seen.k if with_baseline else 0.0,
        baseline_breaching=with_baseline and log_arm_evidence(spec, state.baseline) >= -log(alpha),
        relative_evidence=as_ratio(log_relative_evidence(state.relative)) if with_baseline else None,
        at_once=at_once,
        lasted_s=lasted_s,
    )


def _compared(spec: AlarmSpec, state: JudgeState, arms: Arms, alpha: float) -> AlarmVerdict:
    """Of a comparison. It has no proof of health of its own: a hold needs its `min-requests` without a breach."""
    evidence, baseline = log_relative_evidence(state.relative), state.relative.baseline
    found = counted_verdict(spec, arms.canary, log_evidence=evidence, trips_at=1 / alpha, tripped=evidence >= -log(alpha))
    return replace(found, baseline_n=baseline.n, baseline_k=baseline.k, relative_evidence=as_ratio(evidence))
