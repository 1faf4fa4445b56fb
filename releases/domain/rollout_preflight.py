"""What a rollback would do if it were asked for now, in numbers and in a sentence that promises nothing it cannot keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from denvweb.core.units import format_duration
from fleets.domain.refusal import Refusal
from fleets.domain.types import UnitSpec
from fleets.domain.views import RoutersView, UnitView
from releases.domain.plan_words import count, number
from releases.domain.rollout_back import AT_ONCE_RATIO
from releases.domain.rollout_room import placement_of
from releases.domain.rollout_types import Placer
from releases.domain.rollout_units import of_release, slots
from releases.domain.views import PreflightView

FLIP_S = 2.0  # a request, one look of the reconciler, one table to the routers


@dataclass(frozen=True, slots=True)
class Way:
    """Where a rollback would go from where. `in_service` is the release that it leaves."""

    stage: str
    target: UnitSpec | None
    in_service: str
    desired: int
    bring_up_s: float | None = None
    blocked_by: str = ""  # a sentence, when there is nothing to go back to


def preflight(way: Way, *, units: Sequence[UnitView], routers: RoutersView, place: Placer) -> PreflightView:
    """The view and its sentence."""
    if way.target is None:
        return _nothing(way)
    release = number(way.target.release)
    ready = [unit for unit in of_release(units, way.target.release) if unit.ready and unit.probed and not unit.failed]
    desired = max(1, way.desired)
    warm = min(len(ready), desired)
    missing = desired - warm
    left = of_release(units, way.in_service)
    blocked = _no_room(way.target, missing, left, place)
    took = f"about {format_duration(way.bring_up_s)}" if way.bring_up_s is not None else "as long as a unit takes to come up"
    full_after_s = 0.0 if missing == 0 else way.bring_up_s
    if warm == 0:
        carries = "the present release carries the traffic until then" if not blocked and len(left) > 1 else "nothing serves meanwhile"
        sentence = blocked or f"Release {release} is cold: no unit of it runs. A unit is back after {took}; {carries}."
        return PreflightView(not blocked, release, 0, desired, 0.0, full_after_s, sentence, "capacity" if blocked else "")
    sentence = _warm_sentence(release, ready[:warm], desired, took, blocked) + _in_flight(way, left, routers)
    return PreflightView(True, release, warm, desired, warm / desired, full_after_s, sentence)


def _nothing(way: Way) -> PreflightView:
    sentence = way.blocked_by or f"There is no earlier release of {way.stage} to go back to."
    return PreflightView(False, None, 0, way.desired, 0.0, None, sentence, "nothing-to-roll-back")


def _no_room(target: UnitSpec, missing: int, left: Sequence[UnitView], place: Placer) -> str:
    """Why the missing units would find no room, even in what the present release gives back; empty when they do."""
    if missing == 0 or (len(left) >= missing and all(unit.gpus >= target.gpus for unit in left[:missing])):
        return ""
    placed = place(target, placement_of(left[0]) if left else None)
    return f"Release {number(target.release)} does not fit any more: {placed.sentence}." if isinstance(placed, Refusal) else ""


def _warm_sentence(release: int, ready: Sequence[UnitView], desired: int, took: str, blocked: str) -> str:
    warm, missing = len(ready), desired - len(ready)
    where = f"Release {release} is warm on {slots(ready)}"
    if missing == 0:
        return f"{where}: all traffic in about {FLIP_S:g} s, at full capacity."
    share = f"{warm / desired:.0%}"
    rest = f"until {count(missing, 'more unit')} {'is' if missing == 1 else 'are'} back ({took}{' each' if missing > 1 else ''})"
    if blocked:
        rest = f"and it stays there: {blocked[0].lower()}{blocked[1:].rstrip('.')}"
    if warm >= desired * AT_ONCE_RATIO:
        return f"{where}: all traffic in about {FLIP_S:g} s, at {share} of capacity {rest}."
    return f"{where}: {share} of the traffic in about {FLIP_S:g} s, and the rest as units come back, {rest}."


def _in_flight(way: Way, left: Sequence[UnitView], routers: RoutersView) -> str:
    inflight = routers.inflight.get(way.in_service, 0)
    if not inflight or not left:
        return ""
    return f" {count(inflight, 'request')} in flight on release {number(way.in_service)} {'finishes' if inflight == 1 else 'finish'} there."
