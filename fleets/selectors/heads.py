"""What lists of hundreds of stages want to know of units, routes and fleets: few columns, and one or two queries for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db.models import Count, F, Func, Q, TextField

from fleets.domain.gang import RankFact, replica_state
from fleets.domain.types import NodeState, RankDesired, RankState
from fleets.domain.views import FleetHead, ReplicaState, UnitHead
from fleets.models import Fleet, Rank, RouteState, Unit

_RANK = (
    *("replica__unit_id", "replica__role", "replica__generation", "replica_id", "replica__ordinal", "replica__desired"),
    *("state", "node__state", "detail", "node_id"),
)
_POOL = {"role": "text", "generation": "text", "replicas": "int"}
_Replicas = dict[tuple[str, str], dict[str, ReplicaState]]  # by (role, generation), then by replica


def _of(stages: Collection[str] | None) -> dict[str, Any]:
    return {} if stages is None else {"stage__in": list(stages)}


def _each_pool(name: str, kind: str = "text") -> Func:
    """One value of every pool of a unit's spec, as an array: the specs themselves are a hundred times as large."""
    template = f"ARRAY(SELECT (pool->>%%s)::{kind} FROM jsonb_array_elements((%(expressions)s)->'pools') AS pool)"
    return Func(F("spec"), template=template.replace("%%s", f"'{name}'"), output_field=ArrayField(TextField()))


def unit_heads(*, stages: Collection[str] | None = None) -> dict[str, tuple[UnitHead, ...]]:
    """Units by stage, by slot, those on their way out included: two queries."""
    units = Unit.objects.filter(**_of(stages)).exclude(desired=Unit.Desired.GONE).order_by("slot", "created_at", "id")
    rows = list(
        units.values_list(
            "id",
            "slot",
            "stage",
            "release",
            "desired",
            "routable",
            "failed",
            "probe_detail",
            *(_each_pool(name, kind) for name, kind in _POOL.items()),
        )
    )
    replicas, details = _replicas(stages)
    found: dict[str, list[UnitHead]] = defaultdict(list)
    for unit_id, slot, stage, release, desired, routable, failed, probe_detail, *pools in rows:
        ready = [_ready(replicas[unit_id], role, generation) for role, generation, _ in zip(*pools, strict=True)]
        running = desired == Unit.Desired.RUN
        head = UnitHead(
            unit=unit_id,
            slot=slot,
            stage=stage,
            release=release,
            stopping=not running,
            ready=all(ready),
            complete=ready == pools[-1],
            routable=routable and running,
            detail=failed or details.get(unit_id, "") or probe_detail,
        )
        found[stage].append(head)
    return {stage: tuple(heads) for stage, heads in found.items()}


def _ready(replicas: _Replicas, role: str, generation: str) -> int:
    states = replicas.get((role, generation), {}).values()
    return sum(state is ReplicaState.READY for state in states)


def _replicas(stages: Collection[str] | None) -> tuple[dict[str, _Replicas], dict[str, str]]:
    """States of the replicas that count, by unit; and the first thing that a rank which is not ready says, by unit."""
    only = {} if stages is None else {"replica__unit__stage__in": list(stages)}
    rows = Rank.objects.filter(replica__retired=False, **only).order_by("replica__role", "replica__ordinal", "index")
    facts: dict[tuple[str, str, str, str, str], list[RankFact]] = defaultdict(list)
    details: dict[str, str] = {}
    for unit, role, generation, replica, ordinal, desired, state, node_state, detail, node in rows.values_list(*_RANK):
        facts[unit, role, generation, replica, desired].append(RankFact(RankState(state) if state else None, NodeState(node_state)))
        if detail and state != RankState.READY:
            details.setdefault(unit, f"{role} {ordinal + 1} on {node}: {detail}")
    found: dict[str, _Replicas] = defaultdict(lambda: defaultdict(dict))
    for (unit, role, generation, replica, desired), ranks in facts.items():
        found[unit][role, generation][replica] = replica_state(RankDesired(desired), ranks)
    return found, details


def weights_view(*, stages: Collection[str] | None = None) -> dict[str, dict[str, int]]:
    """Weights wanted, basis points by release, by stage: one query."""
    return dict(RouteState.objects.filter(**_of(stages)).values_list("stage", "weights"))


def fleet_heads() -> tuple[FleetHead, ...]:
    """All fleets by name: one query."""
    silent = Q(domains__nodes__state__in=[NodeState.SUSPECT, NodeState.LOST])
    rows = Fleet.objects.annotate(nodes=Count("domains__nodes"), silent=Count("domains__nodes", filter=silent)).order_by("name")
    return tuple(FleetHead(row.name, row.simulated, row.nodes, row.silent, row.frozen) for row in rows)
