"""Access where it depends on what is asked for: releases by their text, rollouts by their stage, promotions by what waits."""

from __future__ import annotations

from denvweb.access import EVERY_MODEL, Action, Person, access_approve, access_model, access_stage, actions_of, seen_by
from denvweb.core.errors import ForbiddenError, NotFoundError
from releases.domain.rollout_commands import approves
from releases.domain.spec import ReleaseFile, parse
from releases.domain.views import DryRunView, RolloutView
from releases.selectors.rollouts import last_rollouts, state_of
from releases.selectors.stages import stage_row


def access_release(user: Person, yaml: str, action: Action, *, break_glass: str = "") -> None:
    """Whether a person may make a release of this text, or have it planned. A text with mistakes is for the service to refuse."""
    found = parse(yaml)
    if isinstance(found, ReleaseFile):
        access_model(user, found.release.model, action)
        access_break_glass(user, found.release.model, break_glass)


def access_break_glass(user: Person, model: str, reason: str) -> None:
    """Whether a person may go forward in spite of a freeze window; without a reason nobody asks to."""
    if reason.strip():
        access_model(user, model, Action.BREAK_GLASS)


def access_freeze(user: Person, model: str) -> None:
    """Whether a person may set or remove a freeze window of a model; without one it is about every model."""
    if model:
        access_model(user, model, Action.ADMIN)
    elif Action.ADMIN not in actions_of(user, EVERY_MODEL):
        raise ForbiddenError("A freeze for every model takes the role admin for all of them.", code="role-missing")


def access_rollout(user: Person, view: RolloutView) -> RolloutView:
    """The view, if the person may see its stage."""
    access_stage(user, view.stage)
    return view


def access_dry_run(user: Person, view: DryRunView) -> DryRunView:
    """The view, if the person may see the model that it is about, so far as that is known."""
    if view.release.partition("@")[0] not in seen_by(user):
        raise NotFoundError(f"There is no dry run {view.id}; they are kept for a day.")
    return view


def access_promote(user: Person, stage: str, *, generation: int | None = None, full: bool = False) -> int | None:
    """The generation to promote at; refused unless the person may do what a promotion does now.

    It approves when the rollout waits for an approval, and cuts a watch short otherwise; skipping all that follows is both.
    Whoever named no generation gets the present one: should the rollout move on meanwhile, it was judged as something else.
    """
    access_stage(user, stage)
    row = stage_row(stage)
    rollout = last_rollouts([row]).get(row.pk)
    waits = rollout is not None and approves(state_of(rollout))
    if waits or full:
        access_approve(user, stage, started_by=rollout.started_by if rollout else "")
    if not waits or full:
        access_stage(user, stage, Action.PROMOTE)
    return generation if generation is not None or rollout is None else rollout.generation
