"""What the evidence says of a canary, as a value for the rollout's judge and as a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from math import log

from denvweb.core.units import format_duration
from metrics.domain.alarm import ERROR_RATE, ITL, NOTHING
from metrics.domain.beta import interval
from metrics.domain.evidence import (
    ArmState,
    RelativeState,
    arm_begin_anew,
    arm_look,
    as_ratio,
    log_arm_evidence,
    log_health_of,
    log_relative_evidence,
    plainly_broken,
    relative_begin_anew,
    relative_look,
)
from metrics.domain.spell import LASTS_S, Spell, spell_look
from metrics.domain.types import AlarmCount, AlarmSpec
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
    baseline = arms.baseline or state.baseline.seen
    if _fell(state.canary.seen, arms.canary) or _fell(state.baseline.seen, baseline):
        state = state_begin_anew(spec, state)  # rows are gone; counts that fall have no meaning as a continuation
    return JudgeState(
        canary=arm_look(spec, state.canary, arms.canary),
        baseline=arm_look(spec, state.baseline, baseline),
        relative=relative_look(state.relative, arms.canary, baseline),
        spell=spell_look(spec.p0, state.spell, arms.canary, now),
    )


def _fell(before: AlarmCount, now: AlarmCount) -> bool:
    return now.n < before.n or now.k < before.k - 1e-6


def verdict_of(spec: AlarmSpec, state: JudgeState, arms: Arms, *, alpha: float, fresh: bool) -> AlarmVerdict:
    """The verdict on a state that has looked at `arms`. Without fresh figures nothing counts as healthy."""
    count = arms.canary
    low, high = interval(count.n, count.k) if count.n else (None, None)
    log_evidence, log_health = log_arm_evidence(spec, state.canary), log_health_of(spec, count)
    at_once = spec.metric == ERROR_RATE and plainly_broken(count.n, count.k)
    with_baseline = arms.baseline is not None
    lasted_s = None if with_baseline else state.spell.lasted_s
    counts = lasted_s is None or lasted_s >= LASTS_S
    verdict = AlarmVerdict(
        alarm=spec.name,
        metric=spec.metric,
        limit_s=spec.limit_s,
        p0=spec.p0,
        n=count.n,
        k=count.k,
        rate=count.k / count.n if count.n else None,
        rate_low=low,
        rate_high=high,
        evidence=as_ratio(log_evidence),
        trips_at=1 / alpha,
        tripped=at_once or (counts and log_evidence >= -log(alpha)),
        health=as_ratio(log_health),
        health_needs=HEALTH_NEEDS,
        healthy=fresh and log_health >= log(HEALTH_NEEDS),
        baseline_n=state.baseline.seen.n if with_baseline else 0,
        baseline_k=state.baseline.seen.k if with_baseline else 0.0,
        baseline_breaching=with_baseline and log_arm_evidence(spec, state.baseline) >= -log(alpha),
        relative_evidence=as_ratio(log_relative_evidence(state.relative)) if with_baseline else None,
        fresh=fresh,
        at_once=at_once,
        lasted_s=lasted_s,
    )
    return replace(verdict, sentence=sentence_of(verdict))


def sentence_of(verdict: AlarmVerdict) -> str:
    """`ttft-p99: 9 of 1,204 requests over 1,500 ms (0.75%, 0.34-1.41%), evidence 0.06 : 1, rolls back at 300 : 1; health proved`."""
    parts = [f"{verdict.alarm}: {_counted(verdict)}, evidence {ratio_text(verdict.evidence)}, rolls back at {ratio_text(verdict.trips_at)}"]
    if verdict.relative_evidence is not None:
        parts.append(f"against the baseline {ratio_text(verdict.relative_evidence)}")
    if verdict.baseline_breaching:
        parts.append("the baseline breaks the limit too")
    if verdict.lasted_s is not None and verdict.evidence >= verdict.trips_at:
        lasted, needed = format_duration(verdict.lasted_s), format_duration(LASTS_S)
        parts.append(f"over the limit for {lasted} without a break, {needed} count where no old release serves beside it")
    if verdict.at_once:
        parts.append("errors are plainly over 20%")
    if not verdict.fresh:
        parts.append("no figures came in lately")
    elif verdict.health >= verdict.health_needs:
        parts.append("health proved")
    elif verdict.evidence < verdict.trips_at:
        parts.append(f"health {ratio_text(verdict.health)}, proved at {ratio_text(verdict.health_needs)}")
    return "; ".join(parts)


def _counted(verdict: AlarmVerdict) -> str:
    if not verdict.n or verdict.rate is None or verdict.rate_low is None or verdict.rate_high is None:
        return "no requests yet"
    bounds = f"{_percent(verdict.rate_low)}-{_percent(verdict.rate_high)}%"
    span = f"({_percent(verdict.rate)}%, {bounds})"
    limit = f"{(verdict.limit_s or 0) * 1000:,.6g} ms"
    if verdict.metric == ERROR_RATE:
        return f"{verdict.k:,.0f} of {verdict.n:,} requests failed {span}, limit {_percent(verdict.p0)}%"
    if verdict.metric == ITL:
        return f"{_percent(verdict.rate)}% of token gaps over {limit} in {verdict.n:,} requests ({bounds})"
    return f"{verdict.k:,.0f} of {verdict.n:,} requests over {limit} {span}"


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.2f}".rstrip("0").rstrip(".")


def ratio_text(ratio: float) -> str:
    """Evidence for people: two digits are all that it is good for."""
    if ratio < 0.01:
        return "under 0.01 : 1"
    if ratio > 1_000_000:
        return "over 1,000,000 : 1"
    return f"{float(f'{ratio:.2g}'):,.12g} : 1"
