"""How each move of a plan goes on, by what is observed. Every handler may be called any number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from denvweb.core.units import format_duration
from fleets.domain.refusal import Refusal
from fleets.domain.views import UnitView
from releases.domain.gates import Ruling, hold_over
from releases.domain.plan import Move, MoveKind
from releases.domain.plan_words import number, percent
from releases.domain.rollout_ensure import drain, ensure, stop, waits_for
from releases.domain.rollout_types import (
    CreateUnit,
    Effect,
    Event,
    Observations,
    Reason,
    RequestProbe,
    RetargetUnit,
    RolloutState,
    SetRoutable,
    SetStable,
    SetWeights,
    StopUnit,
)
from releases.domain.rollout_units import confirmed, fetching, in_slot, of_release, serving, silent, split

CONFIRM_S = 30.0  # a live router that has not taken a table by then is not counted on


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one look at a move gives. Without `done` it waits, as `why` says; `held` makes that a HELD with its reason."""

    done: bool = False
    why: str = ""
    held: Reason | None = None
    reason: str = ""  # a code for a wait that is not HELD
    timed: bool = True  # whether the deadline runs meanwhile
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)


def bring_up(state: RolloutState, obs: Observations, now: datetime, move: Move) -> Outcome:
    """Create the unit of a slot and wait until all of it is ready."""
    release = number(state.new.release)
    unit = in_slot(obs.units, move.slot, state.new.release)
    if unit is not None:
        changes = {"bring_up_s": _elapsed(state, now)} if unit.complete and _elapsed(state, now) >= 1 else {}
        held = Reason.NODES_UNREACHABLE if silent(unit) else None
        return Outcome(
            unit.complete, waits_for(unit, obs.routers), held, timed=not fetching(unit), changes=changes or _begins_later(state, unit, now)
        )
    if any(other.stopping and other.slot == move.slot for other in obs.units):
        return Outcome(why=f"unit {move.slot} is stopping; its GPUs are taken over then")
    placed = obs.place(state.new, move.placement)
    if isinstance(placed, Refusal):
        if any(other.stopping for other in obs.units):
            return Outcome(why=f"GPUs for unit {move.slot} are being freed: {placed.sentence}")
        return Outcome(why=f"unit {move.slot} finds no room: {placed.sentence}", held=Reason.CAPACITY)
    where = placed.domain or placed.fleet
    aside = (
        "" if move.placement is None or placed.domain == move.placement.domain else f"; {move.placement.domain}, as planned, is not free"
    )
    event = Event("unit.started", f"unit {move.slot} of release {release} is brought up in {where}{aside}")
    return Outcome(
        why=f"unit {move.slot} of release {release} comes up in {where}",
        effects=(CreateUnit(move.slot, state.new, placed),),
        events=(event,),
    )


def _begins_later(state: RolloutState, unit: UnitView, now: datetime) -> dict[str, Any]:
    """The deadline is for engines to start: while weights come it is moved on, seldom, so that half of it is left when they are there."""
    late = fetching(unit) and _elapsed(state, now) > state.policy.deadline_s / 2
    return {"entered_at": now} if late else {}


def probe(state: RolloutState, obs: Observations, now: datetime, move: Move) -> Outcome:
    """Have a real request go through the new unit; then routers may send to it."""
    unit = in_slot(obs.units, move.slot, state.new.release)
    if unit is None:
        return Outcome(why=f"unit {move.slot} of release {number(state.new.release)} is gone")
    if unit.probed and unit.ready:
        took_s = (state.bring_up_s or 0.0) + _elapsed(state, now)
        event = Event("unit.ready", f"unit {move.slot} of release {number(state.new.release)} is ready and answered a real request")
        effects = () if unit.routable else (SetRoutable(unit.unit, True),)
        return Outcome(True, effects=effects, events=(event,), changes={"bring_up_s": took_s} if took_s >= 1 else {})
    if not unit.ready:
        return Outcome(why=waits_for(unit, obs.routers), held=Reason.NODES_UNREACHABLE if silent(unit) else None)
    if obs.routers.live == 0:
        return Outcome(why=f"unit {move.slot} is ready, but no router is live to probe it", held=Reason.WEIGHTS_UNVERIFIED, timed=False)
    return Outcome(why=waits_for(unit, obs.routers), effects=(RequestProbe(unit.unit),))


