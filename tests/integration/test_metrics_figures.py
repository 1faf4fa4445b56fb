"""Figures and charts: exact sums, quantiles of merged histograms, denv's own probes left out, roll-ups that change no figure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from celery import current_app
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from denvweb.core.errors import InvalidError
from metrics.domain.engines import totals
from metrics.domain.histogram import Histogram
from metrics.domain.split import Split
from metrics.domain.types import AlarmSpec, Metric, Route, SeriesDelta, SeriesKey
from metrics.domain.views import FrameView, MetricsView
from metrics.models import GaugeWindow, IngestedReport, Window
from metrics.selectors import alarm_figures, frame_view, frames_view, metrics_view, steps
from metrics.selectors.windows import sample_s
from metrics.services import gauges_record, series_ingest
from metrics.services.rollup import metrics_prune, windows_roll_up
from metrics.tasks import roll_up

NOW = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
pytestmark = pytest.mark.django_db


def _key(unit: str, release: int, *, prefill: int | None = None, route: Route = Route.REMOTE, probe: bool = False) -> SeriesKey:
    return SeriesKey(
        stage="m/s", unit=unit, prefill_release=f"m@{prefill or release}", decode_release=f"m@{release}", route=route, probe=probe
    )


_seq = iter(range(1_000_000))


def _report(ago_s: float, key: SeriesKey, ttfts_s: Sequence[float], *, now: datetime = NOW, **counters: int) -> None:
    ttft = Histogram()
    for value in ttfts_s:
        ttft.record(value)
    counts = {"requests": len(ttfts_s), "tokens.in": 100 * len(ttfts_s), **{name.replace("__", "."): n for name, n in counters.items()}}
    split = Split()
    split.record_all((value / 4, value / 2, value / 8, value / 8) for value in ttfts_s)
    times = {Metric.TTFT: ttft.to_data(), Metric.QUEUE: ttft.to_data()}
    delta = SeriesDelta(key=key, counters=counts, histograms=times, split=split.bins)
    series_ingest(source="r", seq=next(_seq), at=now - timedelta(seconds=ago_s), series=[delta], received_at=now)


def _values(frame: FrameView, group: str, name: str) -> tuple[float | None, ...]:
    return next(line.values for line in frame.lines if (line.group, line.name) == (group, name))


def test_metrics_by_release_unit_and_in_total() -> None:
    _report(30, _key("u-1", 9), [0.1] * 98 + [2.0] * 2, errors=4, errors__timeout=3, errors__upstream=1, tokens__cached=2500)
    _report(20, _key("u-2", 10, route=Route.LOCAL), [0.2] * 50, reason__short=50)
    _report(20, _key("u-2", 10), [0.3] * 50, tokens__remote=4900, kv__failed=1, cancelled=3)
    _report(20, _key("u-2", 10, prefill=9), [0.4])
    _report(20, _key("u-2", 10, probe=True), [9.0] * 500)
    view = metrics_view(stage="m/s", span_s=60, now=NOW)
    assert [group.group for group in view.groups] == ["m@9", "m@9+m@10", "m@10"]
    nine, _, ten = view.groups
    assert (nine.requests, nine.error_ratio, nine.errors_by_class) == (100, 0.04, {"timeout": 3, "upstream": 1})
    assert (nine.cached_ratio, nine.local_ratio) == (0.25, 0.0)
    ttft = nine.latencies[Metric.TTFT]
    assert ttft.p50_s == pytest.approx(0.1, rel=0.011)
    assert ttft.p99_s == pytest.approx(2.0, rel=0.011)
    assert ttft.mean_s == pytest.approx(0.138)
    assert ttft.p99_is_bound
    assert nine.latencies[Metric.ITL].p99_s is None
    assert (ten.requests, ten.local_ratio, ten.reasons) == (100, 0.5, {"short": 50})
    assert (ten.remote_ratio, ten.kv_failed, ten.kv_recomputed, ten.cancelled) == (0.49, 1, 0, 3)
    assert view.total.requests == 201
    assert view.total.per_s == pytest.approx(201 / view.span_s)
    by_unit = metrics_view(stage="m/s", span_s=60, by="unit", now=NOW)
    assert [(group.group, group.requests) for group in by_unit.groups] == [("u-1", 100), ("u-2", 101)]


def test_what_is_older_than_the_span_is_left_out() -> None:
    _report(600, _key("u-1", 1), [5.0])
    assert metrics_view(stage="m/s", span_s=60, now=NOW).groups == ()
    assert metrics_view(stage="m/s", span_s=900, now=NOW).total.requests == 1


def test_an_unknown_stage_has_no_figures() -> None:
    view = metrics_view(stage="no/such", span_s=60, now=NOW)
    assert (view.groups, view.total.requests, view.total.error_ratio) == ((), 0, None)
    assert frame_view(stage="no/such", names=["ttft.p99"], span_s=60, step_s=10, now=NOW).lines == ()


def test_gauges_of_sources_and_units() -> None:
    _report(20, _key("u-1", 1), [0.1])
    _report(20, _key("u-2", 1), [0.1])
    gauges_record(at=NOW, stage="m/s", unit="u-1", values={"prefill_queue": 2}, source="r1", received_at=NOW)
    gauges_record(at=NOW, stage="m/s", unit="u-1", values={"prefill_queue": 3}, source="r2", received_at=NOW)
    gauges_record(at=NOW, stage="m/s", unit="u-1", values={"kv_use": 0.2}, source="engines", received_at=NOW)
    gauges_record(at=NOW, stage="m/s", unit="u-2", values={"prefill_queue": 5, "kv_use": 0.6}, received_at=NOW)
    gauges_record(at=NOW - timedelta(minutes=5), stage="m/s", unit="u-gone", values={"prefill_queue": 50}, received_at=NOW)
    view = metrics_view(stage="m/s", span_s=60, now=NOW)
    assert view.total.gauges == {"kv_use": pytest.approx(0.4), "prefill_queue": 10}
    frame = frame_view(stage="m/s", names=["gauge.prefill_queue"], span_s=60, step_s=10, by="unit", now=NOW + timedelta(seconds=20))
    assert _values(frame, "u-1", "gauge.prefill_queue")[-2:] == (5, None)


def test_lines_have_values_gaps_and_zeros() -> None:
    for ago_s, ttfts in ((62, [0.1] * 10), (42, [0.4] * 20), (1, [9.0])):
        _report(ago_s, _key("u-1", 1), ttfts, errors=len(ttfts) // 10)
    frame = frame_view(
        stage="m/s", names=["ttft.p99", "ttft.mean", "requests", "error_ratio", "phase.queue"], span_s=70, step_s=10, now=NOW
    )
    assert frame.at[-1] == datetime(2026, 3, 1, 11, 59, 50, tzinfo=UTC)  # the running step is not drawn
    assert _values(frame, "m@1", "requests") == (None, 1.0, 0.0, 2.0, None, None, None)
    assert _values(frame, "m@1", "error_ratio") == (None, 0.1, None, 0.1, None, None, None)
    p99 = _values(frame, "m@1", "ttft.p99")
    assert p99[1] == pytest.approx(0.1, rel=0.011)
    assert p99[2] is None
    assert p99[3] == pytest.approx(0.4, rel=0.011)
    assert _values(frame, "m@1", "phase.queue")[3] == pytest.approx(0.4)


def test_the_slowest_percent_is_split_by_phase_in_each_step_and_over_all() -> None:
    _report(55, _key("u-1", 1), [0.1] * 99 + [4.0])
    _report(35, _key("u-2", 1, route=Route.LOCAL), [0.2] * 99 + [8.0])
    frame = frame_view(stage="m/s", names=["tail.queue", "tail.first-step"], span_s=60, step_s=20, now=NOW)
    first, second, none = _values(frame, "m@1", "tail.queue")
    assert first == pytest.approx((1.0 + 0.025) / 2, rel=0.01) and second == pytest.approx((2.0 + 0.05) / 2, rel=0.01) and none is None
    whole = frame.slowest["m@1"]
    assert (whole.n, whole.of) == (3, 200)  # from the 198th up
    assert whole.ttft_s == pytest.approx((4.0 + 8.0 + 0.2) / 3)
    assert whole.first_step_s == pytest.approx(whole.ttft_s / 8)
    assert metrics_view(stage="m/s", span_s=60, now=NOW).groups[0].slowest == whole
    assert frame_view(stage="m/s", names=["ttft.p99"], span_s=60, step_s=20, now=NOW).slowest == {}


def test_goodput_is_over_the_gpus_that_a_release_held_while_it_served() -> None:
    for ago_s in (55, 45, 25):
        _report(ago_s, _key("u-1", 1), [0.1] * 100, goodput__of=100, goodput__met=90)
    _report(25, _key("u-2", 2), [0.1] * 10, goodput__of=10, goodput__met=10)
    _report(25, _key("u-3", 3), [0.1] * 10)
    for ago_s in range(5, 65, 10):
        for unit, since_s, gpus in (("u-1", 60, 8), ("u-2", 30, 72), ("u-3", 30, 8)):
            if ago_s <= since_s:
                values = {"gpus": float(gpus), "kv_use": 0.5}
                at = NOW - timedelta(seconds=ago_s)
                gauges_record(at=at, stage="m/s", unit=unit, values=values, source="engines", received_at=at)
    view = metrics_view(stage="m/s", span_s=60, now=NOW)
    one, two, three = view.groups
    assert one.goodput is not None and (one.goodput.met, one.goodput.of, one.goodput.gpus) == (270, 300, 8)
    assert one.goodput.per_gpu_s == pytest.approx(270 / 55 / 8)  # since its first request
    assert two.goodput is not None and two.goodput.gpus == 72
    assert three.goodput is None  # no limits, nothing to meet
    assert view.total.goodput is not None and 8 < (view.total.goodput.gpus or 0) < 88  # two of the units came half way
    frame = frame_view(stage="m/s", names=["goodput", "goodput_ratio"], span_s=60, step_s=10, now=NOW)
    assert _values(frame, "m@1", "goodput") == (None, 1.125, 1.125, 0.0, 1.125, None)  # in a silent step its GPUs bring nothing
    assert set(_values(frame, "m@3", "goodput")) == {None}
    assert {value for value in _values(frame, "m@1", "goodput_ratio") if value is not None} == {0.9}


def test_what_engines_count_is_a_line_a_second_and_a_sum_over_the_span() -> None:
    _report(45, _key("u-1", 1), [0.1])
    for place, ago_s in enumerate(range(75, 0, -10)):
        at = NOW - timedelta(seconds=ago_s)
        for unit, each in (("u-1", 100.0), ("u-2", 1000.0)):
            values = totals([(f"e-{unit}-{place > 5}", {"kv_transfer_bytes": each * (1 + place), "preemptions": float(place > 3)})])
            gauges_record(at=at, stage="m/s", unit=unit, values=values | {"kv_use": 0.5}, source="engines", received_at=at)
    names = ["engine.kv_transfer_bytes", "engine.preemptions", "gauge.kv_use"]
    by_unit = frame_view(stage="m/s", names=names, span_s=60, step_s=20, by="unit", now=NOW)
    assert _values(by_unit, "u-1", "engine.kv_transfer_bytes") == (10.0, 10.0, 5.0), (
        "the last row is of another process than the one before"
    )
    assert _values(by_unit, "u-2", "engine.preemptions") == (0.0, 0.05, 0.0)
    whole = frame_view(stage="m/s", names=names, span_s=60, step_s=20, by="total", now=NOW)
    assert _values(whole, "total", "engine.kv_transfer_bytes") == (110.0, 110.0, 55.0)
    assert _values(whole, "total", "gauge.kv_use") == (0.5, 0.5, 0.5)
    view = metrics_view(stage="m/s", span_s=60, now=NOW)
    assert view.groups[0].engines == {"kv_transfer_bytes": 600.0, "preemptions": 1.0}
    assert view.total.engines == {"kv_transfer_bytes": 6600.0, "preemptions": 2.0}
    assert set(view.total.gauges) == {"kv_use"}


def test_steps_merge_histograms_and_do_not_average_quantiles() -> None:
    _report(55, _key("u-1", 1), [0.1] * 99)
    _report(45, _key("u-2", 1), [3.0])
    frame = frame_view(stage="m/s", names=["ttft.p50", "requests"], span_s=60, step_s=60, by="total", now=NOW)
    assert _values(frame, "total", "ttft.p50")[0] == pytest.approx(0.1, rel=0.011)
    assert _values(frame, "total", "requests")[0] == pytest.approx(100 / 60)


def test_a_chart_is_two_queries_and_one_when_nothing_of_it_is_new() -> None:
    _report(30, _key("u-1", 1), [0.1])
    for most in (2, 1):
        with CaptureQueriesContext(connection) as queries:
            frame_view(stage="m/s", names=["ttft.p99", "itl.p99", "requests"], span_s=3600, step_s=10, now=NOW)
        assert len(queries) == most


def test_steps_that_were_worked_out_before_are_what_they_would_be_now(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "release": ("ttft.p50", "ttft.p99", "requests", "error_ratio", "tail.queue", "goodput"),
        "total": ("phase.queue", "requests", "remote_ratio"),
        "unit": ("gauge.gpus", "queue.p99"),
    }
    dice, kept = random.Random(7), steps._Kept()
    monkeypatch.setattr(steps, "KEPT", 40)

    def asked(step_s: float, of: steps._Kept) -> dict[str, FrameView]:
        monkeypatch.setattr(steps, "_kept", of)
        return frames_view(stage="m/s", names=names, span_s=900, step_s=step_s, now=NOW)

    for turn in range(16):
        unit = dice.choice(["u-1", "u-2"])
        key = _key(unit, dice.choice([1, 2]), route=dice.choice([Route.REMOTE, Route.LOCAL]))
        ago_s, ttfts = dice.choice([15, 40, 400, 700]), [dice.uniform(0.01, 3) for _ in range(9)]
        _report(ago_s, key, ttfts, errors=dice.randrange(2), goodput__of=9, goodput__met=8, tokens__remote=100)
        if turn == 5:
            gauges_record(at=NOW - timedelta(seconds=40), stage="m/s", unit="u-1", values={"gpus": 8.0}, source="engines", received_at=NOW)
        if turn in (6, 7, 8):  # all three in one transaction: the rows are written again by the same one
            Window.objects.filter(start_at__lt=NOW - timedelta(seconds=300)).update(counters={"requests": turn})
        if turn == 10:
            windows_roll_up(now=NOW)
        if turn == 12:
            Window.objects.filter(unit="u-2", seconds=10, start_at__lt=NOW - timedelta(seconds=300)).delete()
        for step_s in (30, 300):
            assert asked(step_s, kept) == asked(step_s, steps._Kept()), turn
    assert len(kept._steps) <= 40


@pytest.mark.parametrize(
    ("names", "span_s", "step_s", "by"),
    [
        (["ttft.p98"], 60, 10, "release"),
        (["tokens.zzz"], 60, 10, "release"),
        (["ttft.p99"], 60, 10, "colour"),
        (["ttft.p99"], 86400, 10, "release"),
        (["ttft.p99"], 0, 10, "release"),
    ],
)
def test_what_cannot_be_drawn_is_refused(names: list[str], span_s: float, step_s: float, by: str) -> None:
    with pytest.raises(InvalidError):
        frame_view(stage="m/s", names=names, span_s=span_s, step_s=step_s, by=by, now=NOW)


def test_alarm_values_stand_at_the_alarm_s_own_quantile() -> None:
    _report(30, _key("u-1", 1), [0.1] * 90 + [1.0] * 10, errors=5)
    alarms = [
        AlarmSpec(name="ttft-p90", metric="ttft", p0=0.1, limit_s=1),
        AlarmSpec(name="itl-p99", metric="itl", p0=0.01, limit_s=1),
        AlarmSpec(name="error-rate", metric="error-rate", p0=0.01),
    ]
    values = alarm_figures(stage="m/s", alarms=alarms, span_s=60, now=NOW)
    assert values["ttft-p90"].value == pytest.approx(0.1, rel=0.011)
    assert (values["ttft-p90"].text, values["ttft-p90"].state) == ("99 ms", "ok")
    assert (values["itl-p99"].value, values["itl-p99"].state) == (None, "no-data")
    assert (values["error-rate"].value, values["error-rate"].text, values["error-rate"].state) == (0.05, "5%", "over")


# ---- roll-ups ----


def _all(span_s: float, now: datetime = NOW) -> MetricsView:
    return metrics_view(stage="m/s", span_s=span_s, now=now)


def test_rolling_up_changes_no_figure() -> None:
    for minute in range(25):
        _report(60 * minute + 3, _key("u-1", 1), [0.1, 0.2 + minute / 100])
        _report(60 * minute + 33, _key("u-2", 2), [0.3])
    names = ["ttft.p50", "ttft.p99", "requests", "tail.queue"]
    spans_s = (90, 400, 777, 1300, 3600)

    def seen() -> tuple[list[MetricsView], FrameView]:
        return [_all(span_s) for span_s in spans_s], frame_view(stage="m/s", names=names, span_s=3600, step_s=300, now=NOW)

    before = seen()
    assert windows_roll_up(now=NOW) == 4  # the fifth span has ended 5 s ago, and reports may still come
    assert windows_roll_up(now=NOW) == 0
    assert Window.objects.filter(seconds=300).count() == 8
    _same(seen(), before)
    assert windows_roll_up(now=NOW + timedelta(minutes=1)) == 1
    _same(seen(), before)


def _same(got: tuple[list[MetricsView], FrameView], wanted: tuple[list[MetricsView], FrameView]) -> None:
    assert got[1] == wanted[1]
    for ours, theirs in zip(got[0], wanted[0], strict=True):
        assert [group.requests for group in ours.groups] == [group.requests for group in theirs.groups]
        one, other = ours.total.latencies[Metric.TTFT], theirs.total.latencies[Metric.TTFT]
        assert replace(one, mean_s=None) == replace(other, mean_s=None)
        assert one.mean_s == pytest.approx(other.mean_s)


def test_the_task_may_run_any_number_of_times() -> None:
    _report(0, _key("u-1", 1), [0.1], now=timezone.now() - timedelta(minutes=20))
    for _ in range(2):
        roll_up()
    assert list(Window.objects.order_by("seconds").values_list("seconds", "counters__requests")) == [(10, 1), (300, 1)]
    assert current_app.tasks["metrics.roll_up"] is not None


def test_late_figures_are_rolled_up_again() -> None:
    _report(1000, _key("u-1", 1), [0.1])
    windows_roll_up(now=NOW)
    _report(1000, _key("u-1", 1), [0.1, 0.1])
    assert windows_roll_up(now=NOW) == 1
    assert windows_roll_up(now=NOW) == 0
    assert _all(3600).total.requests == 3


def test_a_gauge_of_a_long_span_is_the_mean_of_a_sample_of_each_step() -> None:
    for window in range(180):  # half an hour, in three steps; within each the queue grows by one a window
        at = NOW + timedelta(seconds=10 * window)
        gauges_record(at=at, stage="m/s", unit="u", values={"prefill_queue": window % 60}, source="r", received_at=at)

    def drawn(step_s: float) -> tuple[float | None, ...]:
        now = NOW + timedelta(seconds=1805)
        frame = frame_view(stage="m/s", names=["gauge.prefill_queue"], span_s=1800, step_s=step_s, by="unit", now=now)
        return _values(frame, "u", "gauge.prefill_queue")

    assert drawn(600) == (25, 25, 25), "every tenth of a step's sixty windows: 0, 10, .. 50"
    assert [sample_s(step) for step in (10, 60, 120, 300, 600, 1800, 86400)] == [10, 10, 20, 50, 100, 300, 300]
    assert drawn(60)[:3] == (2.5, 8.5, 14.5), "a short step has all of its windows"


def test_figures_that_come_after_a_day_are_added_once() -> None:
    _report(1000, _key("u-1", 1), [0.1] * 5)
    windows_roll_up(now=NOW)
    tomorrow = NOW + timedelta(hours=25)
    metrics_prune(now=tomorrow)
    assert not Window.objects.filter(seconds=10).exists()
    _report(1000, _key("u-1", 1), [0.1] * 2)
    _report(1000, _key("u-9", 1), [0.1])
    windows_roll_up(now=tomorrow)
    windows_roll_up(now=tomorrow)
    metrics_prune(now=tomorrow)
    assert _all(2 * 86400, tomorrow).total.requests == 8


def test_pruning_never_drops_what_is_not_rolled_up() -> None:
    _report(1000, _key("u-1", 1), [0.1] * 5)
    metrics_prune(now=NOW + timedelta(hours=48))
    assert Window.objects.filter(seconds=10).count() == 1


def test_pruning_keeps_what_it_must() -> None:
    for hours in (0, 2, 30):
        series_ingest(source="r1", seq=100 - hours, at=NOW, series=[], stage="m/s", received_at=NOW - timedelta(hours=hours))
    series_ingest(source="r-gone", seq=1, at=NOW, series=[], stage="m/s", received_at=NOW - timedelta(hours=30))
    series_ingest(source="r-gone-long-ago", seq=1, at=NOW, series=[], stage="m/s", received_at=NOW - timedelta(days=8))
    for ago_s in (5, 86400 + 610, 86400 + 615 - 310):
        gauges_record(at=NOW - timedelta(seconds=ago_s), stage="m/s", unit="u", values={"x": 1}, received_at=NOW)
    metrics_prune(now=NOW)
    assert set(IngestedReport.objects.values_list("source", "seq")) == {("r1", 100), ("r-gone", 1)}
    assert sorted(GaugeWindow.objects.values_list("start_at", flat=True)) == [
        datetime(2026, 2, 28, 11, 55, tzinfo=UTC),
        datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
    ]
