"""The way back, by goal rather than by plan, so that it works from any state: stable capacity first, then the rest.

What serves of the target takes the traffic at once; the abandoned units drain and stop; missing target units come back in what
that frees. With under a third of the target's units up, traffic moves only as far as they can carry it, as long as the abandoned
release can still carry the rest: one warm unit of eight must not be crushed by the traffic of eight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import datetime

from fleets.domain.refusal import Refusal
from fleets.domain.types import UnitSpec
from fleets.domain.views import UnitView
from releases.domain.plan import FULL_BP, convertible, same_engines
from releases.domain.plan_words import number, percent
from releases.domain.rollout_ensure import drain, ensure, stop
from releases.domain.rollout_types import (
    Cause,
    Decision,
    Effect,
    Event,
    HoldRelease,
    Observations,
    Phase,
    RetargetUnit,
    RolloutState,
    SetRoutable,
    SetStable,
    SetWeights,
    StopUnit,
)
from releases.domain.rollout_units import confirmed, of_release, serving, slots, split

AT_ONCE_RATIO = 1 / 3  # of the target's units: with fewer up, traffic follows them as they come


def begin(state: RolloutState, cause: Cause, now: datetime) -> Decision:
    """Turn round. From PENDING nothing was touched, so it has ended at once, unless a superseded rollout is still being left."""
    what = f"release {number(state.new.release)}"
    to = f"release {number(state.old.release)}" if state.old else "nothing: no release served before"
    level = "warn" if cause.code == "requested" else "bad"
    via = "alarm" if "alarm" in cause.evidence else ""
    event = Event("rollout.rolling-back", f"{what} is taken back to {to}: {cause.sentence}", level, cause.actor, cause.evidence, via)
    held = HoldRelease(state.new.release, f"{state.stage} went back from it: {cause.sentence}"[:200])
    unbegun = state.phase is Phase.PENDING
    ended = unbegun and state.left is None
    turned = replace(
        state,
        phase=Phase.ROLLED_BACK if ended else Phase.ROLLING_BACK,
        cause=cause,
        reason=cause.code,
        why=cause.sentence,
        entered_at=now,
        held_at=None,
        paused=False,
    )
    return Decision(turned, untouched(state) if ended else () if unbegun else (held,), (event,))


def untouched(state: RolloutState) -> tuple[Effect, ...]:
    """For a rollout that ends before it began: the stage keeps its release, and gets that one's settings again."""
    return (SetStable(state.old.release),) if state.old else ()


