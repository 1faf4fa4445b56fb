"""From sums to what people read: quantiles, shares and rates of one group, and single points of a chart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from metrics.domain.engines import COUNTS
from metrics.domain.goodput import MET, OF, goodput
from metrics.domain.histogram import Histogram
from metrics.domain.types import Metric, Route
from metrics.domain.views import GroupView, LatencyView
from metrics.domain.window import Figures

TOTAL = "total"
GROUPINGS = ("release", "unit", TOTAL)
_P99_KNOWN_FROM = 299  # below, the largest sample is under the true p99 with a chance of over 5%: 0.99 ^ 299 = 0.0495
_PHASES = {"queue": Metric.QUEUE, "prefill": Metric.PREFILL, "transfer": Metric.KV_TRANSFER, "first-step": Metric.FIRST_STEP}
_LATENCIES = (Metric.TTFT, Metric.ITL, Metric.E2E)
_STATISTICS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "mean": None}
_COUNTED = (
    *("requests", "errors", "cancelled", "tokens.in", "tokens.out", "tokens.cached", "tokens.uncached", "tokens.remote", MET, OF),
    *("kv.failed", "kv.recomputed", "kv.expired"),
)
_RATIOS = {
    "error_ratio": ("errors", "requests"),
    "cached_ratio": ("tokens.cached", "tokens.in"),
    "local_ratio": ("local", "requests"),
    "remote_ratio": ("tokens.remote", "tokens.in"),  # of prompt tokens: whose KV came from prefill
    "goodput_ratio": (MET, OF),
}
GAUGE, ENGINE = "gauge.", "engine."  # how the lines of gauges begin, and those of what engines count
GOODPUT = "goodput"  # the line of requests within the limits, a second and GPU
GPUS = "gpus"  # the gauge of a unit's
_MEANT = ("_use", "_ratio", "_hit")  # gauges that are shares: over units they are averaged, all others add up
LOCAL = "local"  # requests by route, beside the routers' own counters
ROUTED = "routed"  # requests that had the choice


def group_of(by: str, *, unit: str, prefill_release: str, decode_release: str) -> str:
    """The group that a series belongs to; a pair of different releases is a group of its own, `ds-flash@7+ds-flash@8`."""
    if by == "unit":
        return unit
    if by == TOTAL:
        return TOTAL
    return decode_release if prefill_release == decode_release else f"{prefill_release}+{decode_release}"


def group_order(group: str) -> list[tuple[int, str]]:
    """Sort key under which release 9 stands before release 10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", group)]


def with_route(counters: Mapping[str, int], route: str) -> dict[str, int]:
    """Counters with the requests counted by route too."""
    requests = counters.get("requests", 0)
    return {**counters, LOCAL: requests if route == Route.LOCAL else 0, ROUTED: 0 if route == Route.AGGREGATED else requests}


def gauge_sum(name: str, values: Sequence[float]) -> float:
    """One figure of several units' gauges."""
    return sum(values) / len(values) if name.endswith(_MEANT) else sum(values)


def latency_view(histogram: Histogram) -> LatencyView:
    """Quantiles of a histogram."""
    return LatencyView(
        n=histogram.count,
        mean_s=histogram.mean,
        p50_s=histogram.quantile(0.5),
        p90_s=histogram.quantile(0.9),
        p99_s=histogram.quantile(0.99),
        p99_is_bound=histogram.count < _P99_KNOWN_FROM,
    )


def ratio(part: int, whole: int) -> float | None:
    """None when nothing was counted."""
    return part / whole if whole else None


