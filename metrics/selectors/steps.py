"""Steps of a stage's charts, each worked out of its windows once.

A page looks again every two seconds, and of the 120 steps of an hour all but one are as they were. A step is kept under the rows that it
was made of, each with PostgreSQL's own version of it: which transaction wrote it, and where it lies. A row that is written again, by
a late report or the roll-up, has another version, so what is kept may become useless, but never old.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from django.db.models import TextField
from django.db.models.expressions import RawSQL
from django.db.models.functions import Cast

from denvweb.core import wire
from metrics.domain.figures import GOODPUT, group_of, is_mean, is_tail, line_value, metric_of, with_route
from metrics.domain.window import Figures, unpack_into, unpack_sums_into
from metrics.models import ROLLED_S, Window
from metrics.selectors.gauge_lines import START_S, gauge_line_of
from metrics.selectors.windows import fine_windows, users_windows

KEPT = 1500  # steps of a process, of some 15 kB each
_ROWS_AT_ONCE = 2000  # in memory with their histograms
_VERSION = RawSQL('"metrics_window"."xmin"::text || "metrics_window"."ctid"::text', [])
_counts_of, _texts_of = wire.decoder(dict[str, int]), wire.decoder(dict[str, str])


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one group: its lines' values (those of no gauge), and what else is made of it. Not to be changed."""

    values: Mapping[str, float | None]
    counters: Mapping[str, int]
    split: str  # as `Split.pack` writes it: thousands of these are kept, and a text is none of the garbage collector's business


Cells = dict[str, dict[int, Step]]  # by group, then by step
_Row = tuple[int, str]  # its id and its version
_Groups = dict[tuple[str, str], Step]  # of one step: by grouping and group


