"""How much the units of a stage could grow where they stand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fleets.models import GpuClaim, Unit
from fleets.selectors.fleets import fleet_views


@dataclass(frozen=True, slots=True)
class UnitRoom:
    """One unit's GPUs: those that it holds, and its share of what is free in its domain (or its fleet, when it spans domains)."""

    unit: str
    slot: int
    release: str
    where: str
    held: int
    free: int

    @property
    def budget(self) -> int:
        """GPUs that it may have."""
        return self.held + self.free


def unit_rooms(*, stage: str) -> tuple[UnitRoom, ...]:
    """The running units of a stage by slot. Where several stand in one domain, what is free there is shared out evenly."""
    units = list(Unit.objects.filter(stage=stage, desired=Unit.Desired.RUN).order_by("slot", "id"))
    if not units:
        return ()
    held = Counter(GpuClaim.objects.filter(unit__in=units).values_list("unit_id", flat=True))
    free: dict[str, int] = {}
    for fleet in fleet_views(names=sorted({unit.fleet_id for unit in units})):
        free[fleet.name] = sum(domain.free for domain in fleet.domains)
        free |= {domain.name: domain.free for domain in fleet.domains}
    sharers = Counter(unit.domain or unit.fleet_id for unit in units)
    return tuple(
        UnitRoom(unit.id, unit.slot, unit.release, where, held[unit.id], free.get(where, 0) // sharers[where])
        for unit in units
        for where in [unit.domain or unit.fleet_id]
    )