def shift(state: RolloutState, obs: Observations, now: datetime, move: Move) -> Outcome:
    """Give the new release its weight, and wait until every live router has it."""
    wanted = split(state.old.release if state.old else "", state.new.release, move.weight_bp)
    release = number(state.new.release)
    if not serving(of_release(obs.units, state.new.release)):
        return Outcome(why=f"no unit of release {release} can take traffic yet")
    if obs.routers.weights != wanted or state.weight_bp != move.weight_bp:
        event = Event("rollout.shifted", f"release {release} takes {percent(move.weight_bp)} of the traffic", evidence={"weights": wanted})
        return Outcome(
            why=f"the routers have to confirm {percent(move.weight_bp)} on release {release}",
            effects=(SetWeights(wanted),),
            events=(event,) if state.weight_bp != move.weight_bp else (),
            changes=_counts_anew(state, move.weight_bp, now),
        )
    if confirmed(obs.routers, wanted):
        return Outcome(True)
    why = f"the routers have to confirm {percent(move.weight_bp)} on release {release}"
    if obs.routers.live == 0 or _elapsed(state, now) > CONFIRM_S:
        return Outcome(why=f"{why}; {obs.routers.live} are live", held=Reason.WEIGHTS_UNVERIFIED, timed=False)
    return Outcome(why=why)


def _counts_anew(state: RolloutState, weight_bp: int, now: datetime) -> dict[str, Any]:
    """With each weight the tests begin anew, evidence carried on: a test that has long seen health grows deaf."""
    since = state.judged_since if state.weight_bp == weight_bp and state.judged_since else now
    return {"weight_bp": weight_bp, "judged_since": since}


def hold(state: RolloutState, obs: Observations, now: datetime, move: Move) -> Outcome:
    """Watch the alarms: the time must be over and health proved, or enough seen."""
    if state.approved or state.full:
        return Outcome(True)
    waited_s = _elapsed(state, now)
    over = hold_over(obs.verdicts, policy=state.policy, waited_s=waited_s, hold_s=move.duration_s, counted=state.counted)
    if over.ruling is Ruling.PASS:
        return Outcome(True)
    what = "bake" if move.kind is MoveKind.BAKE else "hold"
    if not over.code:
        rest = f"; still to prove: {over.sentence}" if over.sentence else ""
        return Outcome(
            why=f"{what} ends at {_clock(state, move.duration_s)}, {format_duration(move.duration_s)} after it began{rest}", timed=False
        )
    limit_s = max(state.policy.max_wait_s, move.duration_s)
    if over.code != Reason.INSUFFICIENT_SAMPLES or waited_s >= limit_s:
        return Outcome(why=f"{over.sentence}; a person may decide", held=Reason(over.code), timed=False)
    why = f"the {what}'s time is over, but not all is proved: {over.sentence}; by {_clock(state, limit_s)}, or a person decides"
    return Outcome(why=why, reason=over.code, timed=False)


def approve(state: RolloutState, obs: Observations, now: datetime, move: Move) -> Outcome:
    """Wait for a person; the alarms stay armed."""
    if state.approved or state.full:
        return Outcome(True)
    why = f"waits for a person to approve more than {percent(state.weight_bp)} on release {number(state.new.release)}"
    return Outcome(why=why, held=Reason.APPROVAL, timed=False)


def retire(state: RolloutState, obs: Observations, now: datetime, move: Move) -> Outcome:
    """Drain and stop the old unit of a slot."""
    unit = in_slot(obs.units, move.slot, state.old.release) if state.old else None
    if unit is None:
        return Outcome(True)
    if (blocked := _last_serving(state, obs, unit, move)) is not None:
        return blocked
    out = drain(unit, routers=obs.routers, draining=state.draining, now=now)
    if not out.over:
        return Outcome(why=out.why, effects=out.effects, changes={"draining": out.draining})
    effect, event = stop(unit)
    return Outcome(why=f"unit {unit.slot} stops", effects=(effect,), events=(event,), changes={"draining": out.draining})