@dataclass(slots=True)
class Read:
    """Steps by grouping and group, and the groups that each unit was in."""

    cells: dict[str, Cells]
    groups_by_unit: dict[str, dict[str, set[str]]]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the lines of one grouping are made of."""

    lines: tuple[str, ...]
    counts: bool
    metrics: Mapping[str, bool]  # histograms, and whether for more than their means
    split: bool

    @classmethod
    def of(cls, names: Sequence[str]) -> _Wanted:
        """That of these lines."""
        lines = tuple(name for name in dict.fromkeys(names) if not gauge_line_of(name))
        counted = GOODPUT in names or any(metric_of(name) is None and not is_tail(name) for name in lines)
        return cls(lines, counted, _metrics(lines), any(map(is_tail, lines)))

    def __bool__(self) -> bool:
        return bool(self.counts or self.metrics or self.split)


def _metrics(names: Iterable[str]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for name in names:
        if metric := metric_of(name):
            found[metric.value] = found.get(metric.value, False) or not is_mean(name)
    return found


class _Kept:
    """The steps that were used last, for all threads."""

    def __init__(self) -> None:
        self._steps: OrderedDict[Hashable, _Groups] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> _Groups | None:
        with self._lock:
            found = self._steps.get(key)
            if found is not None:
                self._steps.move_to_end(key)
            return found

    def put(self, key: Hashable, groups: _Groups) -> None:
        with self._lock:
            self._steps[key] = groups
            while len(self._steps) > KEPT:
                self._steps.popitem(last=False)


_kept = _Kept()


def read_steps(stage: str, names: Mapping[str, Sequence[str]], begin: datetime, end: datetime, step: int) -> Read:
    """Which rows there are, and the figures of those whose steps were not worked out before: one query, and one for those."""
    found = Read({by: {} for by in names}, {by: defaultdict(set) for by in names})
    rows_of = _rows_by_step(found, stage, begin, end, step)
    shape = (step, *((by, *group) for by, group in names.items()))
    missing = []
    for index, rows in rows_of.items():
        groups = _kept.get(_key(shape, rows))
        if groups is None:
            missing.append(index)
        else:
            _place(found, index, groups)
    wanted, begin_s = {by: _Wanted.of(group) for by, group in names.items()}, int(begin.timestamp())
    for indexes in _chunks(missing, rows_of):
        ids = [pk for index in indexes for pk, _ in rows_of[index]]
        for index, rows, groups in _work_out(wanted, ids, begin_s, step):
            _kept.put(_key(shape, rows), groups)
            _place(found, index, groups)
    return found


def _key(shape: Hashable, rows: Iterable[_Row]) -> Hashable:
    """What a step is kept under: a step of hours has hundreds of rows, so a digest of them."""
    text = " ".join(f"{pk} {version}" for pk, version in sorted(rows))
    return shape, hashlib.blake2b(text.encode(), digest_size=16).digest()


def _rows_by_step(found: Read, stage: str, begin: datetime, end: datetime, step: int) -> dict[int, list[_Row]]:
    windows, begin_s = users_windows if step % ROLLED_S == 0 else fine_windows, int(begin.timestamp())
    steps: dict[int, list[_Row]] = defaultdict(list)
    series = set()
    columns = (START_S, "unit", "prefill_release", "decode_release", "pk", _VERSION)
    for start_s, unit, prefill, decode, pk, version in windows(stage=stage, begin=begin, end=end).values_list(*columns):
        series.add((unit, prefill, decode))
        steps[(start_s - begin_s) // step].append((pk, version))
    for by, groups_by_unit in found.groups_by_unit.items():
        for unit, prefill, decode in series:
            group = group_of(by, unit=unit, prefill_release=prefill, decode_release=decode)
            groups_by_unit[unit].add(group)
            found.cells[by].setdefault(group, {})
    return steps


def _place(found: Read, index: int, groups: _Groups) -> None:
    for (by, group), made in groups.items():
        found.cells[by].setdefault(group, {})[index] = made


def _chunks(indexes: Iterable[int], rows_of: Mapping[int, Sequence[_Row]]) -> Iterator[list[int]]:
    """Whole steps, so many at once as may be in memory."""
    chunk: list[int] = []
    rows = 0
    for index in indexes:
        if chunk and rows + len(rows_of[index]) > _ROWS_AT_ONCE:
            yield chunk
            chunk, rows = [], 0
        chunk.append(index)
        rows += len(rows_of[index])
    if chunk:
        yield chunk


def _work_out(wanted: Mapping[str, _Wanted], ids: Sequence[int], begin_s: int, step: int) -> Iterator[tuple[int, list[_Row], _Groups]]:
    """Each step of these rows, with the rows as they are by now; of their columns only what the lines need."""
    timed, counted, parted = (any(map(bool, each)) for each in zip(*((w.metrics, w.counts, w.split) for w in wanted.values()), strict=True))
    columns: tuple[str | Cast | RawSQL, ...] = (
        *(START_S, "unit", "prefill_release", "decode_release", "route", "pk", _VERSION),
        *([Cast("counters", TextField())] if counted else []),
        *(["split"] if parted else []),
        *([Cast("histograms", TextField())] if timed else []),  # whole: asked for one by one, each is unpacked from all of them again
    )
    sums: dict[int, dict[tuple[str, str], Figures]] = defaultdict(lambda: defaultdict(Figures))
    used: dict[int, list[_Row]] = defaultdict(list)
    sinks = cache(lambda *series: _sinks(wanted, *series))  # of a series: the same for each of its rows
    for start_s, unit, prefill, decode, route, pk, version, *rest in Window.objects.filter(pk__in=ids).values_list(*columns):
        counters = with_route(_counts_of(rest.pop(0)), route) if counted else {}
        split = rest.pop(0) if parted else ""
        texts = _texts_of(rest.pop(0)) if timed else {}
        index = (start_s - begin_s) // step
        used[index].append((pk, version))
        for key, want in sinks(unit, prefill, decode):
            _add(sums[index][key], want, counters, texts, split)
    for index, rows in used.items():
        yield index, rows, {key: _step(wanted[key[0]].lines, figures, step) for key, figures in sums[index].items()}


def _sinks(wanted: Mapping[str, _Wanted], unit: str, prefill: str, decode: str) -> list[tuple[tuple[str, str], _Wanted]]:
    """Where the rows of one series go, and what of them."""
    groups = ((by, group_of(by, unit=unit, prefill_release=prefill, decode_release=decode)) for by in wanted)
    return [(key, wanted[key[0]]) for key in groups if wanted[key[0]]]


def _add(figures: Figures, want: _Wanted, counters: Mapping[str, int], texts: Mapping[str, str], split: str) -> None:
    if want.counts:
        figures.add_counters(counters)
    for metric, quantiles in want.metrics.items():
        if text := texts.get(metric):
            (unpack_into if quantiles else unpack_sums_into)(figures.histogram(metric), text)
    if want.split:
        figures.split.merge_text(split)


def _step(lines: Sequence[str], figures: Figures, step: int) -> Step:
    return Step({name: line_value(name, figures, step) for name in lines}, figures.counters, figures.split.pack())
