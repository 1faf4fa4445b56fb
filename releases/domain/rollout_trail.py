"""What a rollout has behind it: each step with its times and with what was known of the alarms when its watch ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from metrics.domain.views import AlarmVerdict
from releases.domain.gates import told
from releases.domain.plan import MoveKind
from releases.domain.rollout_types import RolloutState, StepDone

_WATCHES = (MoveKind.HOLD, MoveKind.BAKE)
WAIVED = "a person went on before its time"


def steps_done(state: RolloutState, verdicts: Sequence[AlarmVerdict], now: datetime) -> tuple[StepDone, ...]:
    """The trail with the present move, which has ended; the moves of a step are one entry."""
    move = state.move
    if move is None:
        return state.done
    words: tuple[str, ...] = ()
    if move.kind in _WATCHES:
        waived = (WAIVED,) if state.approved or state.full else ()
        words = (*waived, *(told(verdict) for verdict in verdicts if verdict.n or not verdict.synthetic))
    before, last = state.done[:-1], state.done[-1] if state.done else None
    if last is not None and last.step == move.step:
        return (*before, replace(last, ended_at=now, told=words or last.told))
    began = last.ended_at if last is not None else state.entered_at or now
    return (*state.done, StepDone(move.step, began, now, words))
