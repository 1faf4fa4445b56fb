"""The local-prefill limit at run time: work moves between the roles in a second, a replica takes minutes to come."""

from __future__ import annotations

from dataclasses import dataclass

from fleets.domain.scaling.need import PRESSED, SPARE, Need
from fleets.domain.scaling.types import Knob, Memory, Plant

STEP = 2  # by which the limit moves
MOST_RISE, MOST_FALL = 8, 4  # how far from the release's own limit
CALM_S = 60.0  # it returns by one step a minute once nothing is pressed


@dataclass(frozen=True, slots=True)
class Threshold:
    """The limit from now on, and the role that it helped in this look; None when it did not move for one."""

    below: int
    helped: Knob | None = None
    why: str = ""


def move_threshold(plant: Plant, memory: Memory, prefill: Need, decode: Need, at_s: float) -> Threshold:
    """Up while prompts press and decode has room, down while decode is pressed and prefill has room, and back when all is calm."""
    base = plant.local_prefill_below
    now = memory.local_prefill_below if memory.local_prefill_below is not None else base
    most = max(base, min(base * MOST_RISE, plant.local_prefill_most))
    least = base // MOST_FALL
    pressed = {Knob.PREFILL: _over(prefill, PRESSED), Knob.DECODE: _over(decode, PRESSED)}
    if pressed[Knob.PREFILL] and _under(decode, SPARE) and now < most:
        return _moved(Knob.PREFILL, now, min(most, max(1, now) * STEP))
    if pressed[Knob.DECODE] and (now > base or _under(prefill, SPARE)) and now > least:
        return _moved(Knob.DECODE, now, max(least, now // STEP))
    waited = memory.below_moved_s is None or at_s - memory.below_moved_s >= CALM_S
    if now != base and waited and not any(pressed.values()):
        back = max(base, now // STEP) if now > base else min(base, max(1, now) * STEP)
        return Threshold(back, None, f"prompts under {back:,} uncached tokens are prefilled by decode, {now:,} before: all is calm")
    return Threshold(now)


def _over(need: Need, level: float) -> bool:
    return need.pressure is not None and need.pressure >= level


def _under(need: Need, level: float) -> bool:
    return need.pressure is not None and need.pressure < level


def _moved(role: Knob, before: int, after: int) -> Threshold:
    return Threshold(
        after, role, f"prompts under {after:,} uncached tokens are prefilled by decode, {before:,} before, to help {role.value}"
    )
