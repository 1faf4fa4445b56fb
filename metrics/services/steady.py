"""The look at the alarms of all stages between rollouts: a handful of queries, however many stages there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from django.db import connection, transaction

from denvweb.core import wire
from denvweb.failpoints import reach
from metrics.domain.alarm import NOTHING
from metrics.domain.steady import BLOCK_S, LATE_S, SteadyState, steady_look, steady_sentence, steady_verdict
from metrics.domain.types import AlarmSpec
from metrics.domain.window import Figures
from metrics.models import WINDOW_S, StageAlarms, Window
from metrics.selectors.windows import floor_to
from metrics.services.journal import event_append

_BACK = timedelta(minutes=10)  # older figures are not taken up any more: nobody looked, or a rollout did
_COLUMNS = ["release", "looked_to", "data", "breaching"]


@dataclass(frozen=True, slots=True)
class Watch:
    """One stage that no rollout has in hand: what it serves, and its alarms. Comparisons rest."""

    stage: str
    release: str
    alarms: tuple[AlarmSpec, ...]
    since: datetime | None = None  # when its last rollout ended: what came before was judged by that


@dataclass(slots=True)
class _Seen:
    """One stage in this look."""

    watch: Watch
    looked_to: datetime
    states: dict[str, SteadyState] = field(default_factory=dict)
    changed: bool = False


def steady_alarms_look(*, watches: Sequence[Watch], now: datetime) -> int:
    """Take up the figures that came since the look before; the number of breaches that began or ended.

    Each has its event, and so its notice, in the transaction that remembers it: exactly one, whatever is killed when.
    """
    end = floor_to(now - timedelta(seconds=LATE_S), BLOCK_S)
    rows = StageAlarms.objects.filter(stage__in=[watch.stage for watch in watches])
    if rows.filter(looked_to__gte=end).count() == len(watches):
        return 0
    with transaction.atomic():
        if not _only_one():
            return 0
        kept = {row.stage: row for row in rows.all()}
        seen = [_begin(watch, kept.get(watch.stage), end) for watch in watches]
        turned = sum(_reset(one, kept.get(one.watch.stage)) for one in seen)
        behind = {one.watch.stage: one for one in seen if one.looked_to < end}
        for stage, blocks in _blocks(behind, end).items():
            turned += _take_up(behind[stage], blocks)
        _write([one for one in seen if one.changed], end)
        StageAlarms.objects.filter(stage__in=[one.watch.stage for one in seen if not one.changed]).update(looked_to=end)
        reach("steady.before-commit")
    return turned


def _only_one() -> bool:
    """One process looks at a time; the others' look would find the same."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended('metrics.steady', 7))")
        return bool(cursor.fetchone()[0])


def _begin(watch: Watch, row: StageAlarms | None, end: datetime) -> _Seen:
    if row is None or row.release != watch.release:
        return _Seen(watch, end, changed=True)
    states = {name: wire.from_plain(plain, SteadyState) for name, plain in row.data.items()}
    begin, keys = max(row.looked_to, end - _BACK), {spec.key for spec in watch.alarms}
    if watch.since is not None and watch.since > row.looked_to:  # a rollout came and went: only what was told of goes on
        begin = max(begin, floor_to(watch.since, BLOCK_S))
        states = {name: state for name, state in states.items() if state.breached_at is not None}
    return _Seen(watch, min(begin, end), {name: state for name, state in states.items() if name in keys})


def _reset(one: _Seen, row: StageAlarms | None) -> int:
    """Breaches that a new release, or a line taken out of the file, has ended."""
    if row is None or not row.breaching:
        return 0
    gone = [name for name, plain in row.data.items() if plain.get("breached_at") and name not in one.states]
    for name in gone:
        one.changed = True
        sentence = f"{one.watch.stage}: {name.partition('@')[0]} is judged anew, now on release {one.watch.release.rpartition('@')[2]}"
        event_append(kind="alarm.recovered", sentence=sentence, stage=one.watch.stage, release=one.watch.release)
    return len(gone)


def _blocks(behind: Mapping[str, _Seen], end: datetime) -> dict[str, dict[datetime, Figures]]:
    """What users' requests counted, by stage and block: one query for all stages."""
    found: dict[str, dict[datetime, Figures]] = {}
    if not behind:
        return found
    begin = min(one.looked_to for one in behind.values())
    rows = Window.objects.filter(stage__in=list(behind), seconds=WINDOW_S, probe=False, start_at__gte=begin, start_at__lt=end)
    for stage, start_at, alarms in rows.exclude(alarms={}).values_list("stage", "start_at", "alarms").iterator():
        if start_at >= behind[stage].looked_to:
            found.setdefault(stage, {}).setdefault(floor_to(start_at, BLOCK_S), Figures()).add_kept({}, alarms, {})
    return found


def _take_up(one: _Seen, blocks: Mapping[datetime, Figures]) -> int:
    watch, turned = one.watch, 0
    for begin, figures in sorted(blocks.items()):
        at = begin + timedelta(seconds=BLOCK_S)
        for spec in watch.alarms:
            before = one.states.get(spec.key, SteadyState())
            state = steady_look(spec, before, figures.alarms.get(spec.key, NOTHING), at, alarms=len(watch.alarms))
            if state == before:
                continue
            if (before.breached_at is None) is not (state.breached_at is None):
                turned += 1
                state = replace(state, told=_tell(watch, spec, before, state))
            one.states[spec.key], one.changed = state, True
    return turned


def _tell(watch: Watch, spec: AlarmSpec, before: SteadyState, state: SteadyState) -> str:
    """The event of a breach that begins or ends; its sentence."""
    if state.breached_at is not None:
        sentence = f"{watch.stage} breaks its limit: {steady_sentence(spec, state, alarms=len(watch.alarms))}"
        verdict = steady_verdict(spec, state, alarms=len(watch.alarms))
        event_append(
            kind="alarm.breached",
            level="bad",
            sentence=sentence,
            stage=watch.stage,
            release=watch.release,
            evidence={"alarm": spec.name, "n": verdict.n, "k": verdict.k, "rate": verdict.rate, "evidence": min(verdict.evidence, 1e18)},
        )
        return sentence
    since = f"{before.breached_at:%H:%M:%S}" if before.breached_at else ""
    sentence = f"{watch.stage} keeps its limit again: {spec.name}, which it broke from {since} on"
    event_append(kind="alarm.recovered", sentence=sentence, stage=watch.stage, release=watch.release)
    return ""


def _write(seen: Sequence[_Seen], end: datetime) -> None:
    rows = [
        StageAlarms(
            stage=one.watch.stage,
            release=one.watch.release,
            looked_to=end,
            data={name: wire.to_plain(state) for name, state in one.states.items()},
            breaching=any(state.breached_at for state in one.states.values()),
        )
        for one in seen
    ]
    if rows:
        StageAlarms.objects.bulk_create(rows, update_conflicts=True, unique_fields=["stage"], update_fields=_COLUMNS)
