"""Lines for charts: one read of the windows, merged step by step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from denvweb.core import wire
from denvweb.core.errors import InvalidError
from metrics.domain.figures import (
    ENGINE,
    GAUGE,
    GOODPUT,
    goodput_value,
    group_of,
    group_order,
    is_count,
    is_line,
    is_mean,
    is_tail,
    line_value,
    metric_of,
    with_route,
)
from metrics.domain.split import Split, Tail
from metrics.domain.views import FrameView, LineView
from metrics.domain.window import Figures, unpack_into, unpack_sums_into
from metrics.models import ROLLED_S, WINDOW_S, Window
from metrics.selectors.figures import check_grouping
from metrics.selectors.gauge_lines import START_S, Steps, gauge_line_of, gauge_steps
from metrics.selectors.windows import fine_windows, floor_to, users_windows

MAX_POINTS = 2000
_WINDOWS_AT_ONCE = 600
_counts_of, _texts_of = wire.decoder(dict[str, int]), wire.decoder(dict[str, str])
_SETTLE = timedelta(seconds=2)  # a step's last report comes a second after the step; drawn sooner, each line would dip at its end

_SILENT = Figures()  # of a step without a request

Cells = defaultdict[str, defaultdict[int, Figures]]  # by group, then by step


def frame_view(*, stage: str, names: Sequence[str], span_s: float, step_s: float, by: str = "release", now: datetime) -> FrameView:
    """Lines of users' requests over the whole steps of the last `span_s` seconds; `at` holds the steps' starts.

    The step is rounded up to whole windows of 10 seconds. Counts are a second; see metrics.domain.figures.line_value.
    """
    return frames_view(stage=stage, names={by: names}, span_s=span_s, step_s=step_s, now=now)[by]


def frames_view(*, stage: str, names: Mapping[str, Sequence[str]], span_s: float, step_s: float, now: datetime) -> dict[str, FrameView]:
    """The same for several groupings at once, each with lines of its own: the windows and the gauges are read once."""
    for by in names:
        check_grouping(by)
    every = list(dict.fromkeys(name for group in names.values() for name in group))
    step, points = _grid(every, span_s, step_s)
    end = floor_to(now - _SETTLE, step)
    begin = end - timedelta(seconds=step * points)
    at = tuple(begin + timedelta(seconds=step * index) for index in range(points))
    read = _read(stage, names, begin, end, step)
    gauges = gauge_steps(stage, names, read.groups_by_unit, begin, end, step)
    return {
        by: FrameView(stage, float(step), at, tuple(_lines(wanted, read.cells[by], gauges[by], points, step)), _slowest(read.cells[by]))
        for by, wanted in names.items()
    }


def _slowest(cells: Cells) -> dict[str, Tail]:
    """Of all steps together, by group."""
    found = {}
    for group, steps in cells.items():
        split = Split()
        for figures in steps.values():
            split.merge(figures.split)
        tail = split.tail()
        if tail is not None:
            found[group] = tail
    return found


def _lines(names: Sequence[str], cells: Cells, gauges: Steps, points: int, step: int) -> Iterator[LineView]:
    for group in sorted(cells.keys() | {group for group, _ in gauges}, key=group_order):
        for name in dict.fromkeys(names):
            said = gauges.get((group, gauge_line_of(name)), {})
            yield LineView(group=group, name=name, values=_values(name, cells.get(group, {}), said, points, step))


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


@dataclass(slots=True)
class _Read:
    """Sums by grouping, group and step, and the groups that each unit was in."""

    cells: dict[str, Cells]
    groups_by_unit: dict[str, dict[str, set[str]]]


def _metrics(names: Iterable[str]) -> dict[str, bool]:
    """The histograms that the lines need, and whether for more than their means."""
    found: dict[str, bool] = {}
    for name in names:
        if metric := metric_of(name):
            found[metric.value] = found.get(metric.value, False) or not is_mean(name)
    return found


def _is_counted(name: str) -> bool:
    return metric_of(name) is None and not is_tail(name) and not gauge_line_of(name)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the lines of one grouping are made of."""

    counts: bool
    metrics: Mapping[str, bool]  # and whether for more than their means
    split: bool

    @classmethod
    def of(cls, names: Sequence[str]) -> _Wanted:
        """That of these lines."""
        return cls(any(map(_is_counted, names)), _metrics(names), any(map(is_tail, names)))


