"""Leaving a superseded rollout: before a new release begins, the stage goes back to the release that it stands on.

The same way as a rollback goes, because from any state that way is right: stable capacity first, then the traffic, then the
units of the release that is left. Only then is the new one planned, against what really stands.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from fleets.domain.types import UnitSpec
from releases.domain import rollout_back
from releases.domain.plan_words import number
from releases.domain.rollout_types import Decision, Observations, Phase, RolloutState, SetStable


def left_by(state: RolloutState) -> UnitSpec | None:
    """What a rollout leaves standing when it is superseded now, to be taken away by the one that takes its place."""
    return state.left or (state.new if state.phase is not Phase.PENDING else None)


def settle(state: RolloutState, obs: Observations, now: datetime) -> Decision:
    """One step out of what a superseded rollout left, for a rollout that is PENDING until nothing of that is there."""
    found = rollout_back.go_on(replace(state, phase=Phase.ROLLING_BACK, cause=None), obs, now)
    effects = tuple(effect for effect in found.effects if not isinstance(effect, SetStable))
    if found.state.phase is Phase.ROLLED_BACK:
        done = replace(state, left=None, draining={}, weight_bp=0, why="begins at the next look")
        return Decision(done, effects)
    gone = number(state.left.release) if state.left else 0
    why = f"release {gone} was superseded and is left first: {found.state.why}"
    return Decision(replace(state, draining=found.state.draining, why=why), effects, found.events)
