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
from metrics.domain.goodput import MET, OF, good_limits
from metrics.domain.histogram import Histogram
from metrics.domain.split import Split
from metrics.domain.types import AlarmSpec, Metric, Route, SeriesDelta, SeriesKey

FLUSH_GAPS = 64  # gaps that a stream keeps to itself before they are counted
FOLD_TIMES = 1024  # times that a series keeps as they are before they go into its histograms
IDLE_WINDOWS = 600  # a series that counted nothing for so many windows is let go

now = time.perf_counter  # seconds; one clock for all that is measured

_TIMES = (
    ("ttft", Metric.TTFT), ("queue", Metric.QUEUE), ("prefill", Metric.PREFILL), ("transfer", Metric.KV_TRANSFER),
    ("first_step", Metric.FIRST_STEP), ("gaps", Metric.ITL), ("e2e", Metric.E2E),
)  # fmt: skip


class Series:
    """One SeriesKey: what has been counted since the last report, and since the start for /metrics.

    What every request counts has an attribute of its own, and times are kept in lists until there are enough to be worth
    a look at the logarithm: a request costs a few additions here, and the folding is done in one tight loop.
    """

    __slots__ = (
        "_counters", "_histograms", "_idle", "_judged", "_split", "alarms", "e2e", "first_step", "gaps", "goodput_met", "goodput_of",
        "key", "limits", "phases", "prefill", "queue", "remote", "requests", "tokens_cached", "tokens_in", "tokens_out",
        "tokens_remote", "tokens_uncached", "total_counters", "total_histograms", "transfer", "ttft", "ttft_limit_s",
    )  # fmt: skip

    def __init__(self, key: SeriesKey, alarms: Sequence[AlarmSpec], *, judged: bool = True) -> None:
        self.key = key
        self._judged = judged  # or no alarm is to hear of it
        self.remote = key.route is Route.REMOTE
        self.watch(alarms)
        self._counters: dict[str, int] = {}
        self._histograms: dict[Metric, Histogram] = {}
        self._split = Split()
        self._idle = 0
        self.total_counters: dict[str, int] = {}
        self.total_histograms: dict[Metric, Histogram] = {}
        self.requests = self.tokens_in = self.tokens_out = self.tokens_cached = self.tokens_uncached = self.tokens_remote = 0
        self.goodput_met = self.goodput_of = 0
        self.phases: list[tuple[float, float, float, float]] = []  # of one request each: what adds up to its TTFT
        self.ttft: list[float] = []
        self.queue: list[float] = []
        self.prefill: list[float] = []
        self.transfer: list[float] = []
        self.first_step: list[float] = []
        self.gaps: list[float] = []
        self.e2e: list[float] = []

    def watch(self, alarms: Sequence[AlarmSpec]) -> None:
        """Count against these limits from now on."""
        self.alarms = AlarmCounter(alarms if self._judged else ())
        limits = good_limits(alarms)
        self.limits = limits if limits.given else None
        self.ttft_limit_s = max((spec.limit_s or 0.0 for spec in alarms if spec.metric == Metric.TTFT), default=None)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        if by:
            self._counters[name] = self._counters.get(name, 0) + by

    def fold(self) -> None:
        """Put the kept times into the histograms."""
        for name, metric in _TIMES:
            times: list[float] = getattr(self, name)
            if times:
                held = self._histograms.get(metric)
                if held is None:
                    held = self._histograms[metric] = Histogram()
                held.record_all(times)
                times.clear()
        if self.phases:
            self._split.record_all(self.phases)
            self.phases.clear()

    def _gather(self) -> None:
        self.fold()
        self.count("requests", self.requests)
        self.count("tokens.in", self.tokens_in)
        self.count("tokens.out", self.tokens_out)
        self.count("tokens.cached", self.tokens_cached)
        self.count("tokens.uncached", self.tokens_uncached)
        self.count("tokens.remote", self.tokens_remote)
        self.count(MET, self.goodput_met)
        self.count(OF, self.goodput_of)
        self.goodput_met = self.goodput_of = 0
        self.requests = self.tokens_in = self.tokens_out = self.tokens_cached = self.tokens_uncached = self.tokens_remote = 0

    def take(self) -> SeriesDelta | None:
        """What was counted since the last take; None when nothing was."""
        self._gather()
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
            split=self._split.bins,
        )
        for name, count in self._counters.items():
            self.total_counters[name] = self.total_counters.get(name, 0) + count
        for metric, histogram in self._histograms.items():
            self.total_histograms.setdefault(metric, Histogram()).merge(histogram)
        self._counters, self._histograms, self._split = {}, {}, Split()
        return delta

    @property
    def total_requests(self) -> int:
        """Since the start."""
        return self.total_counters.get("requests", 0) + self._counters.get("requests", 0) + self.requests

    @property
    def stale(self) -> bool:
        """Nothing was counted for long."""
        return self._idle >= IDLE_WINDOWS