def replace(state: RolloutState, obs: Observations, now: datetime, move: Move) -> Outcome:
    """Drain the old unit of a slot, then turn it into the new release where it stands."""
    unit = in_slot(obs.units, move.slot, state.old.release) if state.old else None
    if unit is None:
        return bring_up(state, obs, now, move)
    if (blocked := _last_serving(state, obs, unit, move)) is not None:
        return blocked
    out = drain(unit, routers=obs.routers, draining=state.draining, now=now)
    if not out.over:
        return Outcome(why=out.why, effects=out.effects, changes={"draining": out.draining})
    sentence = f"unit {unit.slot} is turned into release {number(state.new.release)} in place; pools that did not change keep running"
    return Outcome(
        why=sentence,
        effects=(RetargetUnit(unit.unit, state.new),),
        events=(Event("unit.replaced", sentence),),
        changes={"draining": out.draining},
    )


def _last_serving(state: RolloutState, obs: Observations, unit: UnitView, move: Move) -> Outcome | None:
    """Never take out the last unit that serves a release with traffic, unless the plan said so."""
    others = [other for other in serving(of_release(obs.units, unit.release)) if other.unit != unit.unit]
    if move.outage or others or not unit.ready or state.weight_bp == 10_000:
        return None
    return Outcome(
        why=f"unit {unit.slot} is the last that serves release {number(unit.release)}; it stays until another does", held=Reason.CAPACITY
    )


def relabel(state: RolloutState, obs: Observations, now: datetime, move: Move) -> Outcome:
    """The engines are the same: name every unit anew, with its weight, in one table."""
    release = state.new.release
    olds = of_release(obs.units, state.old.release) if state.old else []
    whole = {release: 10_000}
    effects: list[Effect] = []
    for unit in olds:
        effects += [RetargetUnit(unit.unit, state.new), *([SetRoutable(unit.unit, True)] if unit.routable else [])]
    if serving([*olds, *of_release(obs.units, release)]) and obs.routers.weights != whole:
        effects.append(SetWeights(whole))
    if effects:
        sentence = f"{len(olds)} units take the name of release {number(release)}; no engine restarts"
        events = (Event("rollout.shifted", sentence),) if olds else ()
        changes = _counts_anew(state, 10_000, now) if SetWeights(whole) in effects else {}
        return Outcome(why=sentence, effects=tuple(effects), events=events, changes=changes)
    if confirmed(obs.routers, whole):
        return Outcome(True)
    why = "the routers have to confirm" if obs.routers.weights == whole else f"no unit of release {number(release)} serves yet"
    return Outcome(why=why, held=None if obs.routers.live else Reason.WEIGHTS_UNVERIFIED, timed=obs.routers.live > 0)


def evict(state: RolloutState, obs: Observations, now: datetime, move: Move) -> Outcome:
    """Stop a warm unit of an earlier release, which has no traffic."""
    named = {state.new.release, state.old.release if state.old else ""}
    unit = next((one for one in obs.units if one.slot == move.slot and one.release not in named and not one.stopping), None)
    if unit is None:
        return Outcome(True)
    sentence = f"unit {unit.slot} of release {number(unit.release)}, warm until now, gives up its GPUs"
    return Outcome(why=sentence, effects=(StopUnit(unit.unit),), events=(Event("unit.stopped", sentence),))


def finish(state: RolloutState, obs: Observations, now: datetime, move: Move) -> Outcome:
    """Success is every unit on the new release and healthy, not a count of ready ones."""
    got = ensure(spec=state.new, count=state.replicas, units=obs.units, routers=obs.routers, place=obs.place)
    if got.enough:
        return Outcome(True, effects=(SetStable(state.new.release),))
    held = Reason.CAPACITY if got.refusal and not any(unit.stopping for unit in obs.units) else None
    return Outcome(why=got.why, held=held, effects=got.effects, events=got.events)


Handler = Callable[[RolloutState, Observations, datetime, Move], Outcome]

HANDLERS: Mapping[MoveKind, Handler] = {
    MoveKind.EVICT: evict,
    MoveKind.BRING_UP: bring_up,
    MoveKind.PROBE: probe,
    MoveKind.SHIFT: shift,
    MoveKind.HOLD: hold,
    MoveKind.APPROVE: approve,
    MoveKind.RETIRE: retire,
    MoveKind.REPLACE: replace,
    MoveKind.RELABEL: relabel,
    MoveKind.BAKE: hold,
    MoveKind.FINISH: finish,
}


def _elapsed(state: RolloutState, now: datetime) -> float:
    return (now - state.entered_at).total_seconds() if state.entered_at else 0.0


def _clock(state: RolloutState, after_s: float) -> str:
    begun = state.entered_at
    return f"{begun + timedelta(seconds=after_s):%H:%M:%S}" if begun else "its time"