def group_view(
    group: str,
    figures: Figures,
    gauges: Mapping[str, float],
    span_s: float,
    gpus: float | None = None,
    engines: Mapping[str, float] | None = None,
) -> GroupView:
    """One group's figures over `span_s` seconds, in which it held so many GPUs; its counters come from `with_route`.

    `engines` is what its engines counted in that time.
    """
    counters = figures.counters
    requests = counters.get("requests", 0)
    return GroupView(
        group=group,
        requests=requests,
        per_s=requests / span_s,
        error_ratio=ratio(counters.get("errors", 0), requests),
        errors_by_class=_under("errors.", counters),
        latencies={metric: latency_view(figures.histograms.get(metric.value, Histogram())) for metric in Metric},
        tokens_in=counters.get("tokens.in", 0),
        tokens_out=counters.get("tokens.out", 0),
        cached_ratio=ratio(counters.get("tokens.cached", 0), counters.get("tokens.in", 0)),
        local_ratio=ratio(counters.get(LOCAL, 0), counters.get(ROUTED, 0)),
        reasons=_under("reason.", counters),
        gauges=dict(gauges),
        remote=counters.get(ROUTED, 0) - counters.get(LOCAL, 0),
        kv_lost=counters.get("kv.failed", 0) + counters.get("kv.recomputed", 0),
        slowest=figures.split.tail(),
        goodput=goodput(counters, gpus, span_s),
        cancelled=counters.get("cancelled", 0),
        remote_ratio=ratio(counters.get("tokens.remote", 0), counters.get("tokens.in", 0)),
        kv_failed=counters.get("kv.failed", 0),
        kv_recomputed=counters.get("kv.recomputed", 0),
        engines=dict(engines or {}),
    )


def _under(prefix: str, counters: Mapping[str, int]) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in sorted(counters.items()) if name.startswith(prefix)}


def metric_of(name: str) -> Metric | None:
    """The histogram that a chart's line needs: `ttft.p99`, `transfer.p99` and `phase.queue` (a mean) need one, `requests` does not."""
    head, _, tail = name.partition(".")
    if head == "phase":
        return _PHASES.get(tail)
    if head in _PHASES and tail in _STATISTICS:
        return _PHASES[head]
    return Metric(head) if head in _LATENCIES and tail in _STATISTICS else None


def is_line(name: str) -> bool:
    """Whether a chart can draw it."""
    if metric_of(name) is not None or name in _COUNTED or name in _RATIOS or name == GOODPUT:
        return True
    head, _, tail = name.partition(".")
    return is_tail(name) or (head in ("errors", "reason", "gauge") and bool(tail)) or (head == "engine" and tail in COUNTS)


def is_tail(name: str) -> bool:
    """Whether it is a phase of the slowest requests: `tail.queue`, a mean over those at or over the p99 of TTFT."""
    head, _, phase = name.partition(".")
    return head == "tail" and phase in _PHASES


def line_value(name: str, figures: Figures, span_s: float) -> float | None:
    """One point: latencies in seconds, counts a second, shares from 0 to 1. None when there is nothing to take it of."""
    metric = metric_of(name)
    if metric is not None:
        histogram = figures.histograms.get(metric.value)
        quantile = None if name.startswith("phase.") else _STATISTICS[name.partition(".")[2]]
        return None if histogram is None else histogram.mean if quantile is None else histogram.quantile(quantile)
    if is_tail(name):
        tail = figures.split.tail()
        return None if tail is None else getattr(tail, f"{name.partition('.')[2].replace('-', '_')}_s")
    if name in _RATIOS:
        part, whole = _RATIOS[name]
        return ratio(figures.counters.get(part, 0), figures.counters.get(ROUTED if part == LOCAL else whole, 0))
    return figures.counters.get(name, 0) / span_s


def goodput_value(counters: Mapping[str, int], gpus: float | None, span_s: float) -> float | None:
    """One point of `goodput`. None without GPUs, and where requests were held against no limits."""
    if not gpus or (counters.get("requests", 0) and not counters.get(OF, 0)):
        return None
    return counters.get(MET, 0) / span_s / gpus


def is_mean(name: str) -> bool:
    """Whether a line needs no more of its histogram than count and sum."""
    head, _, tail = name.partition(".")
    return head == "phase" or _STATISTICS.get(tail, 0.0) is None


def is_count(name: str) -> bool:
    """Whether a step without a request is a 0 in its line, and not a gap."""
    return metric_of(name) is None and name not in _RATIOS and not is_tail(name)
