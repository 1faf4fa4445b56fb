"""Lines for charts: one read of the windows, merged step by step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db.models.fields.json import KeyTextTransform

from denvweb.core.errors import InvalidError
from metrics.domain.figures import TOTAL, gauge_sum, group_of, group_order, is_count, is_line, line_value, metric_of, with_route
from metrics.domain.views import FrameView, LineView
from metrics.domain.window import Figures, unpack_into
from metrics.models import ROLLED_S, WINDOW_S, GaugeWindow
from metrics.selectors.figures import check_grouping, gauge_values
from metrics.selectors.windows import fine_windows, floor_to, users_windows

MAX_POINTS = 2000
_SETTLE = timedelta(seconds=2)  # a step's last report comes a second after the step; drawn sooner, each line would dip at its end

Cells = dict[str, dict[int, Figures]]  # by group, then by step


def frame_view(*, stage: str, names: Sequence[str], span_s: float, step_s: float, by: str = "release", now: datetime) -> FrameView:
    """Lines of users' requests over the whole steps of the last `span_s` seconds; `at` holds the steps' starts.

    The step is rounded up to whole windows of 10 seconds. Counts are a second; see metrics.domain.figures.line_value.
    """
    check_grouping(by)
    step, points = _grid(names, span_s, step_s)
    end = floor_to(now - _SETTLE, step)
    begin = end - timedelta(seconds=step * points)
    cells, groups_by_unit = _cells(stage, names, by, begin, end, step)
    gauges = _gauges(stage, names, by, groups_by_unit, begin, end, step)
    lines = [
        LineView(group=group, name=name, values=_values(name, cells.get(group, {}), gauges.get((group, name), {}), points, step))
        for group in sorted(cells.keys() | {group for group, _ in gauges}, key=group_order)
        for name in dict.fromkeys(names)
    ]
    return FrameView(
        stage=stage, step_s=float(step), at=tuple(begin + timedelta(seconds=step * i) for i in range(points)), lines=tuple(lines)
    )


def _grid(names: Sequence[str], span_s: float, step_s: float) -> tuple[int, int]:
    """Seconds of a step and the number of steps; InvalidError for what cannot be drawn."""
    unknown = [name for name in names if not is_line(name)]
    if unknown:
        raise InvalidError(f"no such figure: {', '.join(unknown)}", fields={"names": unknown})
    if not 0 < span_s < math.inf or not 0 < step_s < math.inf:
        raise InvalidError("the span and the step must be times over 0")
    step = math.ceil(step_s / WINDOW_S) * WINDOW_S
    points = max(1, math.ceil(span_s / step))
    if points > MAX_POINTS:
        raise InvalidError(f"that is {points:,} points a line; at most {MAX_POINTS:,} are drawn: take a longer step or a shorter span")
    return step, points


def _cells(stage: str, names: Sequence[str], by: str, begin: datetime, end: datetime, step: int) -> tuple[Cells, dict[str, set[str]]]:
    """Sums by group and step, with only the histograms that the lines need; and the groups that each unit was in."""
    metrics = sorted({metric.value for metric in map(metric_of, names) if metric})
    counted = any(metric_of(name) is None for name in names)
    read = users_windows if step % ROLLED_S == 0 else fine_windows
    rows = read(stage=stage, begin=begin, end=end).values_list(
        "start_at",
        "unit",
        "prefill_release",
        "decode_release",
        "route",
        *(["counters"] if counted else []),
        *(KeyTextTransform(metric, "histograms") for metric in metrics),
    )
    cells: Cells = defaultdict(lambda: defaultdict(Figures))
    groups_by_unit: dict[str, set[str]] = defaultdict(set)
    for start_at, unit, prefill, decode, route, *rest in rows.iterator(chunk_size=5000):
        group = group_of(by, unit=unit, prefill_release=prefill, decode_release=decode)
        groups_by_unit[unit].add(group)
        figures = cells[group][int((start_at - begin).total_seconds()) // step]
        if counted:
            figures.add_counters(with_route(rest.pop(0), route))
        for metric, text in zip(metrics, rest, strict=True):
            if text is not None:
                unpack_into(figures.histogram(metric), text)
    return cells, groups_by_unit


def _gauges(
    stage: str, names: Iterable[str], by: str, groups_by_unit: dict[str, set[str]], begin: datetime, end: datetime, step: int
) -> dict[tuple[str, str], dict[int, float]]:
    """Means over each step, by (group, `gauge.<name>`) and step."""
    wanted = {name.partition(".")[2] for name in names if name.startswith("gauge.")}
    if not wanted:
        return {}
    samples: dict[tuple[str, str, int, datetime], list[float]] = defaultdict(list)
    rows = GaugeWindow.objects.filter(stage=stage, start_at__gte=begin, start_at__lt=end)
    for start_at, unit, kept in rows.values_list("start_at", "unit", "values").iterator():
        groups = {TOTAL} if by == TOTAL else {unit} if by == "unit" else groups_by_unit.get(unit, set())
        for name, value in gauge_values(kept).items():
            for group in groups if name in wanted else ():
                samples[group, name, int((start_at - begin).total_seconds()) // step, start_at].append(value)
    steps: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (group, name, index, _), values in samples.items():
        steps[group, f"gauge.{name}"][index].append(gauge_sum(name, values))
    return {key: {index: sum(values) / len(values) for index, values in cells.items()} for key, cells in steps.items()}


def _values(name: str, cells: dict[int, Figures], gauges: dict[int, float], points: int, step: int) -> tuple[float | None, ...]:
    if name.startswith("gauge."):
        return tuple(gauges.get(index) for index in range(points))
    values = [line_value(name, cells[index], step) if index in cells else None for index in range(points)]
    if is_count(name) and cells:
        # Between its first and its last request a silent step is a 0; before and after, the group was not there.
        for index in range(min(cells), max(cells)):
            values[index] = values[index] or 0.0
    return tuple(values)
