"""One look at one rollout: lock its row, observe, decide by the pure `step`, write the decision and what it wants, commit.

Whoever drives may be killed at any instant: what was committed is a state from which the next look goes on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from denvweb.core import wire
from denvweb.core.errors import ConflictError
from denvweb.failpoints import reach
from fleets import selectors as fleets
from fleets.domain.views import UnitView
from metrics.domain.verdict import AlarmAsk
from metrics.domain.views import AlarmVerdict
from metrics.selectors import with_baselines
from metrics.services import alarm_look
from releases.domain.gates import GUARD
from releases.domain.plan import StagePlan, plan_stage
from releases.domain.rollout import step
from releases.domain.rollout_scale import scaled_state
from releases.domain.rollout_types import Observations, Phase, RollbackWish, RolloutState, Turn
from releases.domain.rollout_units import of_release
from releases.domain.scaling import in_force
from releases.domain.synthetic import judged_alarms
from releases.models import Release, RollbackRequest, Rollout, StageScale
from releases.selectors.freezes import frozen_until
from releases.selectors.releases import stage_spec
from releases.selectors.rollouts import fleets_for, placer, state_of
from releases.selectors.scales import counts_of
from releases.services.decisions import decision_write

log = logging.getLogger(__name__)

ALPHA = 0.01  # the chance of one false alarm in a whole rollout, shared by its alarms
STEPS_A_LOOK = 60  # far more than one look can need; a bound all the same
LOCK_WAIT = "1500ms"


def drive(*, rollout_id: str, patient: bool = False, now: datetime | None = None) -> int:
    """Take a rollout as far as it gets now; the number of decisions. `patient`: wait for another process's look instead of passing."""
    decisions = 0
    while decisions < STEPS_A_LOOK and _once(rollout_id, patient, now or timezone.now()):
        decisions += 1
    return decisions


def _once(rollout_id: str, patient: bool, now: datetime) -> bool:
    """One decision; False when there is nothing more to do now."""
    with transaction.atomic():
        row = _lock(rollout_id, patient)
        if row is None:
            return False
        state = _scaled(row, state_of(row))
        obs = observe(row, state, now)
        if plans_now(state, obs):
            planned = _plan_anew(row, state, obs, now)
            if planned is None:
                return False
            state = planned
        decision = step(state, obs, now)
        more = decision_write(row=row, decision=decision, verdicts=obs.verdicts, now=now)
        reach("rollout.before-commit")
    reach("rollout.after-commit")
    return more


def _scaled(row: Rollout, state: RolloutState) -> RolloutState:
    """With the numbers of units and replicas that are in force now, if anybody ever scaled the stage."""
    wanted = StageScale.objects.filter(stage=row.stage_id).values_list("wanted", flat=True).first()
    return state if wanted is None else scaled_by(wanted, state, row.to_release, row.from_release)


def scaled_by(wanted: dict[str, int], state: RolloutState, to_release: Release, from_release: Release | None) -> RolloutState:
    """A rollout's state with these numbers, as far as each of its releases allows them."""
    name = state.stage.partition("/")[2]
    new = in_force(stage_spec(to_release, name), counts_of(wanted))
    old = in_force(stage_spec(from_release, name), counts_of(wanted)) if from_release else None
    if state.kind == "rollback":
        assert old is not None
        return scaled_state(state, new=old, old=new)
    return scaled_state(state, new=new, old=old)


def _lock(rollout_id: str, patient: bool) -> Rollout | None:
    """The row, locked until the transaction ends; None when it has ended or another process has it."""
    if patient:
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [LOCK_WAIT])
    active = (
        Rollout.objects.filter(pk=rollout_id)
        .exclude(state__in=Rollout.ENDED)
        .select_related("stage__model", "to_release__model", "from_release__model")
    )
    return active.select_for_update(of=("self",), no_key=True, skip_locked=not patient).first()


