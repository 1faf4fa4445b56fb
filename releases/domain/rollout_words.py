"""A rollout under way, and a rollback, in words for pages and the command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from fleets.domain.types import UnitSpec
from releases.domain.plan import FULL_BP, MoveKind
from releases.domain.plan_words import changed, number
from releases.domain.rollout_types import BACKWARD, Phase, RolloutState, StepDone
from releases.domain.views import PlanStepView, PreflightView, StagePlanView


def rollback_plan(*, stage: str, old: UnitSpec, target: UnitSpec, view: PreflightView) -> StagePlanView:
    """What a rollback after a success does."""
    release, left = number(target.release), number(old.release)
    missing = view.desired_units - view.warm_units
    steps = [PlanStepView(0, "shift", f"all traffic to {release}", view.sentence, weight_bp=FULL_BP)]
    if missing > 0:
        steps.append(PlanStepView(1, "bring-up", f"{missing} more of release {release}", f"in what units of release {left} give back"))
    steps.append(
        PlanStepView(len(steps), "retire", f"release {left}", "its units drain and stop; one stays warm while its GPUs are not needed")
    )
    return StagePlanView(
        stage=stage,
        from_release=left,
        to_release=release,
        changed=changed(old, target),
        surge=view.warm_units > 0,
        capacity_ratio_min=view.capacity_ratio,
        way_back=f"none by itself: release {left} is held until a person lifts that",
        steps=tuple(steps),
    )


def steps_now(plan: StagePlanView, state: RolloutState) -> tuple[PlanStepView, ...]:
    """The plan's steps with how far each is."""
    if state.kind == "rollback":
        return _back_steps(plan.steps, state)
    trail = {done.step: done for done in state.done}
    steps = [_with_trail(step, trail.get(step.index)) for step in plan.steps]
    if state.phase is Phase.SUCCEEDED:
        return tuple(replace(step, state="done") for step in steps)
    at = step_index(state)
    backward = state.phase in BACKWARD or state.phase is Phase.SUPERSEDED
    return tuple(_step(step, at, state, backward) for step in steps)


def _with_trail(step: PlanStepView, done: StepDone | None) -> PlanStepView:
    return step if done is None else replace(step, started_at=done.began_at, ended_at=done.ended_at, told=done.told)


def step_index(state: RolloutState) -> int:
    """The step that the present move belongs to."""
    if state.move is not None:
        return state.move.step
    return state.moves[-1].step if state.moves else 0


def _step(step: PlanStepView, at: int, state: RolloutState, backward: bool) -> PlanStepView:
    if step.index < at and state.phase is not Phase.PENDING:
        return replace(step, state="done")
    if backward:
        return replace(step, state="stopped") if step.index == at and state.phase is not Phase.PENDING else step
    if step.index > at or state.phase is Phase.PENDING:
        return step
    move, began = state.move, state.entered_at
    ends = None
    if began and move and move.kind in {MoveKind.HOLD, MoveKind.BAKE}:
        ends = began + timedelta(seconds=move.duration_s)
    return replace(step, state="now", started_at=began, ends_at=ends, ended_at=None)


def _back_steps(steps: Sequence[PlanStepView], state: RolloutState) -> tuple[PlanStepView, ...]:
    if state.phase is Phase.ROLLED_BACK:
        return tuple(replace(step, state="done") for step in steps)
    at = 0 if state.weight_bp > 0 else 1
    return tuple(replace(step, state="done" if step.index < at else "now" if step.index == at else "planned") for step in steps)


def stage_words(state: RolloutState, active: bool) -> str:
    """The state of a stage with this rollout, as pages name it."""
    if not active or state.phase is Phase.PENDING:
        return "rolling-back" if active and state.left is not None else "steady"
    return {
        Phase.ROLLING: "rolling",
        Phase.HELD: "held",
        Phase.BAKING: "baking",
        Phase.ROLLING_BACK: "rolling-back",
        Phase.ROLLBACK_BLOCKED: "blocked",
    }.get(state.phase, "steady")
