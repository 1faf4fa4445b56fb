"""Room for one more replica within its unit's place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleets.domain.placement import Refusal, place_unit
from fleets.domain.types import FleetView, PlacementRule, PoolSpec, RankPlacement, ReplicaPlacement, UnitPlacement, UnitSpec
from fleets.models import GpuClaim, Unit
from fleets.selectors.fleets import fleet_views
from fleets.selectors.rows import spec_of


def place_of(unit: Unit) -> FleetView:
    """The unit's fleet, cut down to its domain if it has one."""
    fleet = fleet_views(names=[unit.fleet_id])[0]
    if not unit.domain:
        return fleet
    return replace(fleet, domains=tuple(domain for domain in fleet.domains if domain.name == unit.domain))


def kept(unit: Unit) -> UnitPlacement:
    """The GPUs that are kept for the unit, as a placement that may be given out again."""
    gpus: dict[str, list[int]] = {}
    for node, index in GpuClaim.objects.filter(unit=unit, rank=None).order_by("node_id", "gpu_index").values_list("node_id", "gpu_index"):
        gpus.setdefault(node, []).append(index)
    ranks = tuple(RankPlacement(node, tuple(indices)) for node, indices in gpus.items())
    return UnitPlacement(unit.fleet_id, unit.domain, (ReplicaPlacement(spec_of(unit).pools[0].role, 0, ranks),))


def place_replica(
    spec: UnitSpec, pool: PoolSpec, fleet: FleetView, freed: UnitPlacement, before: Sequence[ReplicaPlacement]
) -> ReplicaPlacement | Refusal:
    """One replica of a pool on what is free and what `freed` gives back, beside those placed `before` it in the same pass."""
    rule = PlacementRule.SAME_DOMAIN if len(fleet.domains) == 1 else spec.placement
    alone = replace(spec, pools=(replace(pool, replicas=1),), placement=rule)
    taken = UnitPlacement(fleet.name, "", tuple(before))
    placed = place_unit(alone, [fleet], freed=[freed], taken=[taken])
    return placed if isinstance(placed, Refusal) else placed.replicas[0]
