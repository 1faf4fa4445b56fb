"""Alarms as people write them: which there are, what each limit must look like, and what is wrong with one.

ttft-p99: 1500ms                                  at most 1% of the requests over 1.5 s
itl-p99: { max: 60ms, over-baseline: 25% }        that, and a p99 at most 25% over that of the release beside it
error-rate: { over-baseline: 50% }                a share of errors at most 1.5 times the other release's
kv-effective: 99%                                 of requests with remote prefill, whose KV really moved
prefill-queue: 32                                 requests that at most 1% of the requests may find waiting
kv-use: 90%                                       of a decode replica's KV cache, in at most 1% of its readings
"""

from __future__ import annotations

from denvweb.core.units import parse_duration_s, parse_ratio
from denvweb.core.words import nearest
from metrics.domain.types import AlarmSpec

ERROR_RATE, KV_EFFECTIVE, PREFILL_QUEUE, KV_USE = "error-rate", "kv-effective", "prefill-queue", "kv-use"
ITL = "itl"
TIMED = ("ttft", "queue", "kv-transfer", "e2e")  # in the order of `AlarmCounter.request`'s values
QUANTILES = {"p50": 0.5, "p90": 0.1, "p95": 0.05, "p99": 0.01}  # and the share that may be over each
SHARES = (ERROR_RATE, KV_EFFECTIVE)  # their limit is itself a share of the requests
SELDOM = 0.01  # how often a queue or a cache may be over its limit
_LATENCIES = (f"{metric}-{quantile}" for metric in ("ttft", ITL, "e2e", "queue", "kv-transfer") for quantile in QUANTILES)
ALARM_NAMES = (*_LATENCIES, ERROR_RATE, KV_EFFECTIVE, PREFILL_QUEUE, KV_USE)
NEEDS_PREFILL_POOL = ("queue", "kv-transfer", KV_EFFECTIVE, PREFILL_QUEUE)
_MOST_OVER = 100.0  # times the baseline's
_QUEUE_MAX = 1_000_000


def unknown_alarm(name: str) -> str:
    """A sentence for a name that is no alarm; empty for one that is."""
    if name in ALARM_NAMES:
        return ""
    near = nearest(name, ALARM_NAMES)
    shares = ", ".join(f"`{share}`" for share in (ERROR_RATE, KV_EFFECTIVE, PREFILL_QUEUE, KV_USE))
    hint = f"did you mean `{near}`?" if near else f"an alarm is {shares}, or a metric and a quantile such as `ttft-p99`"
    return f"`{name}` is no alarm; {hint}"


def parse_alarm(name: str, limit: str) -> AlarmSpec | str:
    """The alarm of a line such as `ttft-p99: 1500ms`, or a sentence that says what is wrong with it."""
    name, limit = name.strip(), limit.strip()
    if wrong := unknown_alarm(name):
        return wrong
    if name in SHARES:
        return _share(name, limit)
    if name == PREFILL_QUEUE:
        return _queue(limit)
    if name == KV_USE:
        use = parse_ratio(limit)
        if use is None or not 0 < use < 1:
            return f"`{limit}` is no limit for {name}; write a percentage of the cache over 0% and under 100%, such as `90%`"
        return AlarmSpec(name, KV_USE, SELDOM, limit=use)
    limit_s = parse_duration_s(limit)
    if not limit_s:
        return f"`{limit}` is no limit for {name}; write a time with its unit, such as `1500ms`"
    metric, p0 = _latency(name)
    return AlarmSpec(name, metric, p0, limit_s=limit_s)


def _share(name: str, limit: str) -> AlarmSpec | str:
    ratio = parse_ratio(limit)
    example = "1%" if name == ERROR_RATE else "99%"
    if ratio is None or not 0 < ratio < 1:
        return f"`{limit}` is no limit for {name}; write a percentage over 0% and under 100%, such as `{example}`"
    return AlarmSpec(name, name, ratio if name == ERROR_RATE else round(1 - ratio, 9))


def _queue(limit: str) -> AlarmSpec | str:
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _QUEUE_MAX and len(limit) <= 7):
        return f"`{limit}` is no limit for {PREFILL_QUEUE}; write how many requests may wait, such as `32`"
    return AlarmSpec(PREFILL_QUEUE, PREFILL_QUEUE, SELDOM, limit=float(limit))


def _latency(name: str) -> tuple[str, float]:
    metric, _, quantile = name.rpartition("-")
    return metric, QUANTILES[quantile]


def parse_over_baseline(name: str, tolerance: str, limit: AlarmSpec | None) -> AlarmSpec | str:
    """The alarm of `over-baseline: 25%` beside the line's own `limit`, or what is wrong with it.

    A queue and a cache are compared by how often they are over their limit, so they need one.
    """
    more = parse_ratio(tolerance.strip())
    if more is None or not 0 < more <= _MOST_OVER:
        return f"`{tolerance.strip()}` says not how much worse than the baseline it may be; write a percentage over 0%, such as `25%`"
    title = f"{name}-over-baseline"
    if name in SHARES:
        return AlarmSpec(title, name, limit.p0 if limit else SELDOM, over=1 + more)
    if name in (PREFILL_QUEUE, KV_USE):
        if limit is None:
            return f"{name} is compared by how often it is over a limit; write `max` too"
        return AlarmSpec(title, name, SELDOM, limit=limit.limit, over=1 + more)
    metric, p0 = _latency(name)
    return AlarmSpec(title, metric, p0, over=1 + more)
