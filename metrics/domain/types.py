"""What the data plane counts and what the control plane reads of it: plain, mergeable values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

SYNTHETIC = " synthetic"  # ends the name of an alarm on requests that denv made


class Route(StrEnum):
    """How one request was computed."""

    REMOTE = "remote"  # prefill replica, KV transfer, decode replica
    LOCAL = "local"  # the decode replica did its own prefill
    AGGREGATED = "aggregated"  # a replica of an aggregated pool did both


class Metric(StrEnum):
    """The latencies that are kept as histograms, in seconds, as the router saw them."""

    TTFT = "ttft"  # request read to first token sent; the sum of the four phases below
    QUEUE = "queue"  # waiting in the router for a prefill place
    PREFILL = "prefill"  # prefill leg sent to its answer
    KV_TRANSFER = "kv-transfer"  # decode leg sent to its response head, KV on board
    FIRST_STEP = "first-step"  # response head to first token
    ITL = "itl"  # gap between two tokens of one request
    E2E = "e2e"  # request read to last byte sent


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """Whose figures these are. Releases are `model@number`; both are the same for an aggregated unit."""

    stage: str
    unit: str
    prefill_release: str
    decode_release: str
    route: Route
    probe: bool = False  # denv's own traffic; never in users' figures


@dataclass(frozen=True, slots=True)
class AlarmSpec:
    """One alarm of a stage, as the router counts it and the control plane tests it.

    `ttft-p99: 1500ms` reads P(TTFT > 1.5 s) <= 0.01: metric `ttft`, limit_s 1.5, p0 0.01. `error-rate: 1%` has no limit but its p0.
    `prefill-queue: 32` and `kv-use: 90%` have a `limit` (requests that wait; a share of the cache) and a p0 of 0.01.

    With `over` it is a comparison with the release that serves beside: `over-baseline: 25%` is over 1.25. A latency then needs
    `base_s`, the baseline's own quantile, fixed before anything is counted; without it nothing is counted.
    """

    name: str
    metric: str
    p0: float
    limit_s: float | None = None
    limit: float | None = None
    over: float | None = None
    base_s: float | None = None
    synthetic: bool = False  # of the requests that denv made, and of them alone

    @property
    def key(self) -> str:
        """What its counts are kept under: another `base_s` is another question, and its counts never add up with the old ones."""
        name = self.name.removesuffix(SYNTHETIC)
        return name if self.base_s is None else f"{name}@{self.base_s * 1e6:.0f}us"

    @property
    def synthetic_twin(self) -> AlarmSpec:
        """The same question of the requests that denv made."""
        return replace(self, name=self.name + SYNTHETIC, synthetic=True)


@dataclass(frozen=True, slots=True)
class AlarmCount:
    """Exact evidence for one alarm: n requests, k over the limit.

    For `itl` the request is the unit, and k is the sum over requests of the share of its gaps that were over the limit
    (tokens of one request are correlated); `bets` then holds the log-wealth sums that metrics.domain.alarm defines.
    For a comparison of latencies k counts what is over the baseline's quantile and its tolerance, `base_k` what is over the
    quantile itself. All add up over routers and windows.
    """

    n: int = 0
    k: float = 0.0
    bets: tuple[float, ...] = ()
    base_k: float = 0.0


@dataclass(frozen=True, slots=True)
class HistogramData:
    """The wire form of metrics.domain.histogram.Histogram: log-spaced buckets, relative error at most 1%."""

    buckets: dict[int, int] = field(default_factory=dict)
    count: int = 0
    sum: float = 0.0
    zeros: int = 0


class SplitBin(NamedTuple):
    """Streams with a TTFT in one bin (metrics.domain.split), and what each of its phases took, all of them together."""

    n: int
    queue_us: int
    prefill_us: int
    transfer_us: int
    first_step_us: int


@dataclass(frozen=True, slots=True)
class SeriesDelta:
    """What happened on one series since the report before.

    `counters` keys: `requests`, `errors` and `errors.<class>`, `cancelled`, `tokens.in`, `tokens.out`, `tokens.cached`,
    `tokens.uncached`, `tokens.remote`, `kv.failed`, `kv.recomputed`, `kv.expired` (decode showed no life for as long as prefill keeps
    KV), `goodput.met` and `goodput.of` (metrics.domain.goodput) and `reason.<why>` (the conditional decision's reason).
    """

    key: SeriesKey
    counters: dict[str, int] = field(default_factory=dict)
    histograms: dict[Metric, HistogramData] = field(default_factory=dict)
    alarms: dict[str, AlarmCount] = field(default_factory=dict)
    split: dict[int, SplitBin] = field(default_factory=dict)  # TTFT's phases by bins of TTFT
