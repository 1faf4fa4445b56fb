"""What lists of hundreds of stages want to know of units, routes and fleets: few columns, and one or two queries for all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import lru_cache

from django.contrib.postgres.fields import ArrayField
from django.db.models import Count, F, Func, Q, QuerySet, TextField

from fleets.domain.gang import RankFact, replica_state
from fleets.domain.types import NodeState, RankDesired, RankState
from fleets.domain.views import FleetHead, ReplicaState, UnitHead
from fleets.models import Fleet, Rank, RouteState, Unit

_RANK = (
    *("replica__unit_id", "replica__role", "replica__generation", "replica_id", "replica__ordinal", "replica__desired"),
    *("index", "state", "node__state", "detail", "node_id"),
)
_Pool = tuple[str, str, str]  # unit, role, generation
_Said = tuple[str, int, int, str]  # role, ordinal and index of a rank, and what it says


def _pools() -> Func:
    """Role, generation and replicas of every pool, one after the other: the specs that hold them are a hundred times as large."""
    each = "ARRAY(SELECT unnest(ARRAY[pool->>'role', pool->>'generation', pool->>'replicas'])"
    template = f"{each} FROM jsonb_array_elements((%(expressions)s)->'pools') AS pool)"
    return Func(F("spec"), template=template, output_field=ArrayField(TextField()))


def unit_heads(*, stages: Collection[str] | None = None, ranks: bool = True) -> dict[str, tuple[UnitHead, ...]]:
    """Units by stage, by slot, those on their way out included: two queries. Without `ranks` one, and none of them is ready."""
    units = Unit.objects.exclude(desired=Unit.Desired.GONE).order_by("slot", "created_at", "id")
    columns = ("id", "slot", "stage", "release", "desired", "routable", "failed", "probe_detail")
    rows = list((units if stages is None else units.filter(stage__in=list(stages))).values_list(*columns, _pools()))
    ready, said = _replicas(stages) if ranks else (Counter[_Pool](), {})
    found: dict[str, list[UnitHead]] = defaultdict(list)
    for unit, slot, stage, release, desired, routable, failed, probe_detail, pools in rows:
        counts = [ready[unit, role, generation] for role, generation in zip(pools[::3], pools[1::3], strict=True)]
        running = desired == Unit.Desired.RUN
        head = UnitHead(
            unit=unit,
            slot=slot,
            stage=stage,
            release=release,
            stopping=not running,
            ready=all(counts),
            complete=counts == list(map(int, pools[2::3])),
            routable=routable and running,
            detail=failed or (said[unit][-1] if unit in said else "") or probe_detail,
        )
        found[stage].append(head)
    return {stage: tuple(heads) for stage, heads in found.items()}


def pools_by_unit(units: QuerySet[Unit]) -> Iterator[tuple[str, str, str, list[tuple[str, str, int]]]]:
    """Unit, stage and release of each, and its pools as role, generation and replicas wanted: one query."""
    for unit, stage, release, pools in units.values_list("id", "stage", "release", _pools()):
        yield unit, stage, release, list(zip(pools[::3], pools[1::3], map(int, pools[2::3]), strict=True))


def ready_replicas() -> Counter[_Pool]:
    """Ready replicas by unit, role and generation: one query."""
    return _replicas(None)[0]


def unit_releases() -> dict[str, dict[str, str]]:
    """The release of every unit, by stage and unit, those on their way out included: one query."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for stage, unit, release in Unit.objects.exclude(desired=Unit.Desired.GONE).values_list("stage", "id", "release"):
        found[stage][unit] = release
    return found


def _replicas(stages: Collection[str] | None) -> tuple[Counter[_Pool], dict[str, _Said]]:
    """Ready replicas of those that count, by pool; and the first thing that a rank which is not ready says, by unit."""
    rows = Rank.objects.filter(replica__retired=False)
    rows = rows if stages is None else rows.filter(replica__unit__stage__in=list(stages))
    ranks: dict[tuple[_Pool, str, str], list[tuple[str | None, str]]] = defaultdict(list)
    said: dict[str, _Said] = {}
    for unit, role, generation, replica, ordinal, desired, index, state, node_state, detail, node in rows.values_list(*_RANK):
        ranks[(unit, role, generation), replica, desired].append((state, node_state))
        if detail and state != RankState.READY:
            saying = (role, ordinal, index, f"{role} {ordinal + 1} on {node}: {detail}")
            said[unit] = min(said.get(unit, saying), saying)
    return Counter(pool for (pool, _, desired), states in ranks.items() if _is_ready(desired, tuple(states))), said


@lru_cache(maxsize=4096)
def _is_ready(desired: str, ranks: tuple[tuple[str | None, str], ...]) -> bool:
    """The rule that all else goes by, worked out once for what nearly every replica is."""
    facts = [RankFact(RankState(state) if state else None, NodeState(node)) for state, node in ranks]
    return replica_state(RankDesired(desired), facts) is ReplicaState.READY


def weights_view(*, stages: Collection[str] | None = None) -> dict[str, dict[str, int]]:
    """Weights wanted, basis points by release, by stage: one query."""
    rows = RouteState.objects.all() if stages is None else RouteState.objects.filter(stage__in=list(stages))
    return dict(rows.values_list("stage", "weights"))


def fleet_heads() -> tuple[FleetHead, ...]:
    """All fleets by name: one query."""
    silent = Q(domains__nodes__state__in=[NodeState.SUSPECT, NodeState.LOST])
    rows = Fleet.objects.annotate(nodes=Count("domains__nodes"), silent=Count("domains__nodes", filter=silent)).order_by("name")
    return tuple(FleetHead(row.name, row.simulated, row.nodes, row.silent, row.frozen) for row in rows)
