"""Lines for charts: one read of the windows, merged step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from denvweb.core.errors import InvalidError
from metrics.domain.figures import ENGINE, GAUGE, GOODPUT, goodput_value, group_order, is_count, is_line
from metrics.domain.split import Split, Tail
from metrics.domain.views import FrameView, LineView
from metrics.models import WINDOW_S
from metrics.selectors.figures import check_grouping
from metrics.selectors.gauge_lines import Steps, gauge_line_of, gauge_steps
from metrics.selectors.steps import Cells, Step, read_steps
from metrics.selectors.windows import floor_to

MAX_POINTS = 2000
_SETTLE = timedelta(seconds=2)  # a step's last report comes a second after the step; drawn sooner, each line would dip at its end


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
    read = read_steps(stage, names, begin, end, step)
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
        for made in steps.values():
            split.merge_text(made.split)
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


def _values(name: str, cells: Mapping[int, Step], gauges: Mapping[int, float], points: int, step: int) -> tuple[float | None, ...]:
    if name.startswith((GAUGE, ENGINE)):
        return tuple(gauges.get(index) for index in range(points))
    if name == GOODPUT:
        # Between its first and its last request a group that holds GPUs and answers nothing has a goodput of 0.
        spans = range(min(cells), max(cells) + 1) if cells else range(0)
        counted = [cells[index].counters if index in cells else {} for index in range(points)]
        return tuple(goodput_value(counted[index], gauges.get(index), step) if index in spans else None for index in range(points))
    values = [cells[index].values[name] if index in cells else None for index in range(points)]
    if is_count(name) and cells:
        # Between its first and its last request a silent step is a 0; before and after, the group was not there.
        for index in range(min(cells), max(cells)):
            values[index] = values[index] or 0.0
    return tuple(values)
