"""Between rollouts: a stage keeps its number of complete units of its stable release, all traffic on them, and one warm unit aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from fleets.domain.refusal import Refusal
from fleets.domain.types import UnitSpec
from fleets.domain.views import RoutersView, UnitView
from releases.domain.plan import FULL_BP
from releases.domain.plan_words import number
from releases.domain.rollout_ensure import drain, ensure, stop
from releases.domain.rollout_types import Effect, Event, Placer, SetWeights, StopUnit
from releases.domain.rollout_units import of_release, serving


@dataclass(frozen=True, slots=True)
class Steady:
    """What a stage without a rollout should be. `warm_until`: other releases' units may stay until then."""

    stage: str
    stable: UnitSpec
    replicas: int
    warm_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Healing:
    """What is to be done, and why the stage is not as it should be; `why` is empty when it is."""

    why: str
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    draining: dict[str, datetime] = field(default_factory=dict)


def heal(
    want: Steady, *, units: Sequence[UnitView], routers: RoutersView, place: Placer, draining: Mapping[str, datetime], now: datetime
) -> Healing:
    """Compare and repair. A unit that gave up is replaced by a new one first, and taken out after, where there is room for that."""
    mine = of_release(units, want.stable.release)
    live = [unit for unit in mine if not unit.failed]
    failed = [unit for unit in mine if unit.failed]
    others = [unit for unit in units if unit.release != want.stable.release and not unit.stopping]
    effects: list[Effect] = []
    events: list[Event] = []
    whole = {want.stable.release: FULL_BP}
    if serving(live) and routers.weights != whole:
        effects.append(SetWeights(whole))
        events.append(Event("stage.weights", f"all traffic of {want.stage} is on release {number(want.stable.release)}"))
    got = ensure(spec=want.stable, count=want.replicas, units=units, routers=routers, place=place)
    effects += got.effects
    events += got.events
    # Only one reason at a time to free a place: the least harm first.
    out = [*_superfluous(live, want.replicas), *_leftover(others, want, now)]
    if isinstance(got.refusal, Refusal) and not any(unit.stopping for unit in units):
        out += others[:1] or failed[:1]
    elif got.enough:
        out += failed
    marked: dict[str, datetime] = {}
    for unit in {unit.unit: unit for unit in out}.values():
        gone = drain(unit, routers=routers, draining=draining, now=now)
        marked |= {name: at for name, at in gone.draining.items() if name == unit.unit}
        effects = [effect for effect in effects if getattr(effect, "unit", "") != unit.unit]
        if gone.over:
            effect, event = stop(unit)
            effects.append(effect)
            events.append(event)
        else:
            effects += gone.effects
    why = got.why or ("a unit gave up and is taken out" if failed else "")
    return Healing(why, tuple(effects), tuple(events), marked)


def clear(*, units: Sequence[UnitView]) -> tuple[Effect, ...]:
    """A stage without a release keeps nothing."""
    return tuple(StopUnit(unit.unit) for unit in units if not unit.stopping)


def _superfluous(live: Sequence[UnitView], replicas: int) -> list[UnitView]:
    """Units over the wanted number, those that do not serve first."""
    extra = len(live) - replicas
    ordered = sorted(live, key=lambda unit: (unit.ready and unit.routable, -unit.slot))
    return ordered[:extra] if extra > 0 and sum(unit.complete for unit in live) >= replicas else []


def _leftover(others: Sequence[UnitView], want: Steady, now: datetime) -> list[UnitView]:
    """Units of other releases but one that is ready, and that one too once its time is over."""
    ready = [unit for unit in others if unit.ready and not unit.failed]
    keep = ready[:1] if want.warm_until is not None and now < want.warm_until else []
    return [unit for unit in others if unit not in keep]
