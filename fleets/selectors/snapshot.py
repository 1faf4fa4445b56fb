"""What one node should run."""

from __future__ import annotations

from collections import defaultdict

from denvweb.core import wire
from denvweb.core.errors import NotFoundError
from fleets.domain.gang import DRAIN_DEADLINE_S, START_DEADLINE_S
from fleets.domain.protocol import NodeSnapshot, RankSpec
from fleets.domain.types import EngineSpec, RankDesired, Role
from fleets.models import Node, Rank


def node_snapshot(*, node: str) -> NodeSnapshot:
    """The whole desired state of a node: three queries.

    The generation is read before the ranks, so the ranks are never older than it says; were they newer, the next look brings them again.
    """
    row = Node.objects.select_related("domain__fleet").filter(name=node).first()
    if row is None:
        raise NotFoundError(f"There is no node {node}.")
    ranks = list(Rank.objects.filter(node_id=node).select_related("replica__unit").order_by("id"))
    gangs: dict[str, list[Rank]] = defaultdict(list)
    for member in Rank.objects.filter(replica_id__in={rank.replica_id for rank in ranks}).select_related("node").order_by("index"):
        gangs[member.replica_id].append(member)
    specs = tuple(_rank_spec(rank, gangs[rank.replica_id], row.domain.fleet.gpu_kind) for rank in ranks if gangs[rank.replica_id])
    return NodeSnapshot(node=node, generation=row.generation, ranks=specs)


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
        host=next(member.node.host for member in gang if member.id == rank.id),
    )
