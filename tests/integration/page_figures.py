"""The made-up evening's figures: lines of charts, and what a metrics view says."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from metrics.domain.goodput import Goodput
from metrics.domain.split import Tail
from metrics.domain.types import Metric
from metrics.domain.views import GroupView, LatencyView, MetricsView

NOW = datetime.now(UTC).replace(microsecond=0)


def ago(**back: float) -> datetime:
    return NOW - timedelta(**back)


def _wave(base: float, swing: float, points: int, start: int = 0) -> tuple[float | None, ...]:
    return tuple(None if i < start else base + swing * math.sin(i / 5) + swing * 0.4 * math.sin(i * 1.7) for i in range(points))


def values_of(name: str, index: int, points: int) -> list[tuple[float | None, ...]]:
    start = round(points * 0.8) if index else 0
    seconds = {
        "ttft.p50": 0.42, "ttft.p99": 1.1, "itl.p50": 0.018, "itl.p99": 0.055 + 0.008 * index,
        "phase.queue": 0.2, "phase.prefill": 0.18, "phase.transfer": 0.04, "phase.first-step": 0.026,
        "tail.queue": 0.6, "tail.prefill": 0.45 + 0.1 * index, "tail.transfer": 0.12, "tail.first-step": 0.05,
        "goodput": 0.4 / (1 + 8 * index), "goodput.met": 32.0 / (1 + 8 * index), "goodput.of": 32.4 / (1 + 8 * index),
        "gauge.kv_use": 0.7 / (1 + index), "requests": 32.4 / (1 + 8 * index),
        "errors": 0.06, "errors.timeout": 0.04, "errors.decode": 0.02, "local_ratio": 0.17,
        "gauge.prefill_queue": 11 / (1 + index), "transfer.p99": 0.047 + 0.004 * index, "queue.p99": 0.61 / (1 + 2 * index),
        "remote_ratio": 0.83, "cancelled": 0.003, "gauge.running": 1050 / (1 + 8 * index), "gauge.waiting": 4 / (1 + 8 * index),
        "engine.kv_transfer_bytes": 2.9e9 / (1 + 8 * index), "engine.kv_transfers": 26.8 / (1 + 8 * index),
    }  # fmt: skip
    if name == "gauge.gpus":
        return [(72.0,) * points]
    if name in ("engine.preemptions", "engine.kv_expired"):
        return [(0.0,) * points]
    return [_wave(seconds[name], seconds[name] * 0.06, points, start)] if name in seconds else []


def latency(p99_s: float) -> LatencyView:
    return LatencyView(1204, p99_s / 3, p99_s / 2.5, p99_s / 1.5, p99_s, False)


def group(name: str, per_s: float) -> GroupView:
    latencies = {
        Metric.TTFT: latency(1.12), Metric.ITL: latency(0.055), Metric.KV_TRANSFER: latency(0.047), Metric.QUEUE: latency(0.61),
    }  # fmt: skip
    good = Goodput(round(per_s * 59), round(per_s * 60), 72.0, per_s * 59 / 60 / 72)
    slowest = Tail(13, 1204, 1.1, 0.6, 0.55, 0.12, 0.05)
    return GroupView(
        name, round(per_s * 60), per_s, 0.002, {"timeout": 1}, latencies, 9000, 4000, 0.3, 0.17, {"short": 40},
        {"kv_use": 0.7, "prefill_queue": 19.0, "waiting": 0.0, "running": 1050.0},
        goodput=good, slowest=slowest, remote=round(per_s * 50), remote_ratio=0.83, cancelled=11,
        engines={"preemptions": 0.0, "kv_transfers": per_s * 50, "kv_transfer_bytes": per_s * 50 * 109e6, "kv_expired": 0.0},
    )  # fmt: skip


def metrics(*, stage: str, span_s: float, by: str = "release", now: datetime = NOW) -> MetricsView:
    groups = (group("u-1", 29.2), group("u-2", 3.2)) if by == "unit" else (group("ds-flash@7", 29.2), group("ds-flash@8", 3.2))
    return MetricsView(stage, now, span_s, by, groups, group("", 32.4))
