"""What came to a stage, as the sizing takes it."""

from __future__ import annotations

from datetime import datetime

from fleets.domain.simulator.arrivals import Process
from metrics import selectors as metrics
from releases.domain.serving import process_of

MEASURED_OVER_S = 3600.0


def traffic_of(*, stage: str, now: datetime) -> Process | None:
    """The last hour's; None when nothing came, or without tokens."""
    total = metrics.metrics_view(stage=stage, span_s=MEASURED_OVER_S, now=now).total
    if not total.requests or not total.tokens_in or not total.tokens_out:
        return None
    return process_of(total.per_s, total.tokens_in / total.requests, total.tokens_out / total.requests, total.cached_ratio)
