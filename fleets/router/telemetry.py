"""What the router counts, by series, and how it reaches the control plane exactly once.

A gap (ITL) is the time between two reads from the engine that brought content, as they are written to the client. Several
events in one read arrive at the client at once and make one gap, not one and several of zero: a client that times its own
reads sees the same. Chunks without text (the role chunk, usage, the end) are no arrivals. Streams alone have a TTFT and gaps;
an answer in one piece has only its end-to-end time.

On a remote route TTFT is queue + prefill + kv-transfer + first-step, exactly. On the others prefill is the time from sending
the one leg to its first token, because nothing in between can be seen from here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from fleets.router.openai import Usage
from metrics.domain.alarm import AlarmCounter
from metrics.domain.histogram import Histogram
from metrics.domain.types import AlarmSpec, Metric, Route, SeriesDelta, SeriesKey

FLUSH_GAPS = 64  # gaps that a stream keeps to itself before they are counted
IDLE_WINDOWS = 600  # a series that counted nothing for so many windows is let go

now = time.perf_counter  # seconds; one clock for all that is measured


class Series:
    """One SeriesKey: what has been counted since the last report, and since the start for /metrics."""

    __slots__ = ("_counters", "_histograms", "_idle", "alarms", "key", "total_counters", "total_histograms", "ttft_limit_s")

    def __init__(self, key: SeriesKey, alarms: Sequence[AlarmSpec]) -> None:
        self.key = key
        self.watch(alarms)
        self._counters: dict[str, int] = {}
        self._histograms: dict[Metric, Histogram] = {}
        self._idle = 0
        self.total_counters: dict[str, int] = {}
        self.total_histograms: dict[Metric, Histogram] = {}

    def watch(self, alarms: Sequence[AlarmSpec]) -> None:
        """Count against these limits from now on."""
        self.alarms = AlarmCounter(alarms)
        self.ttft_limit_s = max((spec.limit_s or 0.0 for spec in alarms if spec.metric == Metric.TTFT), default=None)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        if by:
            self._counters[name] = self._counters.get(name, 0) + by

    def histogram(self, metric: Metric) -> Histogram:
        """The histogram of a metric in this window."""
        held = self._histograms.get(metric)
        if held is None:
            held = self._histograms[metric] = Histogram()
        return held

    def take(self) -> SeriesDelta | None:
        """What was counted since the last take; None when nothing was."""
        alarms = self.alarms.take()
        if not (self._counters or self._histograms or alarms):
            self._idle += 1
            return None
        self._idle = 0
        delta = SeriesDelta(
            key=self.key,
            counters=self._counters,
            histograms={metric: histogram.to_data() for metric, histogram in self._histograms.items()},
            alarms=alarms,
        )
        for name, count in self._counters.items():
            self.total_counters[name] = self.total_counters.get(name, 0) + count
        for metric, histogram in self._histograms.items():
            self.total_histograms.setdefault(metric, Histogram()).merge(histogram)
        self._counters, self._histograms = {}, {}
        return delta

    @property
    def stale(self) -> bool:
        """Nothing was counted for long."""
        return self._idle >= IDLE_WINDOWS


class Telemetry:
    """All series of this router."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._alarms: tuple[AlarmSpec, ...] = ()
        self._series: dict[tuple[str, str, str, Route, bool], Series] = {}
        self._leftover: list[SeriesDelta] = []

    def set_alarms(self, alarms: Sequence[AlarmSpec]) -> None:
        """Count against these limits from now on; what was counted against others is still reported."""
        if tuple(alarms) == self._alarms:
            return
        self._leftover += self._take_all()
        self._alarms = tuple(alarms)
        for series in self._series.values():
            series.watch(self._alarms)

    def series(self, *, unit: str, prefill_release: str, decode_release: str, route: Route, probe: bool) -> Series:
        """The series of a key, made when it is new."""
        parts = (unit, prefill_release, decode_release, route, probe)  # hashes faster than the dataclass
        held = self._series.get(parts)
        if held is None:
            held = self._series[parts] = Series(SeriesKey(self._stage, *parts), self._alarms)
        return held

    def all(self) -> Iterable[Series]:
        """Every series, for /metrics."""
        return self._series.values()

    def take(self) -> list[SeriesDelta]:
        """Everything since the last take."""
        deltas, self._leftover = [*self._leftover, *self._take_all()], []
        for key in [key for key, series in self._series.items() if series.stale]:
            del self._series[key]
        return deltas

    def _take_all(self) -> list[SeriesDelta]:
        return [delta for series in list(self._series.values()) if (delta := series.take()) is not None]


