"""The buttons of a rollout: those that do something, and those that would if the person had the role for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from denvweb.access import Action, roles_for
from releases.domain.views import RolloutView

_BACK = {"rolling-back", "rollback-blocked"}


@dataclass(frozen=True, slots=True)
class Buttons:
    """What a person may do to the rollout now."""

    approve: bool
    promote: bool
    pause: bool
    resume: bool
    roll_back: bool  # may, whether or not there is anywhere to go back to
    approve_text: str  # `Approve 50%`
    missing: tuple[str, ...]  # what would be possible now, were it not for the person's roles: who may, as sentences
    no_approval: bool  # a button without effect, with the sentences as its reason
    no_way_back: bool


def buttons(rollout: RolloutView | None, may: Collection[Action], *, refused: str = "") -> Buttons:
    """Promote, pause and resume, only where the state machine would take them, and only for who may.

    `refused` is why this person may not approve what others of the same role may.
    """
    going = rollout is not None and rollout.active and rollout.state not in _BACK
    state, reason = (rollout.state, rollout.reason) if rollout is not None and going else ("", "")
    waits, paused = (state == "held" and reason == why for why in ("approval", "manual"))
    able = Action.APPROVE in may and not refused
    return Buttons(
        approve=waits and able,
        promote=Action.PROMOTE in may and not waits and rollout is not None and rollout.kind == "rollout" and state in {"rolling", "held"},
        pause=Action.PAUSE in may and (state in {"rolling", "baking"} or (state == "held" and reason not in {"manual", "approval"})),
        resume=Action.PAUSE in may and paused,
        roll_back=Action.ROLL_BACK in may,
        approve_text=_approve_text(rollout) if waits and rollout is not None else "",
        missing=tuple(_missing(may, waits, paused, refused)),
        no_approval=waits and not able,
        no_way_back=Action.ROLL_BACK not in may,
    )


def _approve_text(rollout: RolloutView) -> str:
    """What comes next, where that is a share of the traffic."""
    following = rollout.plan.steps[rollout.step_index + 1 : rollout.step_index + 2]
    return f"Approve {following[0].title}" if following and following[0].title[:1].isdigit() else "Approve"


def _missing(may: Collection[Action], waits: bool, paused: bool, refused: str) -> list[str]:
    found = []
    if Action.ROLL_BACK not in may:
        found.append(f"Rolling back takes the role {roles_for(Action.ROLL_BACK)}.")
    if waits and Action.APPROVE not in may:
        found.append(f"Approving takes the role {roles_for(Action.APPROVE)}.")
    elif waits and refused:
        found.append(refused)
    if paused and Action.PAUSE not in may:
        found.append(f"Resuming takes the role {roles_for(Action.PAUSE)}.")
    return found
