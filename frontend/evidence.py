"""Evidence of alarms as a person weighs it: n, k, the rate with its interval, and odds on a log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frontend import words
from metrics.domain.views import AlarmVerdict

GAUGE_WIDTH = 200
EVEN_X = 85.0  # where 1 : 1 stands
TRIP_X = 189.0  # where the rollback stands


@dataclass(frozen=True, slots=True)
class Evidence:
    """One row of the table."""

    verdict: AlarmVerdict
    limit_text: str  # `over 1,500 ms ≤ 1%`
    rate: str
    interval: str
    baseline: str
    gauge_x: float
    odds: str
    trips_at: str
    health: str
    health_needs: str


def gauge_x(evidence: float, trips_at: float) -> float:
    """The bar's end: logarithmic, 1 : 1 and the tripping point at fixed places."""
    if evidence <= 0:
        return 2.0
    per_decade = (TRIP_X - EVEN_X) / math.log10(max(trips_at, 1.01))
    return min(float(GAUGE_WIDTH), max(2.0, EVEN_X + math.log10(evidence) * per_decade))


def _limit_text(verdict: AlarmVerdict) -> str:
    allowed = f"≤ {words.share(verdict.p0)}"
    if verdict.over is not None:
        return f"at most {words.share(verdict.over - 1)} over the release beside it"
    if verdict.metric == "kv-effective":
        return f"not moved {allowed}"
    if verdict.metric == "prefill-queue":
        return f"over {verdict.limit or 0:,.0f} waiting {allowed}"
    if verdict.metric == "kv-use":
        return f"readings over {words.share(verdict.limit or 0)} {allowed}"
    if verdict.limit_s is None:
        return allowed
    over = f"{verdict.limit_s * 1000:,.0f} ms"
    return f"{'gaps ' if verdict.metric == 'itl' else ''}over {over} {allowed}"


def _baseline(verdict: AlarmVerdict) -> str:
    if not verdict.baseline_n:
        return ""
    return f"{verdict.baseline_k / verdict.baseline_n * 100:.2f}%"


def weigh(verdict: AlarmVerdict) -> Evidence:
    """One alarm's evidence in words and as a gauge."""
    known = verdict.rate is not None
    interval = ""
    if verdict.rate_low is not None and verdict.rate_high is not None:
        interval = f"({verdict.rate_low * 100:.2f}–{verdict.rate_high * 100:.2f}%)"
    return Evidence(
        verdict=verdict,
        limit_text=_limit_text(verdict),
        rate=f"{verdict.rate * 100:.2f}%" if known and verdict.rate is not None else "",
        interval=interval,
        baseline=_baseline(verdict),
        gauge_x=round(gauge_x(verdict.evidence, verdict.trips_at), 1),
        odds=words.odds(verdict.evidence),
        trips_at=words.odds(verdict.trips_at),
        health=words.odds(verdict.health),
        health_needs=words.odds(verdict.health_needs),
    )


def table(verdicts: Sequence[AlarmVerdict], *, ended: bool) -> tuple[Evidence, ...]:
    """All rows; of synthetic requests only what was counted. None of a rollout that has ended without a request to judge it by."""
    if ended and not any(verdict.n for verdict in verdicts):
        return ()
    return tuple(weigh(verdict) for verdict in verdicts if verdict.n or not verdict.synthetic)
