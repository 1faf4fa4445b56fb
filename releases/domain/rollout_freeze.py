"""What a freeze window stops in a rollout: whatever gives the new release more, or takes something from the old one.

A move that has begun is ended all the same, so that a freeze never keeps a stage at less capacity than before; watches go on,
alarms stay armed, and nothing that leads back ever asks.
"""

from __future__ import annotations

from releases.domain.plan import Move, MoveKind
from releases.domain.rollout_types import Observations, RolloutState
from releases.domain.rollout_units import in_slot

_CHANGES = frozenset({MoveKind.EVICT, MoveKind.BRING_UP, MoveKind.SHIFT, MoveKind.RETIRE, MoveKind.REPLACE, MoveKind.RELABEL})


def stopped_by_freeze(state: RolloutState, obs: Observations, move: Move) -> bool:
    """Whether the present move has to wait for the freeze to end."""
    if obs.frozen is None or state.break_glass or move.kind not in _CHANGES:
        return False
    return not _begun(state, obs, move)


def _begun(state: RolloutState, obs: Observations, move: Move) -> bool:
    if move.kind is MoveKind.SHIFT:
        return state.weight_bp == move.weight_bp
    if move.kind is MoveKind.RELABEL:
        return state.weight_bp > 0
    if move.kind is MoveKind.BRING_UP:
        return in_slot(obs.units, move.slot, state.new.release) is not None
    old = in_slot(obs.units, move.slot, state.old.release) if state.old else None
    return move.kind is not MoveKind.EVICT and (old is None or not old.routable)
