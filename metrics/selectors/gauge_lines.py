"""Lines of gauges, and of what engines count by themselves: one read of the gauges' windows for all groupings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta

from django.db.models import BigIntegerField, TextField
from django.db.models.functions import Cast, Extract

from denvweb.core import wire
from metrics.domain.engines import KEPT, rises
from metrics.domain.figures import ENGINE, GAUGE, GOODPUT, GPUS, TOTAL, gauge_sum
from metrics.selectors.figures import gauge_values
from metrics.selectors.windows import gauge_windows, sample_s

START_S = Cast(Extract("start_at", "epoch"), BigIntegerField())  # a number comes out of the driver ten times as fast as a moment

Steps = dict[tuple[str, str], dict[int, float]]  # by (group, line), then by step
_Rows = list[tuple[int, dict[str, float]]]  # of one unit: when, and its gauges
_values_of = wire.decoder(dict[str, float])


def gauge_line_of(name: str) -> str:
    """The line of gauges that a line is, or is worked out with; empty for others."""
    return GAUGE + GPUS if name == GOODPUT else name if name.startswith((GAUGE, ENGINE)) else ""


def gauge_steps(
    stage: str,
    names: Mapping[str, Sequence[str]],
    groups_by_unit: Mapping[str, Mapping[str, set[str]]],
    begin: datetime,
    end: datetime,
    step: int,
) -> dict[str, Steps]:
    """By grouping: means of gauges over each step, of a sample of it where it is long, and counts of engines a second."""
    wanted = {by: {line for line in map(gauge_line_of, group) if line} for by, group in names.items()}
    every = set().union(*wanted.values())
    if not every:
        return {by: {} for by in names}
    gauges, counts = _tails(every, GAUGE), _tails(every, ENGINE)
    apart_s, begin_s = sample_s(step), int(begin.timestamp())
    units = _rows_by_unit(stage, begin - timedelta(seconds=apart_s if counts else 0), end, apart_s, gauges | (KEPT if counts else set()))
    steps: dict[str, Steps] = {}
    for by, lines in wanted.items():
        rows = [(_groups(by, unit, groups_by_unit[by]), found) for unit, found in units.items()]
        steps[by] = _means(rows, _tails(lines, GAUGE), begin_s, step) | _rises(rows, _tails(lines, ENGINE), begin_s, step)
    return steps


def _tails(lines: Iterable[str], prefix: str) -> set[str]:
    return {line.removeprefix(prefix) for line in lines if line.startswith(prefix)}


def _rows_by_unit(stage: str, begin: datetime, end: datetime, apart_s: int, only: Set[str]) -> dict[str, _Rows]:
    units: dict[str, _Rows] = defaultdict(list)
    rows = gauge_windows(stage=stage, begin=begin, end=end, apart_s=apart_s)
    for start_s, unit, kept in rows.values_list(START_S, "unit", Cast("values", TextField())):
        units[unit].append((start_s, gauge_values(_values_of(kept), only)))
    return units


def _groups(by: str, unit: str, found: Mapping[str, set[str]]) -> Iterable[str]:
    """The groups that a unit's gauges count for; `found` are those that it had figures in."""
    return {TOTAL} if by == TOTAL else {unit} if by == "unit" else found.get(unit, ())


def _means(units: Sequence[tuple[Iterable[str], _Rows]], names: Set[str], begin_s: int, step: int) -> Steps:
    samples: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(dict)  # by instant: those of all units
    for groups, rows in units if names else ():
        for group in groups:
            for name in names:
                held = samples[group, name]
                for start_s, values in rows:
                    if name in values and start_s >= begin_s:
                        if start_s in held:
                            held[start_s].append(values[name])
                        else:
                            held[start_s] = [values[name]]
    return {(group, GAUGE + name): _step_means(name, held, begin_s, step) for (group, name), held in samples.items() if held}


def _step_means(name: str, samples: Mapping[int, list[float]], begin_s: int, step: int) -> dict[int, float]:
    steps: dict[int, list[float]] = defaultdict(list)
    for start_s, each in samples.items():
        steps[(start_s - begin_s) // step].append(each[0] if len(each) == 1 else gauge_sum(name, each))
    return {index: sum(each) / len(each) for index, each in steps.items()}


def _rises(units: Sequence[tuple[Iterable[str], _Rows]], names: Set[str], begin_s: int, step: int) -> Steps:
    steps: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for groups, rows in units if names else ():
        counted = [((start_s - begin_s) // step, counts) for start_s, counts in rises(rows, names) if start_s >= begin_s]
        for group in groups:
            for name in names:
                held = steps[group, ENGINE + name]
                for index, counts in counted:
                    if name in counts:
                        held[index] += counts[name] / step
    return {key: held for key, held in steps.items() if held}
