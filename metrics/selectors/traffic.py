"""What scaling looks at: how much came in the last minute, its heaviest ten seconds of late, and 99th percentiles."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from metrics.domain.types import Metric, Route
from metrics.domain.window import Figures
from metrics.models import WINDOW_S, IngestedReport
from metrics.selectors.windows import fine_windows, floor_to

SPAN_S = 60  # of rates
LATE_S = 20  # within which the heaviest ten seconds count as "now": looks are up to ten apart
PERCENTILES_S = 30


@dataclass(frozen=True, slots=True)
class TrafficView:
    """Users' requests that ended, of a whole stage. None without a sample; `age_s` None: no router has ever reported.

    `prompts` are those that a prefill pool computed, or an aggregated one.
    """

    age_s: float | None
    requests: int
    prompts_per_s: float
    prompt_tokens_per_s: float
    burst_tokens_per_s: float
    newest_tokens_per_s: float  # of the last whole ten seconds
    prompt_tokens: float | None  # of a mean prompt
    output_tokens: float | None  # of a mean answer
    ttft_p99_s: float | None
    queue_p99_s: float | None
    itl_p99_s: float | None
    prefill_share: float | None  # of TTFT that went to the queue and to prefill


def traffic_view(*, stage: str, now: datetime) -> TrafficView:
    """Two queries. The ten seconds that are not over yet count for percentiles, and for no rate."""
    last = IngestedReport.objects.filter(stage=stage).order_by("-received_at").values_list("received_at", flat=True).first()
    open_at = floor_to(now, WINDOW_S)
    begin = open_at - timedelta(seconds=SPAN_S)
    whole, recent = Figures(), Figures()
    tokens: dict[datetime, int] = {}
    prompts = 0
    rows = fine_windows(stage=stage, begin=begin, end=now)
    for start_at, route, counters, histograms in rows.values_list("start_at", "route", "counters", "histograms").iterator():
        if start_at < open_at:
            whole.add_counters(counters)
            if route != Route.LOCAL:
                prompts += counters.get("requests", 0)
                tokens[start_at] = tokens.get(start_at, 0) + counters.get("tokens.in", 0)
        if start_at >= open_at - timedelta(seconds=PERCENTILES_S):
            recent.add_kept({}, {}, histograms)
    late_from = open_at - timedelta(seconds=LATE_S)
    requests = whole.counters.get("requests", 0)
    return TrafficView(
        age_s=(now - last).total_seconds() if last is not None else None,
        requests=requests,
        prompts_per_s=prompts / SPAN_S,
        prompt_tokens_per_s=sum(tokens.values()) / SPAN_S,
        burst_tokens_per_s=max((count for at, count in tokens.items() if at >= late_from), default=0) / WINDOW_S,
        newest_tokens_per_s=tokens.get(open_at - timedelta(seconds=WINDOW_S), 0) / WINDOW_S,
        prompt_tokens=sum(tokens.values()) / prompts if prompts else None,
        output_tokens=whole.counters.get("tokens.out", 0) / requests if requests else None,
        ttft_p99_s=recent.histogram(Metric.TTFT).quantile(0.99),
        queue_p99_s=recent.histogram(Metric.QUEUE).quantile(0.99),
        itl_p99_s=recent.histogram(Metric.ITL).quantile(0.99),
        prefill_share=_prefill_share(recent),
    )


def _prefill_share(figures: Figures) -> float | None:
    ttft_s = figures.histogram(Metric.TTFT).sum
    return (figures.histogram(Metric.QUEUE).sum + figures.histogram(Metric.PREFILL).sum) / ttft_s if ttft_s > 0 else None
