"""What one node should run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from django.utils import timezone

from denvweb.core import wire
from denvweb.core.errors import NotFoundError
from fleets import models
from fleets.domain.gang import DRAIN_DEADLINE_S, START_DEADLINE_S
from fleets.domain.protocol import LogAsk, NodeSnapshot, RankSpec
from fleets.domain.types import EngineSpec, RankDesired, Role
from fleets.models import Node, Rank
from fleets.selectors.secrets import secret_values


def node_snapshot(*, node: str) -> NodeSnapshot:
    """The whole desired state of a node: four queries."""
    found = node_snapshots(nodes=[node])
    if not found:
        raise NotFoundError(f"There is no node {node}.")
    return found[0]


def node_snapshots(*, nodes: Sequence[str]) -> list[NodeSnapshot]:
    """The same of several: four queries for all of them. Unknown ones are left out.

    Generations are read before ranks, so ranks are never older than they say; were they newer, the next look brings them again.
    """
    rows = list(Node.objects.select_related("domain__fleet").filter(name__in=nodes)) if nodes else []
    if not rows:
        return []
    ranks: dict[str, list[Rank]] = defaultdict(list)
    for rank in Rank.objects.filter(node_id__in=nodes).select_related("replica__unit").order_by("id"):
        ranks[rank.node_id].append(rank)
    gangs: dict[str, list[Rank]] = defaultdict(list)
    replicas = {rank.replica_id for found in ranks.values() for rank in found}
    for member in Rank.objects.filter(replica_id__in=replicas).select_related("node").order_by("index"):
        gangs[member.replica_id].append(member)
    asks = _log_asks(nodes)
    values = secret_values(names={name for found in ranks.values() for rank in found for name in _named(rank)})
    return [
        NodeSnapshot(
            node=row.name,
            generation=row.generation,
            logs=tuple(asks[row.name]),
            secrets=_of_ranks(ranks[row.name], values),
            ranks=tuple(
                _rank_spec(rank, gangs[rank.replica_id], row.domain.fleet.gpu_kind) for rank in ranks[row.name] if gangs[rank.replica_id]
            ),
        )
        for row in rows
    ]


def _named(rank: Rank) -> set[str]:
    return set(rank.replica.engine.get("secrets", {}).values())


def _of_ranks(ranks: Sequence[Rank], values: dict[str, str]) -> dict[str, str]:
    return {name: values[name] for rank in ranks for name in _named(rank) if name in values}


def _log_asks(nodes: Sequence[str]) -> dict[str, list[LogAsk]]:
    found: dict[str, list[LogAsk]] = defaultdict(list)
    for row in models.LogAsk.objects.filter(node_id__in=nodes, done=False, wanted_until__gt=timezone.now()):
        since_at = row.since_at.timestamp() if row.since_at else None
        found[row.node_id].append(LogAsk(row.id, row.rank, row.follow, row.position, row.tail_lines, since_at))
    return found


def _rank_spec(rank: Rank, gang: list[Rank], gpu_kind: str) -> RankSpec:
    replica, leader = rank.replica, gang[0]
    return RankSpec(
        rank_id=rank.id,
        replica=replica.id,
        unit=replica.unit_id,
        stage=replica.unit.stage,
        release=replica.release,
        role=Role(replica.role),
        index=rank.index,
        count=len(gang),
        gpus=tuple(rank.gpus),
        port=rank.port,
        leader_host=leader.node.host,
        leader_port=leader.port,
        gpu_kind=gpu_kind,
        desired=RankDesired(replica.desired),
        engine=wire.from_plain(replica.engine, EngineSpec),
        start_deadline_s=START_DEADLINE_S,
        drain_deadline_s=DRAIN_DEADLINE_S,
        hung_engine=rank.hung_engine,
        host=next(member.node.host for member in gang if member.id == rank.id),
    )
