"""Reports of routers: each counted once, merged exactly, whatever order and however often they come."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from metrics.domain.histogram import Histogram
from metrics.domain.types import AlarmCount, Metric, Route, SeriesDelta, SeriesKey, SplitBin
from metrics.domain.window import Figures
from metrics.models import GaugeWindow, IngestedReport, Window
from metrics.services import gauges_record, series_ingest

AT = datetime(2026, 3, 1, 12, 0, 7, tzinfo=UTC)
KEY = SeriesKey(stage="m/s", unit="u-1", prefill_release="m@1", decode_release="m@1", route=Route.REMOTE)


def _delta(key: SeriesKey = KEY, *, requests: int = 3, ttft_s: float = 0.2) -> SeriesDelta:
    histogram = Histogram()
    for _ in range(requests):
        histogram.record(ttft_s)
    return SeriesDelta(
        key=key,
        counters={"requests": requests, "errors": 1},
        histograms={Metric.TTFT: histogram.to_data()},
        alarms={"ttft-p99": AlarmCount(n=requests, k=1), "itl-p99": AlarmCount(n=requests, k=0.5, bets=(1.0, -2.0))},
        split={3: SplitBin(requests, 10, 20, 0, 5)},
    )


def _figures(row: Window) -> Figures:
    figures = Figures()
    figures.add_kept(row.counters, row.alarms, row.histograms, row.split)
    return figures


@pytest.mark.django_db
def test_a_report_sent_again_counts_once() -> None:
    assert series_ingest(source="r1/b1", seq=1, at=AT, series=[_delta()])
    assert not series_ingest(source="r1/b1", seq=1, at=AT, series=[_delta()])
    assert series_ingest(source="r1/b2", seq=1, at=AT, series=[_delta()])
    row = Window.objects.get()
    assert row.start_at == AT.replace(second=0)
    figures = _figures(row)
    assert figures.counters == {"requests": 6, "errors": 2}
    assert figures.alarms["ttft-p99"] == AlarmCount(n=6, k=2)
    assert figures.alarms["itl-p99"] == AlarmCount(n=6, k=1.0, bets=(2.0, -4.0))
    assert figures.histogram("ttft").count == 6
    assert figures.split.bins == {3: SplitBin(6, 20, 40, 0, 10)}
    assert figures.histogram("ttft").quantile(0.5) == pytest.approx(0.2, rel=0.011)


@pytest.mark.django_db
def test_series_and_windows_stay_apart() -> None:
    other = SeriesKey(stage="m/s", unit="u-1", prefill_release="m@1", decode_release="m@2", route=Route.LOCAL)
    series_ingest(source="r", seq=1, at=AT, series=[_delta(), _delta(other, requests=5)])
    series_ingest(source="r", seq=2, at=AT + timedelta(seconds=10), series=[_delta(other, requests=7)])
    found = Window.objects.order_by("start_at", "decode_release").values_list("decode_release", "counters__requests")
    assert list(found) == [("m@1", 3), ("m@2", 5), ("m@2", 7)]


@pytest.mark.django_db
def test_an_empty_report_tells_that_figures_come_in() -> None:
    assert series_ingest(source="r", seq=1, at=AT, series=[], stage="m/s")
    assert IngestedReport.objects.get().stage == "m/s"
    assert not Window.objects.exists()


@pytest.mark.django_db
def test_a_router_clock_in_the_future_is_not_believed() -> None:
    now = timezone.now()
    series_ingest(source="r", seq=1, at=now + timedelta(hours=2), series=[_delta()])
    assert Window.objects.get().start_at <= now


@pytest.mark.django_db(transaction=True)
def test_routers_at_once_lose_nothing() -> None:
    """Eight routers count the same new series in the same second."""
    start = threading.Barrier(8)

    def report(router: int) -> None:
        start.wait()
        try:
            for seq in range(3):
                for _ in range(2):
                    series_ingest(source=f"r{router}", seq=seq, at=AT, series=[_delta()])
        finally:
            connection.close()

    threads = [threading.Thread(target=report, args=(router,)) for router in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _figures(Window.objects.get()).counters["requests"] == 8 * 3 * 3


@pytest.mark.django_db
def test_the_newest_gauge_of_each_source_is_kept() -> None:
    gauges_record(at=AT, stage="m/s", unit="u-1", values={"prefill_queue": 3, "kv_use": 0.4}, source="r1")
    gauges_record(at=AT, stage="m/s", unit="u-1", values={"prefill_queue": 5}, source="r1")
    gauges_record(at=AT, stage="m/s", unit="u-1", values={"prefill_queue": 1}, source="r2")
    assert GaugeWindow.objects.get().values == {"r1:prefill_queue": 5, "r1:kv_use": 0.4, "r2:prefill_queue": 1}
