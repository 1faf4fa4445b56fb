"""Rows of units as they are read together, and the small facts derived from them."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Prefetch, QuerySet

from denvweb.core import wire
from fleets.domain.gang import RankFact, replica_state
from fleets.domain.types import NodeState, PoolSpec, RankDesired, RankState, UnitSpec
from fleets.domain.views import ReplicaState
from fleets.models import Rank, Replica, Unit
from fleets.selectors.fleets import unfit_gpus

_RANK = ("id", "replica_id", "node_id", "index", "gpus", "port", "state", "detail", "restarts", "engine_id", "gauges")
_NODE = (
    "node__name",
    "node__host",
    "node__state",
    "node__generation",
    "node__observed_generation",
    "node__draining",
    "node__gpus",
    "node__gpu_reports",
)


def units_with_ranks(units: QuerySet[Unit]) -> list[Unit]:
    """The units with their replicas, ranks and nodes: three queries."""
    ranks = Rank.objects.select_related("node").only(*_RANK, *_NODE).order_by("index")
    return list(units.prefetch_related(Prefetch("replicas", Replica.objects.prefetch_related(Prefetch("ranks", ranks)))))


def spec_of(unit: Unit) -> UnitSpec:
    """The spec that the unit was last given."""
    return wire.from_plain(unit.spec, UnitSpec)


def facts_of(ranks: Sequence[Rank]) -> list[RankFact]:
    """The ranks as the pure rules see them."""
    return [RankFact(RankState(rank.state) if rank.state else None, NodeState(rank.node.state)) for rank in ranks]


def state_of(replica: Replica) -> ReplicaState:
    """The replica's state; its ranks must be loaded with their nodes."""
    return replica_state(RankDesired(replica.desired), facts_of(list(replica.ranks.all())))


def current(unit: Unit, pool: PoolSpec) -> list[Replica]:
    """The replicas that count as this pool's: not on their way out, and of its generation."""
    return [
        replica
        for replica in unit.replicas.all()
        if not replica.retired and replica.role == pool.role and replica.generation == pool.generation
    ]


def leaving(unit: Unit) -> str:
    """Why the unit is to be replaced elsewhere although it serves; empty when it is not."""
    nodes = {rank.node_id for replica in unit.replicas.all() if not replica.retired for rank in replica.ranks.all() if rank.node.draining}
    return f"{', '.join(sorted(nodes))} {'is' if len(nodes) == 1 else 'are'} being drained" if nodes else unit.leaving


def broken_under(replica: Replica) -> str:
    """The first broken GPU under a replica, `GPU 2 of n01 is broken: Xid 79`; empty when all are sound."""
    for rank in replica.ranks.all():
        unfit = unfit_gpus(rank.node) if rank.node.gpu_reports else {}
        for index in rank.gpus:
            if index >= rank.node.gpus:
                return f"GPU {index} of {rank.node_id} is gone: the node has {rank.node.gpus} now"
            if index in unfit and unfit[index].state == "broken" and not unfit[index].unsure:
                return f"GPU {index} of {rank.node_id} is {unfit[index].trouble}"
    return ""


def unit_ready(unit: Unit, spec: UnitSpec) -> bool:
    """Whether every pool has at least one ready replica."""
    return all(any(state_of(replica) is ReplicaState.READY for replica in current(unit, pool)) for pool in spec.pools)


def leader_of(replica: Replica) -> Rank:
    """Rank 0."""
    return next(rank for rank in replica.ranks.all() if rank.index == 0)


def probed(unit: Unit) -> bool:
    """Whether a probe succeeded since the unit's last change."""
    return unit.probed_revision == unit.revision
