"""Units on nodes that are being drained: which of them are to be replaced now. Pure; only healing asks, never a rollout under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleets.domain.placement import place_unit
from fleets.domain.refusal import Refusal
from fleets.domain.types import FleetView, UnitSpec
from fleets.domain.views import UnitView
from releases.domain.rollout_room import give, placement_of, take


def give_up_leaving(units: Sequence[UnitView], *, stable: UnitSpec, replicas: int, fleets: Sequence[FleetView]) -> tuple[UnitView, ...]:
    """The units, with those that have to leave marked as failed where healing can replace them: then it does.

    A unit that finds no other room, not even with its own GPUs given back, goes on serving: draining a node never takes
    capacity away for good. Of another release than the stable one it is warm, and needs no replacement.
    """
    leaving = [unit for unit in units if unit.leaving and not unit.stopping and not unit.failed]
    mine = [unit for unit in leaving if unit.release == stable.release]
    staying = sum(unit.release == stable.release and not (unit.stopping or unit.failed or unit.leaving) for unit in units)
    out = {unit.unit for unit in leaving if unit not in mine}
    replaced = max(0, staying + len(mine) - replicas)  # as many have a unit in their stead already
    out |= {unit.unit for unit in mine[:replaced]} | _with_room(mine[replaced:], stable, tuple(fleets))
    return tuple(replace(unit, failed=True, detail=unit.detail or unit.leaving) if unit.unit in out else unit for unit in units)


def _with_room(units: Sequence[UnitView], spec: UnitSpec, fleets: tuple[FleetView, ...]) -> set[str]:
    found = set()
    for unit in units:
        for views in (fleets, give(fleets, placement_of(unit))):
            placed = place_unit(spec, views)
            if not isinstance(placed, Refusal):
                fleets = take(views, placed)
                found.add(unit.unit)
                break
    return found
