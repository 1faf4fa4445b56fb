"""Keeps a glance of every stage: a few numbers in place of the thousands of histograms that they are made of.

Everything in a glance is derived from the windows and worked out from where it was left, so any worker may do it at any time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models.fields.json import KeyTextTransform

from denvweb.core import wire
from metrics.domain.figures import group_of, line_value, metric_of
from metrics.domain.glance import NAMES, POINTS, REDONE, STEP_S, GlanceView, living, shifted
from metrics.domain.window import Figures, unpack_into
from metrics.models import WINDOW_S, Glance, Window
from metrics.selectors.windows import floor_to

_STEP = timedelta(seconds=STEP_S)
_SPAN = _STEP * POINTS
_RATE_SPAN = timedelta(seconds=60)
_METRICS = [metric.value for metric in map(metric_of, NAMES) if metric]


@dataclass(slots=True)
class _Sums:
    """What was read of one stage."""

    cells: dict[tuple[str, int], Figures] = field(default_factory=lambda: defaultdict(Figures))  # by group and step
    requests: int = 0  # of the last minute
    errors: int = 0
    first_at: datetime | None = None  # within the last minute


def glances_write(*, now: datetime) -> int:
    """Bring all glances up to the last whole step; returns how many stages have one. Four statements, whatever there is."""
    end = floor_to(now, STEP_S)
    rows = {row.stage: row for row in Glance.objects.all()}
    known_to = min((row.end_at for row in rows.values()), default=end - _SPAN)
    sums = _read(since=max(end - _SPAN, min(known_to, end) - _STEP * REDONE), end=end, now=now)
    made = [Glance(stage=stage, end_at=end, data=_data(rows.get(stage), sums.get(stage, _Sums()), end, now)) for stage in {*rows, *sums}]
    full = [row for row in made if row.data["lines"] or row.data["requests"]]
    Glance.objects.bulk_create(full, update_conflicts=True, unique_fields=["stage"], update_fields=["end_at", "data"])
    Glance.objects.filter(end_at__lt=end).delete()  # nothing is left to be seen of these
    return len(full)


def _read(*, since: datetime, end: datetime, now: datetime) -> dict[str, _Sums]:
    fields = ("stage", "start_at", "unit", "prefill_release", "decode_release", "counters")
    rows = Window.objects.filter(seconds=WINDOW_S, probe=False, start_at__gte=since, start_at__lt=now).order_by()
    minute = floor_to(now - _RATE_SPAN, WINDOW_S)
    found: dict[str, _Sums] = defaultdict(_Sums)
    histograms = (KeyTextTransform(metric, "histograms") for metric in _METRICS)
    for stage, start_at, unit, prefill, decode, counters, *texts in rows.values_list(*fields, *histograms).iterator(chunk_size=5000):
        sums = found[stage]
        if start_at >= minute:
            sums.requests += counters.get("requests", 0)
            sums.errors += counters.get("errors", 0)
            sums.first_at = min(start_at, sums.first_at or start_at)
        if start_at < end:
            group = group_of("release", unit=unit, prefill_release=prefill, decode_release=decode)
            cell = sums.cells[group, (start_at - end + _SPAN) // _STEP]
            for metric, text in zip(_METRICS, texts, strict=True):
                if text is not None:
                    unpack_into(cell.histogram(metric), text)
    return found


def _data(row: Glance | None, sums: _Sums, end: datetime, now: datetime) -> dict[str, Any]:
    old = wire.from_plain(row.data, GlanceView).lines if row else {}
    lines = shifted(old, max(0, (end - row.end_at) // _STEP) if row else 0)
    for (group, index), cell in sums.cells.items():
        by_name = lines.setdefault(group, {name: [None] * POINTS for name in NAMES})
        for name in NAMES:
            by_name[name][index] = _short(line_value(name, cell, STEP_S))
    begin = max(floor_to(now - _RATE_SPAN, WINDOW_S), sums.first_at or now - _RATE_SPAN)
    view = GlanceView(living(lines), sums.requests, sums.errors, max(1.0, (now - begin).total_seconds()))
    plain: dict[str, Any] = wire.to_plain(view)
    return plain


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