@dataclass(slots=True)
class _Way:
    """One look at the way back, and what it gathers."""

    state: RolloutState
    obs: Observations
    now: datetime
    target: UnitSpec
    effects: list[Effect] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    draining: dict[str, datetime] = field(default_factory=dict)
    waits: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Units that the target is to have."""
        return self.state.replicas_back or self.state.replicas

    @property
    def abandoned(self) -> list[UnitView]:
        """Units of the release that is left."""
        return of_release(self.obs.units, self.state.new.release)


def go_on(state: RolloutState, obs: Observations, now: datetime) -> Decision:
    """One step back. While something of a superseded rollout is left, the new release has nothing yet, and that is what goes."""
    if state.left is not None:
        weight_bp = obs.routers.weights.get(state.left.release, 0)
        found = go_on(replace(state, new=state.left, left=None, weight_bp=weight_bp), obs, now)
        rest = None if found.state.phase is Phase.ROLLED_BACK else state.left
        return replace(found, state=replace(found.state, new=state.new, left=rest))
    if state.old is None:
        return _to_nothing(state, obs, now)
    way = _Way(state, obs, now, state.old, draining=dict(state.draining))
    if same_engines(state.old, state.new) and way.abandoned:
        return _rename(way)
    usable = _usable(way)
    weight_bp = _shift(way, usable)
    kept = _retire(way, weight_bp, usable)
    got = ensure(spec=way.target, count=way.count, units=_not_failed(way), routers=obs.routers, place=obs.place)
    way.effects += [effect for effect in got.effects if effect not in way.effects]
    way.events += got.events
    left = [unit for unit in way.abandoned if unit.unit != kept]
    wanted = split(way.target.release, state.new.release, 0)
    if got.enough and not left and weight_bp == 0 and confirmed(obs.routers, wanted):
        return _ended(way, weight_bp)
    if got.why:
        way.waits.append(got.why)
    return _under_way(way, weight_bp, got.refusal, left)


def _usable(way: _Way) -> list[UnitView]:
    """Target units that can take traffic now: probed ones, or, when nothing else serves, any that is ready."""
    ready = [unit for unit in of_release(way.obs.units, way.target.release) if unit.ready and not unit.failed]
    probed = [unit for unit in ready if unit.probed]
    if probed or serving(way.abandoned):
        return probed
    return ready


def _shift(way: _Way, usable: list[UnitView]) -> int:
    """Move the traffic to what the target has; never back to the abandoned release. The weight that this one keeps."""
    if not usable:
        return way.state.weight_bp
    for unit in usable:
        way.draining.pop(unit.unit, None)
        if not unit.routable:
            way.effects.append(SetRoutable(unit.unit, True))
    at_once = way.state.cause is None or way.state.cause.urgent or len(usable) >= way.count * AT_ONCE_RATIO
    if at_once or not serving(way.abandoned):
        weight_bp = 0
    else:
        weight_bp = min(way.state.weight_bp, FULL_BP - len(usable) * FULL_BP // way.count)
    wanted = split(way.target.release, way.state.new.release, weight_bp)
    if way.obs.routers.weights != wanted:
        way.effects.append(SetWeights(wanted))
        release = number(way.target.release)
        sentence = f"release {release} takes {percent(FULL_BP - weight_bp)} of the traffic on {slots(usable)}"
        way.events.append(Event("rollout.shifted", sentence, evidence={"weights": wanted}))
    if not confirmed(way.obs.routers, wanted):
        way.waits.append("the routers have to confirm" if way.obs.routers.live else "no router is live to confirm")
    return weight_bp


def _retire(way: _Way, weight_bp: int, usable: list[UnitView]) -> str:
    """Take out abandoned units that carry nothing any more, or whose GPUs the target needs. The unit that stays warm, or nothing."""
    kept = _to_keep(way)
    for unit in _surplus(way, weight_bp, usable):
        if unit.unit == kept:
            continue
        out = drain(unit, routers=way.obs.routers, draining=way.draining, now=way.now)
        way.draining = out.draining
        if not out.over:
            way.effects += out.effects
            way.waits.append(out.why)
        elif _missing(way) > 0 and convertible(way.state.new, way.target) and unit.ready:
            way.effects.append(RetargetUnit(unit.unit, way.target))
            way.events.append(Event("unit.replaced", f"unit {unit.slot} is turned back into release {number(way.target.release)} in place"))
        else:
            effect, event = stop(unit)
            way.effects.append(effect)
            way.events.append(event)
    return kept


def _surplus(way: _Way, weight_bp: int, usable: list[UnitView]) -> list[UnitView]:
    """Abandoned units that may go now: those that do not serve, and of the serving ones those that the weight does not need."""
    busy = serving(way.abandoned)
    idle = [unit for unit in way.abandoned if unit not in busy]
    done = weight_bp == 0 and confirmed(way.obs.routers, split(way.target.release, way.state.new.release, 0))
    if done:
        return [*idle, *busy]
    if usable and weight_bp == 0:
        return idle  # the routers still send to the busy ones until they confirm
    if not _needs_room(way) or any(unit.unit in way.draining for unit in way.abandoned):
        return idle
    if idle and not usable and not of_release(way.obs.units, way.target.release):
        return idle
    # With target units up, the rest must carry the weight that is left; without any, one has to go, the last too if need be.
    carrying = math.ceil(weight_bp * way.count / FULL_BP) if usable else 1
    if len(busy) > carrying or (not usable and not of_release(way.obs.units, way.target.release)):
        return [*idle, *busy[-1:]]
    return idle


def _needs_room(way: _Way) -> bool:
    """Whether a target unit is missing, nothing is being freed, and nothing is free."""
    if _missing(way) <= 0 or any(unit.stopping for unit in way.obs.units):
        return False
    return isinstance(way.obs.place(way.target, None), Refusal)


def _missing(way: _Way) -> int:
    live = [unit for unit in of_release(way.obs.units, way.target.release) if not unit.failed]
    return way.count - len(live) - sum(isinstance(effect, RetargetUnit) for effect in way.effects)


def _to_keep(way: _Way) -> str:
    """After a rollback from a success, one healthy unit of what was left stays warm while the target does not need its GPUs."""
    ready = [unit for unit in way.abandoned if unit.ready and not unit.failed]
    if way.state.kind != "rollback" or not ready:
        return ""
    return "" if len(way.abandoned) == 1 and _needs_room(way) else ready[0].unit


def _not_failed(way: _Way) -> tuple[UnitView, ...]:
    """The units, after a look at target units that gave up: they are stopped, and others are made."""
    for unit in of_release(way.obs.units, way.target.release):
        if unit.failed:
            way.effects.append(StopUnit(unit.unit))
    return way.obs.units


def _ended(way: _Way, weight_bp: int) -> Decision:
    release = number(way.target.release)
    sentence = f"release {release} has all traffic again, on {slots(of_release(way.obs.units, way.target.release))}"
    state = replace(way.state, phase=Phase.ROLLED_BACK, weight_bp=weight_bp, why=sentence, draining={}, held_at=None)
    event = Event("rollout.rolled-back", f"{way.state.stage} is back: {sentence}")
    return Decision(state, (*way.effects, SetStable(way.target.release)), (*way.events, event))


def _under_way(way: _Way, weight_bp: int, refusal: Refusal | None, left: list[UnitView]) -> Decision:
    state, now = way.state, way.now
    late = state.entered_at is not None and (now - state.entered_at).total_seconds() >= state.policy.deadline_s
    freeing = bool(left) or any(unit.stopping for unit in way.obs.units)
    blocked = "capacity" if refusal is not None and not freeing else "deadline" if late else ""
    why = "; ".join(dict.fromkeys(way.waits)) or "the last units are being put right"
    phase = Phase.ROLLBACK_BLOCKED if blocked else Phase.ROLLING_BACK
    if phase is not state.phase:
        way.events.append(_blocked_event(state, blocked, why))
    reason = blocked or (state.cause.code if state.cause else "")
    turned = replace(state, phase=phase, reason=reason, weight_bp=weight_bp, why=why, draining=way.draining)
    return Decision(turned, tuple(way.effects), tuple(way.events))


def _blocked_event(state: RolloutState, blocked: str, why: str) -> Event:
    if not blocked:
        return Event("rollout.unblocked", f"the way back of {state.stage} goes on: {why}")
    return Event("rollout.blocked", f"the way back of {state.stage} needs a person ({blocked}): {why}", "bad")


def _rename(way: _Way) -> Decision:
    """The engines are the same: every unit takes the old name again, with its weight, in one table."""
    target = way.target
    for unit in way.abandoned:
        way.effects.append(RetargetUnit(unit.unit, target))
        if unit.routable:
            way.effects.append(SetRoutable(unit.unit, True))
    if serving([*way.abandoned, *of_release(way.obs.units, target.release)]):
        way.effects.append(SetWeights({target.release: FULL_BP}))
        way.events.append(Event("rollout.shifted", f"release {number(target.release)} takes all traffic; no engine restarts"))
    state = replace(way.state, phase=Phase.ROLLING_BACK, weight_bp=0, why="the routers have to confirm")
    return Decision(state, tuple(way.effects), tuple(way.events))


def _to_nothing(state: RolloutState, obs: Observations, now: datetime) -> Decision:
    """The stage's first release is taken back: nothing is left to serve."""
    mine = of_release(obs.units, state.new.release)
    effects: list[Effect] = [SetWeights({})] if obs.routers.weights else []
    draining = dict(state.draining)
    waits = []
    for unit in mine:
        out = drain(unit, routers=obs.routers, draining=draining, now=now)
        draining = out.draining
        effects += [StopUnit(unit.unit)] if out.over else out.effects
        waits.append(out.why)
    if mine or effects:
        why = "; ".join(wait for wait in waits if wait) or "the units stop"
        return Decision(replace(state, phase=Phase.ROLLING_BACK, weight_bp=0, why=why, draining=draining), tuple(effects))
    why = "nothing serves: the stage's first release was taken back"
    ended = replace(state, phase=Phase.ROLLED_BACK, weight_bp=0, why=why, draining={})
    return Decision(ended, (SetStable(""),), (Event("rollout.rolled-back", f"{state.stage}: {why}"),))
