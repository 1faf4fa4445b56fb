"""What a person may tell a rollout: promote, pause, resume. Going back is no command but a row of its own, which beats them all."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from denvweb.core.errors import ConflictError, InvalidError
from releases.domain.freezes import Frozen
from releases.domain.plan import MoveKind
from releases.domain.plan_words import number, percent
from releases.domain.rollout_types import Decision, Event, Phase, Reason, RolloutState

_FORWARD = frozenset({Phase.ROLLING, Phase.HELD, Phase.BAKING})
THROUGH_THE_GLASS = "Wait for its end, or go on all the same with --break-glass and a reason; rollbacks are exempt."
_WATCHES = frozenset({MoveKind.HOLD, MoveKind.BAKE, MoveKind.APPROVE})
_DOUBTED = frozenset({Reason.BASELINE_BREACHING, Reason.BREACH_UNCONFIRMED})


def promote(
    state: RolloutState,
    *,
    now: datetime,
    actor: str,
    full: bool = False,
    reason: str = "",
    frozen: Frozen | None = None,
    break_glass: str = "",
) -> Decision:
    """Approve, or end the present watch; `full` waives all further watches up to 100%, and needs a reason. The alarms stay armed.

    Raises ConflictError `nothing-to-promote` when no watch is on, `frozen` in a freeze window unless `break_glass` says why not,
    InvalidError `reason-needed`.
    """
    broke = broken_glass(state, actor=actor, reason=break_glass) if break_glass else None
    if broke is not None and not full and (state.move is None or state.move.kind not in _WATCHES):
        return broke
    state = broke.state if broke is not None else state
    _require_forward(state)
    if frozen is not None and not state.break_glass:
        raise ConflictError(f"{state.stage} is {frozen.sentence}. {THROUGH_THE_GLASS}", code="frozen")
    if state.paused:
        raise ConflictError("The rollout is paused; resume it first.", code="paused")
    if full and not reason.strip():
        raise InvalidError("A full promotion needs a reason.", code="reason-needed", fields={"reason": ["say why the watches are skipped"]})
    doubted = state.reason in _DOUBTED
    if doubted and not reason.strip():
        raise InvalidError("An alarm is over its limit; going on needs a reason.", code="reason-needed", fields={"reason": ["say why"]})
    move = state.move
    if not full and not doubted and (move is None or move.kind not in _WATCHES):
        raise ConflictError(f"There is nothing to promote now: {state.why}", code="nothing-to-promote")
    told = f": {reason}" if reason else ""
    release = number(state.new.release)
    if full:
        sentence = f"{actor} promoted release {release} to all of {state.stage}, holds skipped, alarms armed{told}"
        changed = replace(state, full=True, overruled=state.overruled or doubted, why=sentence)
    elif doubted:
        sentence = f"{actor} lets release {release} go on although an alarm is over its limit{told}"
        changed = replace(state, overruled=True, why=sentence)
    else:
        sentence = f"{actor} promoted release {release} past {percent(state.weight_bp)}{told}"
        changed = replace(state, approved=True, why=sentence)
    return Decision(changed, (), (*(broke.events if broke else ()), Event("rollout.promoted", sentence, actor=actor)))


def approves(state: RolloutState) -> bool:
    """Whether to promote now is to approve.

    It goes by what comes next and not by why it is held: just after a pause, or while nodes are silent, that is another reason.
    """
    waits = state.phase in _FORWARD and state.move is not None and state.move.kind is MoveKind.APPROVE
    return waits and state.reason not in _DOUBTED  # there it overrules an alarm, and the approval is still to come


def broken_glass(state: RolloutState, *, actor: str, reason: str) -> Decision:
    """Have this rollout go on in spite of freeze windows, to its end. Watches and alarms stay as they are."""
    if state.phase is not Phase.PENDING:
        _require_forward(state)
    sentence = f"{actor} broke the glass: release {number(state.new.release)} goes on in {state.stage} in spite of freezes: {reason}"
    told = Event("rollout.break-glass", sentence, "bad", actor=actor)
    return Decision(replace(state, break_glass=f"{actor}: {reason}", why=sentence), (), (told,))


def pause(state: RolloutState, *, now: datetime, actor: str, reason: str = "") -> Decision:
    """Stop going forward; alarms and requests to go back still count. Pausing twice is the same as once."""
    _require_forward(state)
    if state.paused:
        return Decision(state)
    told = f": {reason}" if reason else ""
    sentence = f"{actor} paused it{told}; the alarms stay armed"
    held = replace(state, paused=True, phase=Phase.HELD, reason=Reason.MANUAL.value, held_at=now, why=sentence)
    return Decision(held, (), (Event("rollout.held", f"{state.stage} is held (manual): {sentence}", "warn", actor=actor),))


def resume(state: RolloutState, *, now: datetime, actor: str, reason: str = "") -> Decision:
    """Go on after a pause. Raises ConflictError `not-paused`."""
    _require_forward(state)
    if not state.paused:
        raise ConflictError("The rollout is not paused.", code="not-paused")
    told = f": {reason}" if reason else ""
    sentence = f"{actor} let it go on{told}"
    entered_at = state.entered_at
    if entered_at and state.held_at and state.reason == Reason.MANUAL:  # a pause does not count as time of the move
        entered_at += now - state.held_at
    going = replace(state, paused=False, entered_at=entered_at, held_at=now, why=sentence)
    return Decision(going, (), (Event("rollout.resumed", f"{state.stage}: {sentence}", actor=actor),))


def _require_forward(state: RolloutState) -> None:
    if state.phase not in _FORWARD:
        raise ConflictError(f"The rollout is {state.phase.value}: {state.why or 'it has not begun'}", code="not-under-way")


def superseded(state: RolloutState, *, by: str, actor: str) -> Decision:
    """End a rollout whose place another takes: `by` says which. What it brought is left to that one.

    Raises ConflictError `rolling-back`: nothing beats the way back.
    """
    if state.phase not in _FORWARD and state.phase is not Phase.PENDING:
        raise ConflictError(f"The rollout is {state.phase.value}; that has to end first.", code="rolling-back")
    why = f"superseded by {by}"
    ended = replace(state, phase=Phase.SUPERSEDED, why=why, reason="")
    sentence = f"{state.stage}: the rollout to release {number(state.new.release)} is {why}"
    return Decision(ended, (), (Event("rollout.superseded", sentence, "warn", actor=actor),))