def _read(stage: str, names: Mapping[str, Sequence[str]], begin: datetime, end: datetime, step: int) -> _Read:
    """One pass over the windows, with only what the lines need."""
    wanted = {by: _Wanted.of(group) for by, group in names.items()}
    timed, counted, parted = (any(map(bool, each)) for each in zip(*((w.metrics, w.counts, w.split) for w in wanted.values()), strict=True))
    columns: tuple[str | Cast, ...] = (
        *(START_S, "unit", "prefill_release", "decode_release", "route"),
        *([Cast("counters", TextField())] if counted else []),
        *(["split"] if parted else []),
        *([Cast("histograms", TextField())] if timed else []),  # whole: asked for one by one, each is unpacked from all of them again
    )
    found = _Read({by: defaultdict(lambda: defaultdict(Figures)) for by in names}, {by: defaultdict(set) for by in names})
    sinks = cache(lambda *series: _sinks(found, wanted, *series))  # of a series: the same for each of its rows
    begin_s = int(begin.timestamp())
    for rows in _pieces(stage, begin, end, step):
        for start_s, unit, prefill, decode, route, *rest in rows.values_list(*columns):
            counters = with_route(_counts_of(rest.pop(0)), route) if counted else {}
            split = rest.pop(0) if parted else ""
            texts = _texts_of(rest.pop(0)) if timed else {}
            index = (start_s - begin_s) // step
            for cells, want in sinks(unit, prefill, decode):
                cell = cells[index]
                _add(cell, counters if want.counts else {}, texts, want.metrics)
                if want.split:
                    cell.split.merge_text(split)
    return found


def _pieces(stage: str, begin: datetime, end: datetime, step: int) -> Iterator[QuerySet[Window]]:
    """The span's rows, so many windows at once as may be in memory: a cursor in the database would copy them all first."""
    windows, seconds = (users_windows, ROLLED_S) if step % ROLLED_S == 0 else (fine_windows, WINDOW_S)
    for at_s in range(0, int((end - begin).total_seconds()), seconds * _WINDOWS_AT_ONCE):
        at = begin + timedelta(seconds=at_s)
        yield windows(stage=stage, begin=at, end=min(end, at + timedelta(seconds=seconds * _WINDOWS_AT_ONCE)))


def _sinks(
    found: _Read, wanted: Mapping[str, _Wanted], unit: str, prefill: str, decode: str
) -> list[tuple[defaultdict[int, Figures], _Wanted]]:
    """Where the rows of one series go, by step, and what of them."""
    sinks = []
    for by, want in wanted.items():
        group = group_of(by, unit=unit, prefill_release=prefill, decode_release=decode)
        found.groups_by_unit[by][unit].add(group)
        cells = found.cells[by][group]
        if want.counts or want.metrics or want.split:
            sinks.append((cells, want))
    return sinks


def _add(figures: Figures, counters: Mapping[str, int], texts: Mapping[str, str], metrics: Mapping[str, bool]) -> None:
    figures.add_counters(counters)
    for metric, quantiles in metrics.items():
        if text := texts.get(metric):
            (unpack_into if quantiles else unpack_sums_into)(figures.histogram(metric), text)


def _values(name: str, cells: dict[int, Figures], gauges: dict[int, float], points: int, step: int) -> tuple[float | None, ...]:
    if name.startswith((GAUGE, ENGINE)):
        return tuple(gauges.get(index) for index in range(points))
    if name == GOODPUT:
        # Between its first and its last request a group that holds GPUs and answers nothing has a goodput of 0.
        spans = range(min(cells), max(cells) + 1) if cells else range(0)
        return tuple(goodput_value(cells.get(at, _SILENT), gauges.get(at), step) if at in spans else None for at in range(points))
    values = [line_value(name, cells[index], step) if index in cells else None for index in range(points)]
    if is_count(name) and cells:
        # Between its first and its last request a silent step is a 0; before and after, the group was not there.
        for index in range(min(cells), max(cells)):
            values[index] = values[index] or 0.0
    return tuple(values)