class Trace:
    """One request's times and outcome, counted once when it ends."""

    __slots__ = (
        "_gaps", "_gaps_n", "_gaps_over", "cancelled", "error", "extra", "first_s", "head_s", "kv_failed", "kv_recomputed", "last_s",
        "prefill_s", "prompt_tokens", "queued_s", "reasons", "sent_s", "series", "start_s", "tokens", "usage",
    )  # fmt: skip

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s  # the request was read
        self.queued_s: float | None = None  # it got its place for prefill
        self.prefill_s: float | None = None  # prefill answered
        self.sent_s: float | None = None  # the leg that answers was sent
        self.head_s: float | None = None  # its head came
        self.first_s: float | None = None  # its first token went to the client
        self.last_s = 0.0  # its latest one did
        self._gaps: list[float] = []
        self._gaps_n = 0
        self._gaps_over: dict[str, int] = {}
        self.series: Series | None = None
        self.error = ""  # the class, for `errors.<class>`
        self.cancelled = False
        self.reasons: list[str] = []
        self.usage: Usage | None = None
        self.prompt_tokens = 0  # estimated, until the usage is there
        self.tokens = 0  # events with content, for an engine that tells no usage
        self.kv_failed = False
        self.kv_recomputed = False
        self.extra: dict[str, int] = {}

    def token(self, at_s: float, events: int) -> None:
        """Content went to the client."""
        self.tokens += events
        if self.first_s is None:
            self.first_s = at_s
        else:
            self._gaps.append(at_s - self.last_s)
            if len(self._gaps) >= FLUSH_GAPS:
                self.flush()
        self.last_s = at_s

    def restart(self) -> None:
        """A new try from the beginning: the phases of the failed one are part of what the client waits for, as queue."""
        self.queued_s = self.prefill_s = self.sent_s = self.head_s = None

    def flush(self) -> None:
        """Count the gaps so far: a long stream shows in the window that it runs in."""
        series = self.series
        if series is None or not self._gaps:
            return
        record = series.histogram(Metric.ITL).record
        for gap_s in self._gaps:
            record(gap_s)
        self._gaps_n += len(self._gaps)
        for name, limit_s in series.alarms.gap_limits:
            over = sum(gap_s > limit_s for gap_s in self._gaps)
            if over:
                self._gaps_over[name] = self._gaps_over.get(name, 0) + over
        self._gaps.clear()

    def finish(self, end_s: float) -> None:
        """Count the request in its series."""
        series = self.series
        if series is None:
            return
        self.flush()
        series.count("requests")
        for reason in self.reasons:
            series.count(f"reason.{reason}")
        for name, by in self.extra.items():
            series.count(name, by)
        if self.error:
            series.count("errors")
            series.count(f"errors.{self.error}")
        if self.cancelled:
            series.count("cancelled")
        self._count_tokens(series)
        self._record_times(series, end_s)

    def _count_tokens(self, series: Series) -> None:
        usage = self.usage
        if usage is None and self.first_s is None:
            return  # no engine computed an answer
        prompt = usage.prompt if usage else self.prompt_tokens
        cached = min(prompt, usage.cached or 0) if usage else 0
        series.count("tokens.in", prompt)
        series.count("tokens.out", usage.completion if usage else self.tokens)
        series.count("tokens.cached", cached)
        series.count("tokens.uncached", prompt - cached)
        if series.key.route is Route.REMOTE and not (self.kv_failed or self.kv_recomputed):
            series.count("tokens.remote", prompt)
        series.count("kv.failed", int(self.kv_failed))
        series.count("kv.recomputed", int(self.kv_recomputed))

    def _record_times(self, series: Series, end_s: float) -> None:
        phases = self._phases(series.key.route)
        for metric, value_s in phases.items():
            series.histogram(metric).record(value_s)
        whole = not self.error and not self.cancelled
        e2e_s = end_s - self.start_s
        if whole:
            series.histogram(Metric.E2E).record(e2e_s)
        ttft_s = phases.get(Metric.TTFT)
        if ttft_s is None and not whole and series.ttft_limit_s is not None and e2e_s > series.ttft_limit_s:
            ttft_s = e2e_s  # it ended without a token, but was over the limit already; a shorter wait would say nothing
        series.alarms.request(
            ttft_s=ttft_s,
            queue_s=phases.get(Metric.QUEUE),
            kv_transfer_s=phases.get(Metric.KV_TRANSFER),
            e2e_s=e2e_s if whole else None,
            gaps_over=self._gaps_over,
            gaps_n=self._gaps_n,
            error=bool(self.error),
        )

    def _phases(self, route: Route) -> dict[Metric, float]:
        """TTFT and its parts, which add up to it exactly. A failed prefill that was then done locally counts as prefill."""
        first_s, queued_s, sent_s = self.first_s, self.queued_s, self.sent_s
        phases: dict[Metric, float] = {}
        if queued_s is not None:
            phases[Metric.QUEUE] = queued_s - self.start_s
        if first_s is None:
            return phases
        phases[Metric.TTFT] = first_s - self.start_s
        head_s, prefill_s = self.head_s, self.prefill_s
        if route is Route.REMOTE and prefill_s is not None and queued_s is not None and head_s is not None:
            phases[Metric.PREFILL] = prefill_s - queued_s
            phases[Metric.KV_TRANSFER] = head_s - prefill_s
            phases[Metric.FIRST_STEP] = max(0.0, first_s - head_s)
        elif sent_s is not None:
            phases[Metric.PREFILL] = first_s - (queued_s if queued_s is not None else self.start_s)
        return phases
