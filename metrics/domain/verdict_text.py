"""A verdict in a sentence: `ttft-p99: 9 of 1,204 requests over 1,500 ms (0.75%, 0.34-1.41%), evidence 0.06 : 1, rolls back at 300 : 1`."""

from __future__ import annotations

from denvweb.core.units import format_duration
from metrics.domain.alarm_text import ERROR_RATE, ITL, KV_EFFECTIVE, KV_USE, PREFILL_QUEUE, TIMED
from metrics.domain.spell import LASTS_S
from metrics.domain.views import AlarmVerdict


def sentence_of(verdict: AlarmVerdict) -> str:
    """`ttft-p99: 9 of 1,204 requests over 1,500 ms (0.75%, 0.34-1.41%), evidence 0.06 : 1, rolls back at 300 : 1; health proved`."""
    parts = [
        f"{verdict.alarm}: {counted_text(verdict)}, evidence {ratio_text(verdict.evidence)}, rolls back at {ratio_text(verdict.trips_at)}"
    ]
    if verdict.over is not None:
        parts.append(_beside(verdict))
    elif verdict.relative_evidence is not None:
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
    elif verdict.over is not None:
        pass
    elif verdict.health >= verdict.health_needs:
        parts.append("health proved")
    elif verdict.evidence < verdict.trips_at:
        parts.append(f"health {ratio_text(verdict.health)}, proved at {ratio_text(verdict.health_needs)}")
    return "; ".join(parts)


def counted_text(verdict: AlarmVerdict) -> str:
    """`9 of 1,204 requests over 1,500 ms (0.75%, 0.34-1.41%)`."""
    trials = "readings" if verdict.metric == KV_USE else "synthetic requests" if verdict.synthetic else "requests"
    if not verdict.n or verdict.rate is None or verdict.rate_low is None or verdict.rate_high is None:
        return f"no {trials} yet"
    bounds = f"{_percent(verdict.rate_low)}-{_percent(verdict.rate_high)}%"
    span = f"({_percent(verdict.rate)}%, {bounds})"
    if verdict.metric == ITL:
        return f"{_percent(verdict.rate)}% of token gaps over {_limit(verdict)} in {verdict.n:,} requests ({bounds})"
    allowed = f", limit {_percent(verdict.p0)}%" if verdict.metric in (ERROR_RATE, KV_EFFECTIVE) and verdict.over is None else ""
    return f"{verdict.k:,.0f} of {verdict.n:,} {trials} {_happened(verdict)} {span}{allowed}"


def _happened(verdict: AlarmVerdict) -> str:
    """What the k of n did."""
    if verdict.metric == ERROR_RATE:
        return "failed"
    if verdict.metric == KV_EFFECTIVE:
        return "were computed again, their KV never moved"
    if verdict.metric == PREFILL_QUEUE:
        return f"found over {verdict.limit or 0:,.0f} requests waiting for prefill"
    return f"over {_limit(verdict)}"


def _limit(verdict: AlarmVerdict) -> str:
    if verdict.limit is not None:
        return f"{_percent(verdict.limit)}% of the KV cache"
    shown = f"{(verdict.limit_s or 0) * 1000:,.6g} ms"
    if verdict.over is None or verdict.base_s is None:
        return shown
    return f"{shown}, {verdict.over:.4g} times the baseline's {verdict.base_s * 1000:,.4g} ms"


def _beside(verdict: AlarmVerdict) -> str:
    """The other arm of a comparison."""
    if verdict.base_s is None and verdict.metric in (ITL, *TIMED):
        return "the release beside it had no figures in the hour before, so there is nothing to compare with"
    if not verdict.baseline_n:
        return "no requests on the baseline yet"
    rate = f"{_percent(verdict.baseline_k / verdict.baseline_n)}% of {verdict.baseline_n:,}"
    if verdict.base_s is None:
        return f"on the baseline {rate}, of which {verdict.over or 1:.4g} times are allowed"
    return f"on the baseline {rate} over {verdict.base_s * 1000:,.4g} ms"


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.2f}".rstrip("0").rstrip(".")


def ratio_text(ratio: float) -> str:
    """Evidence for people: two digits are all that it is good for."""
    if ratio < 0.01:
        return "under 0.01 : 1"
    if ratio > 1_000_000:
        return "over 1,000,000 : 1"
    return f"{float(f'{ratio:.2g}'):,.12g} : 1"
