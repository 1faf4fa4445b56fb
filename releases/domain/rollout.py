"""The rollout state machine: `step(state, observations, now)` decides, and does nothing itself.

    PENDING -> ROLLING <-> HELD(reason) -> BAKING -> SUCCEEDED
    any of them -> ROLLING_BACK -> ROLLED_BACK, or ROLLBACK_BLOCKED(reason), which goes on trying
    any going forward -> SUPERSEDED, when a newer release takes its place; PENDING also when its turn never comes

The order is always: bring up, ready, probed by a real request, routers confirm, shift, routers confirm, drain, stop. Calling
`step` twice, late, or after a crash between two ticks is harmless: each move looks at what is there and asks for what lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from releases.domain import rollout_back
from releases.domain.gates import Judgement, Ruling, judge
from releases.domain.plan import Move, MoveKind
from releases.domain.plan_words import number
from releases.domain.rollout_forward import HANDLERS, Outcome
from releases.domain.rollout_freeze import stopped_by_freeze
from releases.domain.rollout_settle import settle
from releases.domain.rollout_trail import steps_done
from releases.domain.rollout_types import (
    BACKWARD,
    ENDED,
    Cause,
    Decision,
    Event,
    Observations,
    Phase,
    Reason,
    RolloutState,
    SetWeights,
    Turn,
)
from releases.domain.rollout_units import crash_loops, of_release, serving, silent

EDGES: Mapping[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.ROLLING, Phase.SUPERSEDED, Phase.ROLLED_BACK, Phase.ROLLING_BACK}),
    Phase.ROLLING: frozenset({Phase.HELD, Phase.BAKING, Phase.SUCCEEDED, Phase.ROLLING_BACK, Phase.SUPERSEDED}),
    Phase.HELD: frozenset({Phase.ROLLING, Phase.BAKING, Phase.SUCCEEDED, Phase.ROLLING_BACK, Phase.SUPERSEDED}),
    Phase.BAKING: frozenset({Phase.ROLLING, Phase.HELD, Phase.SUCCEEDED, Phase.ROLLING_BACK, Phase.SUPERSEDED}),
    Phase.SUCCEEDED: frozenset(),
    Phase.ROLLING_BACK: frozenset({Phase.ROLLED_BACK, Phase.ROLLBACK_BLOCKED}),
    Phase.ROLLED_BACK: frozenset(),
    Phase.ROLLBACK_BLOCKED: frozenset({Phase.ROLLING_BACK, Phase.ROLLED_BACK}),
    Phase.SUPERSEDED: frozenset(),
}
"""Every edge there is, staying aside. None leads forward out of ROLLING_BACK."""

_CLOCK_STOPS = frozenset({Reason.MANUAL, Reason.FROZEN, Reason.WEIGHTS_UNVERIFIED})


def step(state: RolloutState, obs: Observations, now: datetime) -> Decision:
    """Decide the next thing. Pure; the same arguments give the same decision. A look older than the last one decides nothing."""
    if state.phase in ENDED or obs.routers.generation < state.table_generation:
        return Decision(state)
    return _decide(replace(state, table_generation=obs.routers.generation), obs, now)


def _decide(state: RolloutState, obs: Observations, now: datetime) -> Decision:
    if obs.rollback is not None and state.phase not in BACKWARD:
        reason = f": {obs.rollback.reason}" if obs.rollback.reason else ""
        sentence = f"{obs.rollback.requested_by} asked for it{reason}"
        back = rollout_back.begin(state, Cause("requested", sentence, now, actor=obs.rollback.requested_by), now)
        return replace(back, events=(*back.events, *_broken_too(state, obs, now)))
    return _PHASES[state.phase](state, obs, now)


def _broken_too(state: RolloutState, obs: Observations, now: datetime) -> tuple[Event, ...]:
    """An alarm that would have sent it back in this very look: the journal has who asked and what was wrong, people get one notice."""
    ruling = _judged(state, obs, now)
    if ruling.ruling is not Ruling.BACK:
        return ()
    return (
        Event(
            "rollout.breached",
            f"{state.stage} would have gone back by itself: {ruling.sentence}",
            "bad",
            via="alarm",
            evidence=ruling.evidence,
        ),
    )


def _start(state: RolloutState, obs: Observations, now: datetime) -> Decision:
    release = number(state.new.release)
    if state.left is not None:
        return settle(state, obs, now)
    if obs.turn is Turn.LATER:
        return Decision(replace(state, why="waits for the stage before it to succeed"))
    if obs.turn is Turn.NEVER:
        why = f"the stage before it did not keep release {release}, so it does not begin here"
        return Decision(
            replace(state, phase=Phase.SUPERSEDED, why=why), (), (Event("rollout.superseded", f"{state.stage}: {why}", "warn"),)
        )
    if obs.frozen is not None and not state.break_glass:
        return Decision(replace(state, reason=Reason.FROZEN.value, why=obs.frozen.sentence))
    old = of_release(obs.units, state.old.release) if state.old else []
    sick = [unit for unit in old if not unit.ready]
    aside = f"; {len(sick)} of {len(old)} units of the old release are not ready" if sick else ""
    origin = f"from release {number(state.old.release)}" if state.old else "as the first one"
    event = Event("rollout.started", f"release {release} rolls out to {state.stage}, {origin}{aside}", "warn" if sick else "info")
    back = state.replicas_back or len(old)
    begun = replace(state, phase=Phase.ROLLING, cursor=0, entered_at=now, replicas_back=back, why="begins", reason="")
    # The weights stay; the table takes the alarms of the new settings, so that both arms are counted from the first request on.
    return Decision(begun, (SetWeights(dict(obs.routers.weights)),) if obs.routers.weights else (), (event,))


def _forward(state: RolloutState, obs: Observations, now: datetime) -> Decision:
    cause = _unfit(state, obs, now)
    if cause is not None:
        return rollout_back.begin(state, cause, now)
    ruling = _judged(state, obs, now)
    doubted = ruling.ruling is Ruling.HOLD and ruling.code == Reason.BREACH_UNCONFIRMED
    state = replace(state, doubted_at=(state.doubted_at or now) if doubted else None)
    if ruling.ruling is Ruling.BACK:
        cause = Cause(ruling.code, ruling.sentence, now, urgent=ruling.urgent, evidence=ruling.evidence)
        return rollout_back.begin(state, cause, now)
    if ruling.ruling is Ruling.HOLD:
        level = "bad" if ruling.code == Reason.BASELINE_BREACHING else "warn"
        return _hold(state, Reason(ruling.code), ruling.sentence, now, level=level, evidence=ruling.evidence)
    if state.paused:
        return _hold(state, Reason.MANUAL, "a person paused it; the alarms stay armed", now)
    if _blind(state, obs):
        why = f"the nodes of release {number(state.new.release)} are silent; nothing is decided on what cannot be seen"
        return _hold(state, Reason.NODES_UNREACHABLE, why, now)
    move = state.move
    if move is None:
        return _succeed(state, Decision(state), now)
    if obs.frozen is not None and stopped_by_freeze(state, obs, move):
        return _hold(state, Reason.FROZEN, obs.frozen.sentence, now, level="info")
    running = _thawed(state, now)
    outcome = HANDLERS[move.kind](running, obs, now, move)
    still = state.phase is Phase.HELD and outcome.held is not None and outcome.held.value == state.reason
    return _apply(state if still else running, obs, now, move, outcome)


def _thawed(state: RolloutState, now: datetime) -> RolloutState:
    """The state with its move's clock moved on by the time for which it stood still; a deadline does not run while nobody could meet it."""
    if state.phase is not Phase.HELD or state.reason not in _CLOCK_STOPS or state.held_at is None or state.entered_at is None:
        return state
    return replace(state, entered_at=state.entered_at + (now - state.held_at), held_at=now)


