"""Two things that every direction needs: having enough units of a release, and taking one out without cutting a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from fleets.domain.refusal import Refusal
from fleets.domain.types import UnitSpec
from fleets.domain.views import RoutersView, UnitView
from releases.domain.plan_words import number
from releases.domain.rollout_types import CreateUnit, Effect, Event, Placer, RequestProbe, SetRoutable, StopUnit
from releases.domain.rollout_units import free_slot, of_release

DRAIN_S = 120.0  # what is still in flight then is cut


@dataclass(frozen=True, slots=True)
class Ensured:
    """What is to be done to have enough units, and whether there are."""

    enough: bool
    why: str = ""
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    refusal: Refusal | None = None


def ensure(*, spec: UnitSpec, count: int, units: Sequence[UnitView], routers: RoutersView, place: Placer) -> Ensured:
    """Have `count` complete, probed and routable units of `spec`. At most one is created a step: each changes what is free."""
    mine = of_release(units, spec.release)
    live = [unit for unit in mine if not unit.failed]
    effects: list[Effect] = [effect for unit in live if (effect := _into_service(unit, routers)) is not None]
    if len(live) < count:
        return _create(spec, units, place, tuple(effects))
    waiting = next((unit for unit in live if not (unit.complete and unit.probed and unit.routable)), None)
    if waiting is not None:
        return Ensured(False, waits_for(waiting, routers), tuple(effects))
    return Ensured(not effects, "", tuple(effects))


def _into_service(unit: UnitView, routers: RoutersView) -> Effect | None:
    if unit.ready and not unit.probed and routers.live:
        return RequestProbe(unit.unit)
    return SetRoutable(unit.unit, True) if unit.ready and unit.probed and not unit.routable else None


def _create(spec: UnitSpec, units: Sequence[UnitView], place: Placer, effects: tuple[Effect, ...]) -> Ensured:
    placed = place(spec, None)
    if isinstance(placed, Refusal):
        return Ensured(False, placed.sentence, effects, refusal=placed)
    slot = free_slot(units)
    release, where = number(spec.release), placed.domain or placed.fleet
    event = Event("unit.started", f"unit {slot} of release {release} is brought up in {where}")
    return Ensured(False, f"unit {slot} of release {release} comes up in {where}", (*effects, CreateUnit(slot, spec, placed)), (event,))


def waits_for(unit: UnitView, routers: RoutersView) -> str:
    """What a unit lacks before users' requests may go to it."""
    name = f"unit {unit.slot} of release {number(unit.release)}"
    if not unit.complete:
        pools = ", ".join(f"{pool.role.value} {pool.ready} of {pool.desired}" for pool in unit.pools)
        return f"{name} comes up: {pools or 'nothing'} ready{f'; {unit.detail}' if unit.detail else ''}"
    if not unit.probed:
        return f"{name} is ready; {'a real request through a router must succeed' if routers.live else 'no router is live to probe it'}"
    return f"{name} is about to be routed to"


@dataclass(frozen=True, slots=True)
class Drain:
    """How far a unit is on its way out. `over`: nothing is lost by stopping it now."""

    over: bool
    why: str
    effects: tuple[Effect, ...]
    draining: dict[str, datetime]


def drain(unit: UnitView, *, routers: RoutersView, draining: Mapping[str, datetime], now: datetime) -> Drain:
    """Route nothing more to a unit, and wait until it has finished what it has. Its engines stay up, so it can be taken back at once."""
    since = draining.get(unit.unit, now)
    marked = {**draining, unit.unit: since}
    release = number(unit.release)
    if unit.routable:
        return Drain(False, f"unit {unit.slot} of release {release} gets nothing new", (SetRoutable(unit.unit, False),), marked)
    seen = routers.live > 0 and routers.confirmed >= routers.generation
    late = (now - since).total_seconds() >= DRAIN_S
    if not unit.ready or late or (seen and unit.inflight == 0):
        return Drain(True, "", (), {name: at for name, at in marked.items() if name != unit.unit})
    last = "1 request finishes on it" if unit.inflight == 1 else f"{unit.inflight} requests finish on it"
    what = last if unit.inflight else "the routers have to confirm"
    return Drain(False, f"unit {unit.slot} of release {release} drains: {what}", (), marked)


def stop(unit: UnitView) -> tuple[Effect, Event]:
    """End a drained unit."""
    return StopUnit(unit.unit), Event("unit.stopped", f"unit {unit.slot} of release {number(unit.release)} has drained and is stopped")
