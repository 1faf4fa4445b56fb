"""What the metrics app answers with: the same values feed pages, API and command."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from metrics.domain.goodput import Goodput
from metrics.domain.split import Tail
from metrics.domain.types import Metric


@dataclass(frozen=True, slots=True)
class LatencyView:
    """Quantiles of one metric in seconds, from merged histograms; None without a sample.

    With n < 299 a p99 is not known better than "at least": `p99_is_bound` then is true.
    """

    n: int
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    p99_is_bound: bool


@dataclass(frozen=True, slots=True)
class GroupView:
    """Figures of one release, unit or pool of a stage over one span."""

    group: str  # `ds-flash@7`, a unit's id, or a role
    requests: int
    per_s: float
    error_ratio: float | None
    errors_by_class: dict[str, int]
    latencies: dict[Metric, LatencyView]
    tokens_in: int
    tokens_out: int
    cached_ratio: float | None  # of prompt tokens
    local_ratio: float | None  # of requests
    reasons: dict[str, int]  # why a request was prefilled where it was
    gauges: dict[str, float]  # newest: prefill_queue, prefill_inflight, decode_inflight, kv_use, ...
    remote: int = 0  # requests whose KV was to be moved from prefill to decode
    kv_lost: int = 0  # of which it failed, or decode computed all again
    goodput: Goodput | None = None  # None when the stage sets no limits
    slowest: Tail | None = None  # those at or over the p99 of TTFT, by phase
    cancelled: int = 0  # requests whose client left; no errors
    remote_ratio: float | None = None  # of prompt tokens: those whose KV came from prefill
    kv_failed: int = 0
    kv_recomputed: int = 0
    engines: dict[str, float] = field(
        default_factory=dict
    )  # what they counted: metrics.domain.engines.COUNTS; without those that say nothing


@dataclass(frozen=True, slots=True)
class MetricsView:
    """`denv metrics`: one group a release (or unit), over the last `span_s` seconds."""

    stage: str
    at: datetime
    span_s: float
    by: str
    groups: tuple[GroupView, ...]
    total: GroupView


@dataclass(frozen=True, slots=True)
class LineView:
    """One line of a chart; `values` has None where nothing was measured."""

    group: str
    name: str  # `ttft.p99`, `requests`, `errors.timeout`, `phase.queue`, `gauge.kv_use`
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class FrameView:
    """Lines over the same instants."""

    stage: str
    step_s: float
    at: tuple[datetime, ...]
    lines: tuple[LineView, ...]
    slowest: dict[str, Tail] = field(default_factory=dict)  # by group, over all steps; only where a line `tail.<phase>` was asked for


@dataclass(frozen=True, slots=True)
class AlarmVerdict:
    """One alarm as a rollout's judge sees it now. Evidence is a plain ratio such as 340 for "340 : 1"."""

    alarm: str
    metric: str
    limit_s: float | None
    p0: float
    n: int
    k: float
    rate: float | None
    rate_low: float | None  # 95% interval
    rate_high: float | None
    evidence: float  # that the limit is broken
    trips_at: float  # 1 / alpha
    tripped: bool
    health: float  # evidence that it is not twice over the limit
    health_needs: float
    healthy: bool
    baseline_n: int = 0
    baseline_k: float = 0.0
    baseline_breaching: bool = False
    relative_evidence: float | None = None  # that the canary is worse than the baseline; None without a baseline
    fresh: bool = True  # figures came in lately
    sentence: str = ""
    at_once: bool = False  # errors plainly over 20%: reason enough without a baseline and without waiting
    lasted_s: float | None = None  # for how long over the limit without a break; None with a baseline, where it does not matter
    limit: float | None = None  # of a queue (requests) or a cache (its share); None for all others
    over: float | None = None  # of a comparison: how many times the baseline's it may be
    base_s: float | None = None  # and, for a latency, the baseline's own quantile
    synthetic: bool = False  # of requests that denv made, and of them alone


@dataclass(frozen=True, slots=True)
class BreachView:
    """An alarm that a stage breaks now, with no rollout under way."""

    alarm: str
    since: datetime
    sentence: str


@dataclass(frozen=True, slots=True)
class EventView:
    """One row of the journal."""

    seq: int
    at: datetime
    kind: str
    level: str  # `info`, `warn`, `bad`
    sentence: str
    actor: str
    via: str
    model: str = ""
    stage: str = ""
    fleet: str = ""
    rollout: str = ""
    release: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChannelView:
    """Where notices go. The secret is never shown."""

    id: str
    kind: str  # `slack`, `webhook`
    name: str
    address: str
    allow_private: bool
    enabled: bool
    pending: int
    dead: int
    last_error: str
    sent_at: datetime | None  # the last one that arrived