def _unfit(state: RolloutState, obs: Observations, now: datetime) -> Cause | None:
    """What sends a release back at once, without statistics."""
    release = number(state.new.release)
    units = of_release(obs.units, state.new.release)
    for unit in units:
        if unit.failed:
            return Cause(
                "unit-failed",
                f"unit {unit.slot} of release {release} gave up: {unit.detail or 'no reason given'}",
                now,
                urgent=not serving(units),
            )
        if crash_loops(unit):
            return Cause(
                "crash-loop", f"unit {unit.slot} of release {release} keeps dying: {unit.detail or 'no reason given'}", now, urgent=True
            )
    if state.weight_bp > 0 and not serving(units) and not any(silent(unit) for unit in units):
        return Cause(
            "no-ready-canary", f"release {release} has {state.weight_bp / 100:g}% of the traffic and no unit that serves", now, urgent=True
        )
    return None


def _judged(state: RolloutState, obs: Observations, now: datetime) -> Judgement:
    if state.weight_bp == 0:
        return Judgement(Ruling.PASS)
    doubted_s = (now - state.doubted_at).total_seconds() if state.doubted_at else None
    return judge(obs.verdicts, doubted_s=doubted_s, policy=state.policy, overruled=state.overruled)


def _blind(state: RolloutState, obs: Observations) -> bool:
    units = of_release(obs.units, state.new.release)
    return state.weight_bp > 0 and not serving(units) and any(silent(unit) for unit in units)