class Telemetry:
    """All series of this router."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._alarms: tuple[AlarmSpec, ...] = ()
        self._series: dict[tuple[str, str, str, str, bool, bool], Series] = {}
        self._leftover: list[SeriesDelta] = []

    def set_alarms(self, alarms: Sequence[AlarmSpec]) -> None:
        """Count against these limits from now on; what was counted against others is still reported."""
        if tuple(alarms) == self._alarms:
            return
        self._leftover += self._take_all()
        self._alarms = tuple(alarms)
        for series in self._series.values():
            series.watch(self._alarms)

    def series(self, unit: str, prefill_release: str, decode_release: str, route: Route, probe: bool, judged: bool = True) -> Series:
        """The series of a key, made when it is new. One that is not `judged` counts for no alarm, and else as others of its key."""
        parts = (unit, prefill_release, decode_release, route._value_, probe, judged)  # an enum's own hash is a call of Python
        held = self._series.get(parts)
        if held is None:
            key = SeriesKey(self._stage, unit, prefill_release, decode_release, route, probe)
            held = self._series[parts] = Series(key, self._alarms, judged=judged)
        return held

    def users_requests(self, release: str) -> int:
        """How many of users' requests in which a release had a part have ended since the start."""
        users = (series for series in self._series.values() if not series.key.probe)
        return sum(series.total_requests for series in users if release in (series.key.prefill_release, series.key.decode_release))

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
        "_gaps_n", "_gaps_over", "cancelled", "error", "extra", "first_s", "gaps", "head_s", "kv_failed", "kv_recomputed", "last_s",
        "prefill_cached", "prefill_s", "queued_s", "reason", "reasons", "sent_s", "series", "start_s", "tokens", "unmoved", "usage",
        "waiting",
    )  # fmt: skip

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s  # the request was read
        self.queued_s: float | None = None  # it got its place for prefill
        self.prefill_s: float | None = None  # prefill answered
        self.sent_s: float | None = None  # the leg that answers was sent
        self.head_s: float | None = None  # its head came
        self.first_s: float | None = None  # its first token went to the client
        self.last_s = 0.0  # its latest one did
        self.gaps: list[float] | None = None
        self._gaps_n = 0
        self._gaps_over: dict[str, int] | None = None
        self.series: Series | None = None
        self.error = ""  # the class, for `errors.<class>`
        self.cancelled = False
        self.reason = ""  # why it was computed the way it was
        self.reasons: list[str] | None = None  # and what else is to be counted so
        self.usage: Usage | None = None
        self.prefill_cached: int | None = None  # prompt tokens that needed no computing, as the prefill engine said
        self.tokens = 0  # events with content, for an engine that tells no usage
        self.kv_failed = False
        self.kv_recomputed = False
        self.unmoved = False  # it was to have its KV moved, and it is certain that it was not
        self.waiting: int | None = None  # requests that it found waiting for prefill
        self.extra: dict[str, int] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt as they are estimated without an engine's word."""
        return 0

    def also(self, name: str, by: int = 1) -> None:
        """Count something rare with this request."""
        if self.extra is None:
            self.extra = {}
        self.extra[name] = self.extra.get(name, 0) + by

    def token(self, at_s: float, events: int) -> None:
        """Content went to the client."""
        self.tokens += events
        gaps = self.gaps
        if gaps is None:
            self.first_s = at_s
            self.gaps = []
        else:
            gaps.append(at_s - self.last_s)
            if len(gaps) >= FLUSH_GAPS:
                self.flush()
        self.last_s = at_s

    def restart(self) -> None:
        """A new try from the beginning: the phases of the failed one are part of what the client waits for, as queue."""
        self.queued_s = self.prefill_s = self.sent_s = self.head_s = None

    def flush(self) -> None:
        """Count the gaps so far: a long stream shows in the window that it runs in."""
        series, gaps = self.series, self.gaps
        if series is None or not gaps:
            return
        series.gaps += gaps
        if len(series.gaps) >= FOLD_TIMES:
            series.fold()
        self._gaps_n += len(gaps)
        limits = series.alarms.gap_limits
        if limits:
            longest_s = max(gaps)
            for name, limit_s in limits:
                if longest_s > limit_s:
                    if self._gaps_over is None:
                        self._gaps_over = {}
                    self._gaps_over[name] = self._gaps_over.get(name, 0) + sum(gap_s > limit_s for gap_s in gaps)
        gaps.clear()

    def finish(self, end_s: float) -> None:
        """Count the request in its series."""
        series = self.series
        if series is None:
            return
        if self.gaps:
            self.flush()
        series.requests += 1
        if self.reason:
            series.count("reason." + self.reason)
        if self.reasons or self.extra or self.error or self.cancelled:
            self._count_rare(series)
        self._count_tokens(series)
        self._record_times(series, end_s)

    def _count_rare(self, series: Series) -> None:
        for reason in self.reasons or ():
            series.count("reason." + reason)
        for name, by in (self.extra or {}).items():
            series.count(name, by)
        if self.error:
            series.count("errors")
            series.count(f"errors.{self.error}")
        if self.cancelled:
            series.count("cancelled")

    def _count_tokens(self, series: Series) -> None:
        usage = self.usage
        if usage is not None:
            prompt = usage.prompt
            cached = min(prompt, usage.cached) if usage.cached else 0
            series.tokens_out += usage.completion
        elif self.first_s is not None:
            prompt, cached = self.prompt_tokens, 0  # as estimated
            series.tokens_out += self.tokens
        else:
            return  # no engine computed an answer
        series.tokens_in += prompt
        series.tokens_cached += cached
        series.tokens_uncached += prompt - cached
        if self.kv_failed or self.kv_recomputed:
            series.count("kv.failed", int(self.kv_failed))
            series.count("kv.recomputed", int(self.kv_recomputed))
        elif series.remote:
            series.tokens_remote += prompt

    def _record_times(self, series: Series, end_s: float) -> None:
        start_s, first_s, queued_s = self.start_s, self.first_s, self.queued_s
        ttft_s = queue_s = transfer_s = None
        if queued_s is not None:
            queue_s = queued_s - start_s
            series.queue.append(queue_s)
        if first_s is not None:
            ttft_s = first_s - start_s
            series.ttft.append(ttft_s)
            transfer_s = self._record_phases(series, first_s)
        whole = not self.error and not self.cancelled
        e2e_s = end_s - start_s
        if whole:
            series.e2e.append(e2e_s)
            if len(series.e2e) >= FOLD_TIMES:
                series.fold()
        elif ttft_s is None and series.ttft_limit_s is not None and e2e_s > series.ttft_limit_s:
            ttft_s = e2e_s  # it ended without a token, but was over the limit already; a shorter wait would say nothing
        series.alarms.request(
            ttft_s, queue_s, transfer_s, e2e_s if whole else None, self._gaps_over, self._gaps_n, bool(self.error), self.waiting
        )  # fmt: skip
        if series.limits is not None:
            gap_s = (self.last_s - first_s) / self._gaps_n if first_s is not None and self._gaps_n else None
            met = series.limits.met(ttft_s=ttft_s, gap_s=gap_s, failed=bool(self.error), left=self.cancelled)
            if met is not None:
                series.goodput_of += 1
                series.goodput_met += met
        if self.unmoved:
            series.alarms.kv_judged(1, 1)

    def _record_phases(self, series: Series, first_s: float) -> float | None:
        """The parts of TTFT, which add up to it exactly; returns the KV transfer. A failed prefill done locally counts as prefill."""
        head_s, prefill_s, queued_s = self.head_s, self.prefill_s, self.queued_s
        if series.remote and prefill_s is not None and queued_s is not None and head_s is not None:
            computed_s, transfer_s, first_step_s = prefill_s - queued_s, head_s - prefill_s, max(0.0, first_s - head_s)
            series.prefill.append(computed_s)
            series.transfer.append(transfer_s)
            series.first_step.append(first_step_s)
            series.phases.append((queued_s - self.start_s, computed_s, transfer_s, first_step_s))
            return transfer_s
        if self.sent_s is not None:
            begun_s = queued_s if queued_s is not None else self.start_s
            series.prefill.append(first_s - begun_s)
            series.phases.append((begun_s - self.start_s, first_s - begun_s, 0.0, 0.0))
        return None
