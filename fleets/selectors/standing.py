"""Units as they stand, and the plan of a drain."""

from __future__ import annotations

from collections.abc import Sequence

from fleets.domain.drain import DrainPlan, plan_moves
from fleets.domain.standing import StandingUnit
from fleets.domain.types import RankPlacement, ReplicaPlacement, Role, UnitPlacement
from fleets.models import RouteState, Unit
from fleets.selectors.fleets import fleet_views
from fleets.selectors.nodes import node_row
from fleets.selectors.rows import spec_of, units_with_ranks


def standing_units(*, stage: str = "", node: str = "", fleets: Sequence[str] | None = None) -> tuple[StandingUnit, ...]:
    """Units that were not told to end, by stage and slot: of a stage, on a node or in fleets, or all of them. Four queries."""
    rows = Unit.objects.filter(desired=Unit.Desired.RUN).order_by("stage", "slot", "id")
    if stage:
        rows = rows.filter(stage=stage)
    if node:
        rows = rows.filter(claims__node=node).distinct()
    if fleets is not None:
        rows = rows.filter(fleet__in=list(fleets))
    units = units_with_ranks(rows)
    weights = dict(RouteState.objects.filter(stage__in={unit.stage for unit in units}).values_list("stage", "weights"))
    return tuple(_standing(unit, weights.get(unit.stage) or {}) for unit in units)


def _standing(unit: Unit, weights: dict[str, int]) -> StandingUnit:
    replicas = tuple(
        ReplicaPlacement(
            Role(replica.role), replica.ordinal, tuple(RankPlacement(rank.node_id, tuple(rank.gpus)) for rank in replica.ranks.all())
        )
        for replica in unit.replicas.all()
        if not replica.retired
    )
    placement = UnitPlacement(unit.fleet_id, unit.domain, replicas)
    return StandingUnit(unit.id, unit.slot, spec_of(unit), placement, warm=bool(weights) and not weights.get(unit.release))


def drain_plan(*, node: str) -> DrainPlan:
    """What would become of the units on a node, or becomes of them if it is being drained."""
    row = node_row(node)
    units = standing_units(node=node)
    names = sorted({name for unit in units for name in (unit.placement.fleet, *unit.spec.fleets)})
    return DrainPlan(
        node=row.name,
        fleet=row.domain.fleet_id,
        domain=row.domain_id,
        cordoned=row.cordoned,
        draining=row.draining,
        done=row.draining and not row.claims.exists(),
        moves=plan_moves(node, units, fleet_views(names=names) if units else ()),
    )
