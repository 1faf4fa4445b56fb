"""Rolls 10-second windows up into 5-minute ones and drops what is old. Any number of workers may run it, whenever they like."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from django.db import connection, transaction

from metrics.domain.types import SeriesKey
from metrics.domain.window import Figures
from metrics.models import ROLLED_S, WINDOW_S, GaugeWindow, IngestedReport, Window
from metrics.selectors.windows import floor_to
from metrics.services.ingest import KEY_FIELDS, stages_lock, windows_write

FINE_KEPT = timedelta(hours=24)
ROLLED_KEPT = timedelta(days=30)
REPORTS_KEPT = timedelta(hours=1)
_LAST_REPORT_KEPT = timedelta(days=7)
_AT_S = "extract(epoch FROM start_at AT TIME ZONE 'UTC')"  # as the index `gauge_by_age` has it
_GRACE = timedelta(seconds=30)  # reports of a window's last seconds are still on their way


def windows_roll_up(*, now: datetime) -> int:
    """Write the 5-minute rows of every span that has ended and has figures that are not in them; returns how many spans."""
    unsettled = Window.objects.filter(seconds=WINDOW_S, settled=False, start_at__lt=floor_to(now - _GRACE, ROLLED_S))
    spans = sorted({(stage, floor_to(start_at, ROLLED_S)) for stage, start_at in unsettled.values_list("stage", "start_at").distinct()})
    for stage, start_at in spans:
        _roll_up(stage, start_at)
    return len(spans)


@transaction.atomic
def _roll_up(stage: str, start_at: datetime) -> None:
    stages_lock([stage])
    end_at = start_at + timedelta(seconds=ROLLED_S)
    fine = Window.objects.filter(stage=stage, seconds=WINDOW_S, start_at__gte=start_at, start_at__lt=end_at)
    rolled = Window.objects.filter(stage=stage, seconds=ROLLED_S, start_at=start_at)
    sums: dict[SeriesKey, Figures] = defaultdict(Figures)
    late = rolled.filter(settled=True).exists()  # the other 10 s rows are gone: these came afterwards, and are added
    for row in (*fine, *(rolled if late else ())):
        key = SeriesKey(**{name: getattr(row, name) for name in KEY_FIELDS})
        sums[key].add_kept(row.counters, row.alarms, row.histograms, row.split)
    windows_write(start_at, ROLLED_S, sums, settled=late)
    if late:
        fine.delete()
    else:
        fine.update(settled=True)


def metrics_prune(*, now: datetime) -> None:
    """Drop fine windows after a day, rolled ones and gauges after a month, and the marks of ingested reports after an hour."""
    before = floor_to(now - FINE_KEPT, ROLLED_S)
    old = Window.objects.filter(seconds=WINDOW_S, start_at__lt=before)
    for stage in list(old.values_list("stage", flat=True).distinct()):
        _fine_drop(stage, before)
    Window.objects.filter(seconds=ROLLED_S, start_at__lt=now - ROLLED_KEPT).delete()
    gauges, reports = GaugeWindow._meta.db_table, IngestedReport._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {gauges} WHERE {_AT_S} < %s", [(now - ROLLED_KEPT).timestamp()])
        # One sample every five minutes is kept of what is over a day old.
        cursor.execute(
            f"DELETE FROM {gauges} WHERE {_AT_S} < %s AND {_AT_S} > %s AND {_AT_S}::bigint %% %s <> 0",
            [before.timestamp(), (before - timedelta(days=2)).timestamp(), ROLLED_S],
        )
        # The newest report of a router stays: it is the one that is sent again when only its acknowledgement was lost.
        cursor.execute(
            f"DELETE FROM {reports} AS old WHERE received_at < %s AND (received_at < %s OR EXISTS "
            f"(SELECT FROM {reports} AS newer WHERE newer.source = old.source AND newer.seq > old.seq))",
            [now - REPORTS_KEPT, now - _LAST_REPORT_KEPT],
        )


@transaction.atomic
def _fine_drop(stage: str, before: datetime) -> None:
    """Drop the 10 s rows of whole spans, and note on their 5-minute rows that what comes now has to be added."""
    stages_lock([stage])
    fine = Window.objects.filter(stage=stage, seconds=WINDOW_S, start_at__lt=before)
    if not fine.filter(settled=False).exists():
        fine.delete()
        Window.objects.filter(stage=stage, seconds=ROLLED_S, start_at__lt=before, settled=False).update(settled=True)
