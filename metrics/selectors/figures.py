"""Figures of a stage over the last seconds: by release, by unit, and the value beside each alarm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache

from denvweb.core.errors import InvalidError
from metrics.domain.alarm_figure import COUNTED, AlarmFigure, alarm_figure
from metrics.domain.alarm_text import ITL, TIMED
from metrics.domain.engines import KEPT, rises
from metrics.domain.figures import GPUS, GROUPINGS, TOTAL, gauge_sum, group_of, group_order, group_view, with_route
from metrics.domain.types import AlarmSpec
from metrics.domain.views import GroupView, MetricsView
from metrics.domain.window import Figures
from metrics.models import WINDOW_S, GaugeWindow
from metrics.selectors.windows import fine_windows_of, floor_to, gauge_windows, sample_s, users_windows

_GPU_STEPS = 20  # of a span, at least, in each of which the GPUs are looked at several times
_KEPT = {GPUS, *KEPT}
_GAUGES_NEW = timedelta(seconds=30)
BASELINE_SPAN = timedelta(hours=1)
COMPARED_BY_QUANTILE = (ITL, *TIMED)


def check_grouping(by: str) -> None:
    """InvalidError for a grouping that there is not."""
    if by not in GROUPINGS:
        raise InvalidError(f"figures are grouped by {', '.join(GROUPINGS)}, not by `{by}`", fields={"by": ["not a grouping"]})


def metrics_view(*, stage: str, span_s: float, by: str = "release", now: datetime) -> MetricsView:
    """Users' requests of the last `span_s` seconds, from the start of the 10 s window that far back until now.

    Rates are over the time since a group's first request in the span: a canary that began a minute ago is not 15 times slower
    than it is.
    """
    check_grouping(by)
    begin = floor_to(now - timedelta(seconds=span_s), WINDOW_S)
    firsts: dict[str, datetime] = {}
    groups: dict[str, Figures] = defaultdict(Figures)
    units: dict[str, set[str]] = defaultdict(set)
    rows = users_windows(stage=stage, begin=begin, end=now).values_list(
        "start_at", "unit", "prefill_release", "decode_release", "route", "counters", "histograms", "split"
    )
    for start_at, unit, prefill, decode, route, counters, histograms, split in rows.iterator():
        group = group_of(by, unit=unit, prefill_release=prefill, decode_release=decode)
        groups[group].add_kept(with_route(counters, route), {}, histograms, split)
        units[group].add(unit)
        firsts[group] = min(start_at, firsts.get(group, start_at))
    total = Figures()
    for figures in groups.values():
        total.add(figures)
    gauges, said = gauges_newest(stage=stage, now=now), _said(stage, begin, now)
    seconds = {group: max(1.0, (now - max(begin, first)).total_seconds()) for group, first in firsts.items()}
    longest = max(seconds.values(), default=max(1.0, (now - begin).total_seconds()))

    def view(group: str, figures: Figures, of: set[str], first: datetime, span_s: float) -> GroupView:
        newest = _gauges_of(gauges, set(gauges) if group == TOTAL else of)
        held = _mean_gpus(said, of, first) or newest.get(GPUS)
        return group_view(group, figures, newest, span_s, held, _counted(said, set(said) if group == TOTAL else of, begin))

    each = tuple(view(group, groups[group], units[group], firsts[group], seconds[group]) for group in sorted(groups, key=group_order))
    whole = view(TOTAL, total, set().union(*units.values()), min(firsts.values(), default=begin), longest)
    return MetricsView(stage=stage, at=now, span_s=longest, by=by, groups=each, total=whole)


_Said = Mapping[str, Sequence[tuple[int, dict[str, float]]]]  # by unit: when, in seconds, and what of its gauges is kept for long


def _said(stage: str, begin: datetime, end: datetime) -> _Said:
    """GPUs and counts of each unit's engines, of a long span a sample; and the row before it, from which counts rise."""
    apart_s = sample_s(int((end - begin).total_seconds()) // _GPU_STEPS)
    rows = gauge_windows(stage=stage, begin=begin - timedelta(seconds=apart_s), end=end, apart_s=apart_s)
    units: dict[str, list[tuple[int, dict[str, float]]]] = defaultdict(list)
    for start_at, unit, values in rows.values_list("start_at", "unit", "values"):
        units[unit].append((int(start_at.timestamp()), gauge_values(values, _KEPT)))
    return units


def _mean_gpus(said: _Said, units: Set[str], first: datetime) -> float | None:
    """GPUs of these units, in the mean over the time since `first`; a unit that was not there held none."""
    by_instant: dict[int, float] = {}
    for unit, rows in said.items():
        for at_s, gauges in rows:
            if GPUS in gauges and at_s >= first.timestamp():
                by_instant[at_s] = by_instant.get(at_s, 0.0) + (gauges[GPUS] if unit in units else 0.0)
    return sum(by_instant.values()) / len(by_instant) if by_instant else None


def _counted(said: _Said, units: Set[str], begin: datetime) -> dict[str, float]:
    """What the engines of these units counted."""
    sums: dict[str, float] = {}
    for unit in units & said.keys():
        for at_s, counts in rises(said[unit]):
            if at_s >= begin.timestamp():
                for name, count in counts.items():
                    sums[name] = sums.get(name, 0.0) + count
    return sums


def gauges_newest(*, stage: str, now: datetime) -> dict[str, dict[str, float]]:
    """By unit and name, from the newest window of each unit that is not old."""
    rows = GaugeWindow.objects.filter(stage=stage, start_at__gt=now - _GAUGES_NEW, start_at__lte=now).order_by("start_at")
    newest = {unit: gauge_values(kept) for unit, kept in rows.values_list("unit", "values")}
    return {unit: {name: value for name, value in gauges.items() if name not in KEPT} for unit, gauges in newest.items()}


def gauge_values(kept: Mapping[str, float], only: Set[str] | None = None) -> dict[str, float]:
    """A row's gauges by name, all or only some: what several sources measured, as one figure."""
    found: dict[str, float] = {}
    several: dict[str, list[float]] = {}
    for key, value in kept.items():
        name = _name_of(key)
        if only is not None and name not in only:
            continue
        if name in found:
            several.setdefault(name, [found[name]]).append(value)
        else:
            found[name] = value
    for name, values in several.items():
        found[name] = gauge_sum(name, values)
    return found


@lru_cache(maxsize=4096)
def _name_of(key: str) -> str:
    """Of `engines:kv_use`, without its source; a day of a chart has a hundred thousand of them, and few are different."""
    return key.partition(":")[2]


def _gauges_of(gauges: dict[str, dict[str, float]], units: set[str]) -> dict[str, float]:
    by_name: dict[str, list[float]] = defaultdict(list)
    for unit in units & gauges.keys():
        for name, value in gauges[unit].items():
            by_name[name].append(value)
    return {name: gauge_sum(name, values) for name, values in sorted(by_name.items())}


def alarm_figures(*, stage: str, alarms: Sequence[AlarmSpec], span_s: float, now: datetime) -> dict[str, AlarmFigure]:
    """By alarm: the present figure at the alarm's own quantile, or its share."""
    return alarm_figures_by_stage(alarms={stage: alarms}, span_s=span_s, now=now)[stage]


def alarm_figures_by_stage(*, alarms: Mapping[str, Sequence[AlarmSpec]], span_s: float, now: datetime) -> dict[str, dict[str, AlarmFigure]]:
    """The same for any number of stages, over a span of minutes: one query."""
    figures = {stage: Figures() for stage in alarms}
    own = {stage for stage, specs in alarms.items() if any(spec.metric in COUNTED for spec in specs)}
    begin = floor_to(now - timedelta(seconds=span_s), WINDOW_S)
    rows = fine_windows_of(stages=[stage for stage, specs in alarms.items() if specs], begin=begin, end=now)
    for stage, counters, histograms, kept in rows.values_list("stage", "counters", "histograms", "alarms").iterator():
        figures[stage].add_kept(counters, kept if stage in own else {}, histograms)
    return {stage: {spec.name: alarm_figure(spec, figures[stage]) for spec in specs} for stage, specs in alarms.items()}


def with_baselines(*, stage: str, release: str, alarms: Sequence[AlarmSpec], now: datetime) -> tuple[AlarmSpec, ...]:
    """The alarms with the quantiles of `release`, as it was lately, in those that compare latencies with it.

    They are fixed before anything is counted, so whatever they come to be, the test stays valid (metrics.domain.evidence.tolerance_of).
    """
    if not any(spec.over is not None and spec.metric in COMPARED_BY_QUANTILE for spec in alarms):
        return tuple(alarms)
    figures = Figures()
    rows = users_windows(stage=stage, begin=floor_to(now - BASELINE_SPAN, WINDOW_S), end=now)
    for (histograms,) in rows.filter(prefill_release=release, decode_release=release).values_list("histograms").iterator():
        figures.add_kept({}, {}, histograms)
    return tuple(
        replace(spec, base_s=figures.histogram(spec.metric).quantile(1 - spec.p0))
        if spec.over is not None and spec.metric in COMPARED_BY_QUANTILE
        else spec
        for spec in alarms
    )
