"""Looks at the alarms of rollouts. What was seen is kept with the evidence, so looks add up over restarts of processes.

`alarm_look` holds the locks of one rollout's rows, and is what decisions are made on. `alarm_sweep` looks at any number of
rollouts at once and locks nothing: what it saw is kept only where nobody has looked in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction

from denvweb.core import wire
from metrics.domain.evidence import log_arm_evidence
from metrics.domain.types import AlarmSpec
from metrics.domain.verdict import AlarmAsk, Arms, JudgeState, state_begin_anew, state_look, verdict_of
from metrics.domain.views import AlarmVerdict
from metrics.models import AlarmState
from metrics.selectors.windows import alarm_arms, stages_fresh


@dataclass(slots=True)
class _Kept:
    """What is kept of one alarm, as it was read."""

    pk: int
    since: datetime
    looked_at: datetime
    state: JudgeState


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look makes of one alarm, to be kept: the row's new values, and when it was looked at before."""

    pk: int
    before: datetime
    since: datetime
    looked_at: datetime
    state: JudgeState
    n: int
    k: float
    log_evidence: float


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts on a rollout's alarms, and what is to be kept of the look."""

    verdicts: tuple[AlarmVerdict, ...]
    seen: tuple[Seen, ...]


def alarm_look(ask: AlarmAsk, now: datetime) -> tuple[AlarmVerdict, ...]:
    """The verdict on each alarm from all that was counted since `ask.since`.

    A look without new figures changes nothing. Another `since` than the time before counts anew from there, with the
    evidence and the budget spent carried on. Without a baseline release the comparison rests, and so do alarms that are nothing else.
    The rows are locked before the figures are read: later looks see no fewer.
    """
    with transaction.atomic(savepoint=False):
        _make_missing(ask, now)
        kept = _read([ask.rollout], lock=True)
        found = _look(ask, kept, alarm_arms([ask], now)[0], now, fresh=bool(stages_fresh([ask.stage], now)))
        alarm_keep(found.seen)
    return found.verdicts


def alarm_sweep(asks: Sequence[AlarmAsk], now: datetime) -> list[Verdicts | None]:
    """The same for any number of rollouts, in three queries and without a lock; None for one that was never looked at."""
    if not asks:
        return []
    kept = _read([ask.rollout for ask in asks])  # before the figures: they are never older than what is kept of them
    arms, fresh = alarm_arms(asks, now), stages_fresh([ask.stage for ask in asks], now)
    return [
        _look(ask, kept, counted, now, fresh=ask.stage in fresh) if all((ask.rollout, spec.name) in kept for spec in ask.counted) else None
        for ask, counted in zip(asks, arms, strict=True)
    ]


def _look(ask: AlarmAsk, kept: dict[tuple[str, str], _Kept], arms: dict[str, Arms], now: datetime, *, fresh: bool) -> Verdicts:
    verdicts, changed = [], []
    for spec in ask.counted:
        row = kept[ask.rollout, spec.name]
        state, verdict = _judge(spec, row, arms[spec.name], ask, now, fresh)
        verdicts.append(verdict)
        if state != row.state or row.since != ask.since:
            count = arms[spec.name].canary
            evidence = log_arm_evidence(spec, state.canary)
            changed.append(Seen(row.pk, row.looked_at, ask.since, now, state, count.n, count.k, evidence))
    return Verdicts(tuple(verdicts), tuple(changed))


def _judge(spec: AlarmSpec, row: _Kept, arms: Arms, ask: AlarmAsk, now: datetime, fresh: bool) -> tuple[JudgeState, AlarmVerdict]:
    before = row.state if row.since == ask.since else state_begin_anew(spec, row.state)
    state = state_look(spec, before, arms, now)
    return state, verdict_of(spec, state, arms, alpha=ask.alpha, fresh=fresh)


def _make_missing(ask: AlarmAsk, now: datetime) -> None:
    names = [spec.name for spec in ask.counted]
    there = set(AlarmState.objects.filter(rollout=ask.rollout, alarm__in=names).values_list("alarm", flat=True))
    made = [AlarmState(rollout=ask.rollout, alarm=name, since=ask.since, looked_at=now) for name in names if name not in there]
    AlarmState.objects.bulk_create(made, ignore_conflicts=True)  # another worker may have been first


def _read(rollouts: Sequence[str], *, lock: bool = False) -> dict[tuple[str, str], _Kept]:
    """By rollout and alarm. As text, because JSON by way of dicts costs more than all the arithmetic."""
    sql = "SELECT rollout, alarm, id, since, looked_at, data::text FROM metrics_alarmstate WHERE rollout = ANY(%s) ORDER BY rollout, alarm"
    with connection.cursor() as cursor:
        cursor.execute(f"{sql} FOR UPDATE" if lock else sql, [list(rollouts)])
        return {
            (rollout, alarm): _Kept(pk, since, looked_at, wire.decode(data, JudgeState))
            for rollout, alarm, pk, since, looked_at, data in cursor.fetchall()
        }


_KEEP = """
WITH fresh AS (
    SELECT * FROM jsonb_to_recordset(%s::jsonb) AS seen (pk bigint, before timestamptz, since timestamptz, looked_at timestamptz,
        n bigint, k float8, log_evidence float8, state jsonb)
), mine AS (
    SELECT kept.id FROM metrics_alarmstate kept JOIN fresh ON fresh.pk = kept.id
    WHERE kept.looked_at = fresh.before FOR UPDATE OF kept SKIP LOCKED
)
UPDATE metrics_alarmstate kept
SET since = fresh.since, looked_at = fresh.looked_at, n = fresh.n, k = fresh.k, log_evidence = fresh.log_evidence, data = fresh.state
FROM fresh JOIN mine ON mine.id = fresh.pk WHERE kept.id = mine.id
"""


def alarm_keep(seen: Sequence[Seen]) -> None:
    """Keep what was seen, in one statement that waits for nobody; a row that another has looked at meanwhile stays as it is."""
    if seen:
        with connection.cursor() as cursor:
            cursor.execute(_KEEP, [wire.encode(seen).decode()])
