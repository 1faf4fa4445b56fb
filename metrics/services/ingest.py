"""Takes in what routers counted: each report exactly once, merged into windows of 10 seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.utils import timezone

from metrics.domain.types import SeriesDelta, SeriesKey
from metrics.domain.window import Figures
from metrics.models import WINDOW_S, GaugeWindow, IngestedReport, Window
from metrics.selectors.windows import floor_to

KEY_FIELDS = ("stage", "unit", "prefill_release", "decode_release", "route", "probe")
_WINDOW_UNIQUE = ("stage", "seconds", "start_at", "unit", "decode_release", "prefill_release", "route", "probe")
_CLOCK_AHEAD = timedelta(seconds=30)


def stages_lock(stages: Iterable[str]) -> None:
    """Make the writers of each stage's windows take turns until the transaction ends.

    Rows that are not there yet cannot be locked, and two routers often count a new series in the same second.
    """
    with connection.cursor() as cursor:
        for stage in sorted(set(stages)):
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 7))", [f"metrics.window {stage}"])


def series_ingest(
    *,
    source: str,
    seq: int,
    at: datetime,
    series: Sequence[SeriesDelta],
    stage: str = "",
    received_at: datetime | None = None,
) -> bool:
    """Merge one report into the windows that hold `at`; False, and nothing done, when (source, seq) was merged before.

    `stage` says whose report an empty one is: it too tells that figures come in. `received_at` is the server's clock.
    """
    received_at = received_at or timezone.now()
    stage = stage or (series[0].key.stage if series else "")
    with transaction.atomic():
        if not _report_take(source, seq, stage, received_at):
            return False
        if series:
            stages_lock(delta.key.stage for delta in series)
            # A router whose clock runs ahead must not write figures into the future, where nobody looks.
            _windows_merge(floor_to(at if at <= received_at + _CLOCK_AHEAD else received_at, WINDOW_S), series)
    return True


def _report_take(source: str, seq: int, stage: str, received_at: datetime) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {IngestedReport._meta.db_table} (source, seq, stage, received_at) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (source, seq) DO NOTHING",
            [source, seq, stage, received_at],
        )
        return bool(cursor.rowcount)


def _windows_merge(start_at: datetime, series: Sequence[SeriesDelta]) -> None:
    sums: dict[SeriesKey, Figures] = {}
    held = Window.objects.filter(
        stage__in={delta.key.stage for delta in series},
        seconds=WINDOW_S,
        start_at=start_at,
        unit__in={delta.key.unit for delta in series},
    )
    wanted = {delta.key for delta in series}
    for row in held:
        key = SeriesKey(**{name: getattr(row, name) for name in KEY_FIELDS})
        if key in wanted:
            sums.setdefault(key, Figures()).add_kept(row.counters, row.alarms, row.histograms, row.split)
    for delta in series:
        figures = sums.setdefault(delta.key, Figures())
        figures.add_counters(delta.counters)
        figures.add_alarms(delta.alarms)
        figures.add_histograms(delta.histograms)
        figures.split.merge_bins(delta.split)
    windows_write(start_at, WINDOW_S, sums, settled=False)


def windows_write(start_at: datetime, seconds: int, sums: Mapping[SeriesKey, Figures], *, settled: bool) -> None:
    """Write whole rows, over what was there."""
    rows = []
    for key, figures in sums.items():
        counters, alarms, histograms, split = figures.kept()
        rows.append(
            Window(
                **{name: getattr(key, name) for name in KEY_FIELDS},
                seconds=seconds,
                start_at=start_at,
                settled=settled,
                counters=counters,
                alarms=alarms,
                histograms=histograms,
                split=split,
            )
        )
    Window.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=_WINDOW_UNIQUE, update_fields=["settled", "counters", "alarms", "histograms", "split"]
    )


def gauges_record(
    *, at: datetime, stage: str, unit: str, values: Mapping[str, float], source: str = "", received_at: datetime | None = None
) -> None:
    """Keep the newest values of a unit's gauges for the 10 seconds around `at`.

    Several sources (routers) may measure the same gauge: each one's newest value is kept, and reads add them up.
    """
    received_at = received_at or timezone.now()
    kept = {f"{source}:{name}": value for name, value in values.items()}
    start_at = floor_to(min(at, received_at + _CLOCK_AHEAD), WINDOW_S)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {GaugeWindow._meta.db_table} AS held (stage, unit, start_at, received_at, values) VALUES (%s, %s, %s, %s, %s) "
            "ON CONFLICT (stage, start_at, unit) DO UPDATE SET values = held.values || EXCLUDED.values, "
            "received_at = GREATEST(held.received_at, EXCLUDED.received_at)",
            [stage, unit, start_at, received_at, json.dumps(kept)],
        )