def observe(row: Rollout, state: RolloutState, now: datetime) -> Observations:
    """All that `step` looks at."""
    wish = RollbackRequest.objects.filter(rollout=row).first()
    return Observations(
        units=fleets.units_view(stage=state.stage, now=now),
        routers=fleets.routers_view(stage=state.stage, now=now),
        place=placer(fleets_for(state)),
        verdicts=_verdicts(row, state, now),
        rollback=RollbackWish(wish.requested_by, wish.via, wish.reason) if wish else None,
        turn=turn_of(row.after.state if row.after else None),
        frozen=frozen_until(stage=state.stage, now=now),
    )


def ask_of(rollout_id: str, state: RolloutState) -> AlarmAsk | None:
    """Which alarms are to be looked at; None while the new release has no traffic to be judged by."""
    if state.phase not in {Phase.ROLLING, Phase.HELD, Phase.BAKING} or state.weight_bp == 0 or state.judged_since is None:
        return None
    baseline = state.old.release if state.old and state.weight_bp < 10_000 else None
    alarms = judged_alarms((*state.alarms, GUARD), probed=state.policy.probe is not None)
    return AlarmAsk(rollout_id, state.stage, alarms, state.new.release, baseline, state.judged_since, ALPHA / len(alarms))


def _verdicts(row: Rollout, state: RolloutState, now: datetime) -> tuple[AlarmVerdict, ...]:
    ask = ask_of(row.pk, state)
    return finite(alarm_look(ask, now)) if ask is not None else ()


def finite(verdicts: Sequence[AlarmVerdict]) -> tuple[AlarmVerdict, ...]:
    """Verdicts as JSON can hold them."""
    return tuple(_finite(verdict) for verdict in verdicts)


def _finite(verdict: AlarmVerdict) -> AlarmVerdict:
    """Evidence grows without bound, and JSON has no infinity."""
    changes: dict[str, Any] = {}
    for name in ("evidence", "health", "relative_evidence"):
        value = getattr(verdict, name)
        if value is not None and not math.isfinite(value):
            changes[name] = 1e18 if value > 0 else 0.0
    return replace(verdict, **changes) if changes else verdict


def turn_of(after: str | None) -> Turn:
    """Whether a rollout that waits for another one, in this state, may begin; None: it waits for none."""
    if after is None or after == Rollout.State.SUCCEEDED:
        return Turn.NOW
    return Turn.NEVER if after in Rollout.ENDED else Turn.LATER


def plans_now(state: RolloutState, obs: Observations) -> bool:
    """Whether this look is the one with which the rollout begins, and so makes its plan anew."""
    held_up = obs.turn is not Turn.NOW or obs.rollback is not None or (obs.frozen is not None and not state.break_glass)
    return state.phase is Phase.PENDING and state.left is None and not held_up


def _plan_anew(row: Rollout, state: RolloutState, obs: Observations, now: datetime) -> RolloutState | None:
    """The plan against what is free now: the one that was shown, unless the world has changed. None while it does not fit."""
    current = plan_of(state=state, units=obs.units)
    if current.refusal is not None and not of_release(obs.units, state.new.release):
        why = f"waits for room: {current.refusal.sentence}"
        if row.why != why:
            Rollout.objects.filter(pk=row.pk).update(why=why, reason="capacity")
        return None
    Rollout.objects.filter(pk=row.pk).update(plan=wire.to_plain(replace(current.view, changed=row.plan["changed"])))
    alarms = with_baselines(stage=state.stage, release=state.old.release, alarms=state.alarms, now=now) if state.old else state.alarms
    return replace(state, moves=current.moves, alarms=alarms)


def plan_of(*, state: RolloutState, units: Sequence[UnitView], changed: str = "") -> StagePlan:
    """The plan of a rollout's state against its units and what is free."""
    return plan_stage(
        stage=state.stage,
        old=state.old,
        new=state.new,
        replicas=state.replicas,
        policy=state.policy,
        units=units,
        fleets=fleets.fleet_views(names=state.fleets),
        bring_up_s=state.bring_up_s,
        changed=changed,
    )


def drive_soon(rollout_id: str) -> None:
    """Once the present transaction is committed, take the first steps here and now: a click then needs no worker to reach the routers."""

    def _try() -> None:
        try:
            drive(rollout_id=rollout_id, patient=True)
        except ConflictError as error:
            log.warning("rollout %s was not driven at once (the reconciler does it): %s", rollout_id, error)

    transaction.on_commit(_try, robust=True)
