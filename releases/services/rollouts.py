"""What people and programs ask of rollouts: start, promote, pause, resume, abort, roll back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from django.db import IntegrityError, transaction
from django.utils import timezone

from denvweb.core import wire
from denvweb.core.errors import ConflictError, NotFoundError
from denvweb.core.ids import random_id
from denvweb.failpoints import reach
from denvweb.wake import wake
from fleets import selectors as fleets
from metrics.services import event_append
from releases.domain import rollout_commands as commands
from releases.domain.diff import touches
from releases.domain.rollout_back import untouched
from releases.domain.rollout_preflight import Way, preflight
from releases.domain.rollout_settle import left_by
from releases.domain.rollout_types import Cause, Decision, Phase, RolloutState
from releases.domain.rollout_words import rollback_plan
from releases.domain.synthetic import without_prompts
from releases.models import Release, RollbackRequest, Rollout, Stage
from releases.selectors.freezes import frozen_until
from releases.selectors.releases import release_key, release_unit, stage_spec, units_wanted
from releases.selectors.rollouts import bring_up_s_of, fleets_for, placer, state_of
from releases.selectors.stages import stage_row
from releases.services.decisions import decision_write, effects_apply
from releases.services.drive import drive_soon, plan_of


def rollout_start(
    *,
    stage: Stage,
    release: Release,
    actor: str,
    via: str,
    after: Rollout | None = None,
    instead: RolloutState | None = None,
    break_glass: str = "",
) -> Rollout:
    """Take a stage to a release, as soon as `after` has succeeded. Raises ConflictError `rollout-in-flight`.

    `instead` is the state of the rollout that was superseded for this one, which first takes away what that one brought.
    """
    stable = stage.release
    old = release_unit(stable, stage.name) if stable else None
    new = release_unit(release, stage.name, keep=old)
    spec = stage_spec(release, stage.name)
    state = RolloutState(
        stage=new.stage,
        model=new.model,
        old=old,
        new=new,
        replicas=units_wanted(release, stage.name),
        policy=without_prompts(spec.rollout),
        fleets=spec.fleets,
        fleets_back=stage_spec(stable, stage.name).fleets if stable else (),
        alarms=spec.alarm_specs,
        conditional=spec.topology.conditional,
        bring_up_s=bring_up_s_of(stage),
        why=f"waits for {after.stage} to succeed" if after else "waits for the reconciler's next look",
        replicas_back=instead.replicas_back if instead else 0,
        draining=instead.draining if instead else {},
        left=left_by(instead) if instead else None,
        break_glass=f"{actor}: {break_glass}" if break_glass else "",
    )
    plan = plan_of(state=state, units=fleets.units_view(stage=new.stage, now=timezone.now()), changed=touches(old, new))
    rollout = _create(
        Rollout(
            id=random_id("r", 8),
            stage=stage,
            from_release=stable,
            to_release=release,
            after=after,
            why=state.why,
            plan=wire.to_plain(plan.view),
            data=wire.to_plain(state),
            started_by=actor,
            via=via,
        )
    )
    wake("releases.reconcile")
    return rollout


def rollout_supersede(*, stage: Stage, by: str, actor: str, via: str) -> RolloutState | None:
    """End the stage's rollout under way, in the caller's transaction; its state as it was, for the rollout that takes its place.

    Raises ConflictError `rolling-back`: a rollback that was asked for, or is under way, beats it.
    """
    rows = Rollout.objects.select_for_update(of=("self",), no_key=True).filter(stage=stage).exclude(state__in=Rollout.ENDED)
    row = rows.select_related("stage__model", "to_release__model").first()
    if row is None:
        return None
    if RollbackRequest.objects.filter(rollout=row).exists():
        raise ConflictError(f"A rollback of {stage} was asked for, and beats everything else.", code="rolling-back")
    state = state_of(row)
    decision_write(row=row, decision=commands.superseded(state, by=by, actor=actor), now=timezone.now(), via=via)
    return state


def _create(rollout: Rollout) -> Rollout:
    try:
        with transaction.atomic():
            rollout.save(force_insert=True)
    except IntegrityError as error:
        active = _active(rollout.stage)
        if active is None:
            raise
        raise ConflictError(
            f"Rollout {active.pk} of {rollout.stage} to release {active.to_release.number} is in flight; "
            "wait for its end, abort it, or release with --supersede.",
            code="rollout-in-flight",
        ) from error
    return rollout


def _active(stage: Stage) -> Rollout | None:
    rows = Rollout.objects.filter(stage=stage).exclude(state__in=Rollout.ENDED)
    return rows.select_related("stage__model", "from_release__model", "to_release__model").first()


def rollout_promote(
    *,
    actor: str,
    via: str,
    rollout_id: str = "",
    stage: str = "",
    generation: int | None = None,
    reason: str = "",
    full: bool = False,
    break_glass: str = "",
) -> Rollout:
    """Approve the next step or end a watch, as seen at `generation`. `full` skips all further watches, and needs a reason.

    In a freeze window refused with `frozen`, unless `break_glass` says why not.
    """

    def decide(state: RolloutState) -> Decision:
        now = timezone.now()
        frozen = frozen_until(stage=state.stage, now=now)
        return commands.promote(state, now=now, actor=actor, full=full, reason=reason, frozen=frozen, break_glass=break_glass.strip())

    return _command(decide, rollout_id, stage, generation, via)


def rollout_pause(
    *, actor: str, via: str, rollout_id: str = "", stage: str = "", generation: int | None = None, reason: str = ""
) -> Rollout:
    """Go no further for now; alarms stay armed."""
    return _command(lambda state: commands.pause(state, now=timezone.now(), actor=actor, reason=reason), rollout_id, stage, generation, via)


def rollout_resume(
    *, actor: str, via: str, rollout_id: str = "", stage: str = "", generation: int | None = None, reason: str = ""
) -> Rollout:
    """Go on after a pause."""
    return _command(
        lambda state: commands.resume(state, now=timezone.now(), actor=actor, reason=reason), rollout_id, stage, generation, via
    )


def _command(decide: Callable[[RolloutState], Decision], rollout_id: str, stage: str, generation: int | None, via: str) -> Rollout:
    """Decide on the locked row; a person who saw an older generation is told to look again."""
    with transaction.atomic():
        pk = _find(rollout_id, stage).pk
        row = Rollout.objects.select_for_update(of=("self",), no_key=True).select_related("stage__model", "to_release__model").get(pk=pk)
        if generation is not None and generation != row.generation:
            raise ConflictError(
                f"The rollout has moved on to generation {row.generation} since {generation}: {row.why}. Look again, then decide.",
                code="stale-generation",
            )
        if RollbackRequest.objects.filter(rollout=row).exists():
            raise ConflictError("A rollback was asked for, and beats everything else.", code="rolling-back")
        decision = decide(state_of(row))
        decision_write(row=row, decision=decision, now=timezone.now(), via=via)
        wake("releases.reconcile")
        drive_soon(row.pk)
    row.refresh_from_db()
    return row


def _find(rollout_id: str, stage: str) -> Rollout:
    """The active rollout of a stage, or the one of an id."""
    if rollout_id:
        found = Rollout.objects.filter(pk=rollout_id).first()
        if found is None:
            raise NotFoundError(f"There is no rollout {rollout_id}.")
        return found
    active = _active(stage_row(stage))
    if active is None:
        raise ConflictError(f"No rollout of {stage} is under way.", code="not-under-way")
    return active


def rollout_abort(
    *, actor: str, via: str, rollout_id: str = "", stage: str = "", generation: int | None = None, reason: str = ""
) -> Rollout:
    """Give a rollout up: the same as rolling back. It is never refused for an old generation."""
    with transaction.atomic():
        found = _find(rollout_id, stage)
        if found.state in Rollout.ENDED:
            raise ConflictError(f"Rollout {found.pk} has ended: {found.why}", code="not-under-way")
        _request(found, actor, via, reason)
    found.refresh_from_db()
    return found


def rollback(*, stage: str, actor: str, via: str, to: int | None = None, reason: str = "") -> Rollout:
    """Send a stage back: out of the rollout under way, else from its release to the one before it or to number `to`.

    Committed before it returns, and then begun at once. Asking twice gives the same rollback. Raises ConflictError
    `nothing-to-roll-back`, `rollback-does-not-fit`, or `rollout-in-flight` when `to` is not where the one under way leads back to.
    """
    with transaction.atomic():
        row = Stage.objects.select_for_update(no_key=True, of=("self",)).select_related("model", "release__model", "previous__model")
        place = row.get(pk=stage_row(stage).pk)
        active = _active(place)
        if active is not None and active.state == Rollout.State.PENDING and to is not None and state_of(active).left is None:
            active = None if _end_pending(active) else active
        rollout = _begin(place, to, actor, via, reason) if active is None else _join(active, to, actor, via, reason)
        reach("rollback.before-commit")
    reach("rollback.after-commit")
    rollout.refresh_from_db()
    return rollout


def _end_pending(rollout: Rollout) -> bool:
    """Take a rollout that has not begun out of the way."""
    state = state_of(rollout)
    gone = Rollout.objects.filter(pk=rollout.pk, state=Rollout.State.PENDING).update(
        state=Rollout.State.SUPERSEDED,
        ended_at=timezone.now(),
        why="a rollback of the stage took its place before it began",
        data=wire.to_plain(replace(state, phase=Phase.SUPERSEDED)),
    )
    if gone:
        effects = untouched(state)
        effects_apply(stage=rollout.stage, effects=effects, alarms=state.alarms, conditional=state.conditional)
    return bool(gone)


def _join(active: Rollout, to: int | None, actor: str, via: str, reason: str) -> Rollout:
    """The rollout under way goes back, or is on its way back already."""
    target = active.to_release if active.kind == "rollback" else active.from_release
    if to is not None and (target is None or target.number != to):
        leads = f"leads back to release {target.number}" if target else "has no release to lead back to"
        raise ConflictError(
            f"Rollout {active.pk} is in flight and {leads}, not {to}; roll back first, then go on.", code="rollout-in-flight"
        )
    _request(active, actor, via, reason)
    return active


def _request(rollout: Rollout, actor: str, via: str, reason: str) -> None:
    """The row that beats everything, once; each asking is a line in the journal."""
    _, first = RollbackRequest.objects.get_or_create(rollout=rollout, defaults={"requested_by": actor, "via": via, "reason": reason[:200]})
    told = f": {reason}" if reason else ""
    sentence = f"{actor} asked to roll {rollout.stage} back{told}" + ("" if first else "; it was asked for before, and is under way")
    event_append(
        kind="rollback.requested",
        sentence=sentence,
        actor=actor,
        via=via,
        level="warn",
        stage=str(rollout.stage),
        rollout=rollout.pk,
        release=release_key(rollout.to_release),
    )
    wake("releases.reconcile")
    drive_soon(rollout.pk)


def _begin(stage: Stage, to: int | None, actor: str, via: str, reason: str) -> Rollout:
    """A rollout of its own that goes back after a success."""
    current, target = _ends(stage, to)
    left, back = release_unit(current, stage.name), release_unit(target, stage.name)
    spec, spec_left = stage_spec(target, stage.name), stage_spec(current, stage.name)
    replicas = units_wanted(target, stage.name)
    now = timezone.now()
    told = f": {reason}" if reason else ""
    state = RolloutState(
        stage=str(stage),
        model=stage.model.name,
        old=back,
        new=left,
        replicas=replicas,
        replicas_back=replicas,
        policy=without_prompts(spec.rollout),
        kind="rollback",
        fleets=spec_left.fleets,
        fleets_back=spec.fleets,
        alarms=spec.alarm_specs,
        conditional=spec.topology.conditional,
        phase=Phase.ROLLING_BACK,
        weight_bp=10_000,
        entered_at=now,
        bring_up_s=bring_up_s_of(stage),
        cause=Cause("requested", f"{actor} asked for it{told}", now, actor=actor),
        reason="requested",
        why=f"{actor} asked for it{told}",
    )
    units, routers = fleets.units_view(stage=str(stage), now=now), fleets.routers_view(stage=str(stage), now=now)
    way = Way(str(stage), back, left.release, replicas, state.bring_up_s)
    view = preflight(way, units=units, routers=routers, place=placer(fleets_for(state)))
    if not view.possible:
        raise ConflictError(view.sentence, code="rollback-does-not-fit")
    rollout = _create(
        Rollout(
            id=random_id("r", 8),
            stage=stage,
            kind="rollback",
            from_release=current,
            to_release=target,
            state=Rollout.State.ROLLING_BACK,
            reason="requested",
            why=state.why,
            plan=wire.to_plain(rollback_plan(stage=str(stage), old=left, target=back, view=view)),
            data=wire.to_plain(state),
            started_by=actor,
            via=via,
        )
    )
    if not current.held_reason:
        Release.objects.filter(pk=current.pk).update(held_reason=f"{stage} went back from it: {state.why}"[:200])
    _request(rollout, actor, via, reason)
    return rollout


def _ends(stage: Stage, to: int | None) -> tuple[Release, Release]:
    """What is left, and where to; ConflictError `nothing-to-roll-back`."""
    if stage.release is None:
        raise ConflictError(f"Nothing serves in {stage}, so there is nothing to roll back.", code="nothing-to-roll-back")
    if to is None:
        if stage.previous is None:
            raise ConflictError(f"There is no earlier release of {stage} to go back to.", code="nothing-to-roll-back")
        return stage.release, stage.previous
    if to == stage.release.number:
        raise ConflictError(f"{stage} is on release {to} already.", code="nothing-to-roll-back")
    target = Release.objects.select_related("model").filter(model=stage.model, number=to).first()
    if target is None:
        raise NotFoundError(f"There is no release {to} of {stage.model.name}.")
    return stage.release, target