def _hold(
    state: RolloutState, reason: Reason, why: str, now: datetime, *, level: str = "warn", evidence: Mapping[str, object] | None = None
) -> Decision:
    """Be HELD; an event only when it begins or its reason changes."""
    changed = state.phase is not Phase.HELD or state.reason != reason
    events = (
        (Event("rollout.held", f"{state.stage} is held ({reason.value}): {why}", level, evidence=dict(evidence or {})),) if changed else ()
    )
    held = replace(state, phase=Phase.HELD, reason=reason.value, why=why, held_at=state.held_at if not changed else now)
    return Decision(held, (), events)


def _apply(state: RolloutState, obs: Observations, now: datetime, move: Move, outcome: Outcome) -> Decision:
    """Fold what a move's handler said into the state."""
    state = replace(state, **outcome.changes)
    if outcome.done:
        return _advance(state, obs, now, outcome)
    if _late(state, now, outcome):
        what = outcome.why or f"{move.kind.value} did not end"
        sentence = f"it took longer than the {state.policy.deadline_s:g} s it may take: {what}"
        return rollout_back.begin(state, Cause("deadline", sentence, now), now)
    if outcome.held is not None:
        level = "info" if outcome.held is Reason.APPROVAL else "warn"
        held = _hold(state, outcome.held, outcome.why, now, level=level)
        return Decision(held.state, outcome.effects, (*outcome.events, *held.events))
    state, events = _released(state)
    return Decision(replace(state, why=outcome.why, reason=outcome.reason), outcome.effects, (*events, *outcome.events))


def _released(state: RolloutState) -> tuple[RolloutState, tuple[Event, ...]]:
    """Out of HELD, if it was."""
    phase = _phase_of(state)
    if state.phase is not Phase.HELD:
        return replace(state, phase=phase), ()
    event = Event("rollout.resumed", f"{state.stage} goes on; it was held ({state.reason})")
    return replace(state, phase=phase, held_at=None, reason=""), (event,)


def _phase_of(state: RolloutState) -> Phase:
    """BAKING from the bake on, the last look included."""
    begun = state.moves[: state.cursor + 1]
    return Phase.BAKING if any(move.kind is MoveKind.BAKE for move in begun) else Phase.ROLLING


def _late(state: RolloutState, now: datetime, outcome: Outcome) -> bool:
    return outcome.timed and state.entered_at is not None and (now - state.entered_at).total_seconds() >= state.policy.deadline_s


def _advance(state: RolloutState, obs: Observations, now: datetime, outcome: Outcome) -> Decision:
    """On to the next move, or to the end."""
    counted = {verdict.alarm: verdict.n for verdict in obs.verdicts}
    done = steps_done(state, obs.verdicts, now)
    following = replace(state, cursor=state.cursor + 1, entered_at=now, held_at=None, reason="", approved=False, counted=counted, done=done)
    if following.move is None:
        return _succeed(following, Decision(following, outcome.effects, outcome.events), now)
    return Decision(
        replace(following, phase=_phase_of(following), why=f"{following.move.kind.value} begins"), outcome.effects, outcome.events
    )


def _succeed(state: RolloutState, decision: Decision, now: datetime) -> Decision:
    sentence = (
        f"release {number(state.new.release)} serves all of {state.stage} with {state.replicas} unit{'' if state.replicas == 1 else 's'}"
    )
    ended = replace(state, phase=Phase.SUCCEEDED, why=sentence, reason="", draining={})
    return Decision(ended, decision.effects, (*decision.events, Event("rollout.succeeded", sentence)))


_PHASES: Mapping[Phase, Callable[[RolloutState, Observations, datetime], Decision]] = {
    Phase.PENDING: _start,
    Phase.ROLLING: _forward,
    Phase.HELD: _forward,
    Phase.BAKING: _forward,
    Phase.ROLLING_BACK: rollout_back.go_on,
    Phase.ROLLBACK_BLOCKED: rollout_back.go_on,
}
