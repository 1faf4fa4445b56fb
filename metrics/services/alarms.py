"""Looks at the alarms of a rollout. What was seen is kept with the evidence, so looks add up over restarts of processes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from denvweb.core import wire
from metrics.domain.evidence import log_arm_evidence
from metrics.domain.types import AlarmSpec
from metrics.domain.verdict import Arms, JudgeState, state_begin_anew, state_look, verdict_of
from metrics.domain.views import AlarmVerdict
from metrics.models import AlarmState
from metrics.selectors.windows import alarm_arms, figures_fresh


def alarm_look(
    *,
    rollout: str,
    stage: str,
    alarms: Sequence[AlarmSpec],
    canary_release: str,
    baseline_release: str | None,
    since: datetime,
    now: datetime,
    alpha: float,
) -> tuple[AlarmVerdict, ...]:
    """The verdict on each alarm from all that was counted since `since`; `alpha` is the budget of each.

    A look without new figures changes nothing. Another `since` than the time before counts anew from there, with the
    evidence and the budget spent carried on. Without a baseline release the comparison rests, and so do alarms that are nothing else.
    """
    alarms = [spec for spec in alarms if baseline_release is not None or spec.over is None]
    with transaction.atomic(savepoint=False):
        rows = _states_lock(rollout, alarms, since, now)
        arms = alarm_arms(
            stage=stage,
            alarms=alarms,
            canary_release=canary_release,
            baseline_release=baseline_release,
            since=since,
            now=now,
        )
        fresh = figures_fresh(stage=stage, now=now)
        found = [_look(spec, rows[spec.name], arms[spec.name], since=since, now=now, alpha=alpha, fresh=fresh) for spec in alarms]
        if changed := [row for row, _ in found if row is not None]:
            AlarmState.objects.bulk_update(changed, ["since", "looked_at", "data", "n", "k", "log_evidence"])
    return tuple(verdict for _, verdict in found)


def _states_lock(rollout: str, alarms: Sequence[AlarmSpec], since: datetime, now: datetime) -> dict[str, AlarmState]:
    """The rows of these alarms, made where missing. Locked before the figures are read: later looks see no fewer."""
    names = [spec.name for spec in alarms]
    locked = AlarmState.objects.select_for_update().filter(rollout=rollout, alarm__in=names).order_by("alarm")
    rows = {row.alarm: row for row in locked}
    if missing := [name for name in names if name not in rows]:
        made = [AlarmState(rollout=rollout, alarm=name, since=since, looked_at=now) for name in missing]
        AlarmState.objects.bulk_create(made, ignore_conflicts=True)  # another worker may have been first
        rows = {row.alarm: row for row in locked.all()}
    return rows


def _look(
    spec: AlarmSpec, row: AlarmState, arms: Arms, *, since: datetime, now: datetime, alpha: float, fresh: bool
) -> tuple[AlarmState | None, AlarmVerdict]:
    """The row, if it has to be written, and the verdict."""
    before = wire.from_plain(row.data, JudgeState) if row.data else JudgeState()
    state = state_look(spec, before if row.since == since else state_begin_anew(spec, before), arms, now)
    verdict = verdict_of(spec, state, arms, alpha=alpha, fresh=fresh)
    if state == before and row.since == since:
        return None, verdict
    row.since, row.looked_at, row.data = since, now, wire.to_plain(state)
    row.n, row.k, row.log_evidence = arms.canary.n, arms.canary.k, log_arm_evidence(spec, state.canary)
    return row, verdict
