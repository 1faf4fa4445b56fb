"""Scaling in mid-rollout: the numbers of units and replicas change, the weights do not."""

from __future__ import annotations

from dataclasses import replace

from fleets.domain.scaling.types import Knob
from releases.domain.rollout_types import RolloutState
from releases.domain.scaling import Counts, scaled


def scaled_state(state: RolloutState, *, new: Counts, old: Counts | None) -> RolloutState:
    """A rollout's state with the numbers in force, each under the ranges of its own release.

    `replicas` is what the release that the rollout ends on gets: the target's, where it goes back after a success.
    """
    ends_on = old if state.kind == "rollback" and old is not None else new
    return replace(
        state,
        new=scaled(state.new, new),
        old=scaled(state.old, old) if state.old is not None and old is not None else state.old,
        replicas=ends_on[Knob.UNITS],
        replicas_back=old[Knob.UNITS] if old is not None and state.replicas_back else state.replicas_back,
    )
