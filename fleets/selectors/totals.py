"""Sums over fleets and pools, for whoever draws them over time: a few queries, whatever their number."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Count, Min, Q, Sum

from fleets.domain.types import NodeState
from fleets.models import Fleet, GpuClaim, Node, Unit
from fleets.selectors.heads import pools_by_unit, ready_replicas


@dataclass(slots=True)
class FleetTotals:
    """One fleet in numbers. `oldest_report_at` is of the nodes that are not lost, the one heard of the longest ago."""

    fleet: str
    gpu_kind: str
    frozen: bool
    gpus: int = 0
    gpus_claimed: int = 0
    nodes: dict[NodeState, int] = field(default_factory=lambda: dict.fromkeys(NodeState, 0))
    cordoned: int = 0
    oldest_report_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """The replicas of one role and generation of a release on a stage, over its units. A generation is a hash of the pool's spec."""

    stage: str
    release: str
    role: str
    generation: str
    wanted: int
    ready: int


def fleet_totals() -> tuple[FleetTotals, ...]:
    """Every fleet, by name: three queries."""
    found = {row.name: FleetTotals(row.name, row.gpu_kind, bool(row.frozen)) for row in Fleet.objects.order_by("name")}
    nodes = Node.objects.values("domain__fleet_id", "state").annotate(
        nodes=Count("pk"), sum_gpus=Sum("gpus"), oldest_at=Min("last_report_at"), apart=Count("pk", filter=Q(cordoned=True))
    )
    for row in nodes:
        fleet = found[row["domain__fleet_id"]]
        fleet.nodes[NodeState(row["state"])] = row["nodes"]
        fleet.gpus += row["sum_gpus"]
        fleet.cordoned += row["apart"]
        if row["state"] != NodeState.LOST and row["oldest_at"] is not None:
            fleet.oldest_report_at = min(row["oldest_at"], fleet.oldest_report_at or row["oldest_at"])
    claims = GpuClaim.objects.values("node__domain__fleet_id").annotate(claims=Count("pk"))
    for claim in claims:
        found[claim["node__domain__fleet_id"]].gpus_claimed = claim["claims"]
    return tuple(found.values())


def pool_totals() -> tuple[PoolTotals, ...]:
    """Every pool of the units that are to run: two queries."""
    ready = ready_replicas()
    sums: dict[tuple[str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for unit, stage, release, pools in pools_by_unit(Unit.objects.filter(desired=Unit.Desired.RUN)):
        for role, generation, replicas in pools:
            counts = sums[stage, release, role, generation]
            counts[0] += replicas
            counts[1] += ready[unit, role, generation]
    return tuple(PoolTotals(*key, wanted, there) for key, (wanted, there) in sorted(sums.items()))
