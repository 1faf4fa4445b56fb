"""Replicas come and go: their rows, their ports, and the claims on their GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction

from denvweb.core import wire
from denvweb.core.errors import ConflictError
from denvweb.core.ids import derived_id
from denvweb.wake import poke_agents
from fleets.domain.ports import PORTS_A_RANK, port_count
from fleets.domain.types import PoolSpec, RankDesired, RankPlacement, ReplicaPlacement
from fleets.models import GpuClaim, NextGeneration, Node, Rank, Replica, Unit


@dataclass(frozen=True, slots=True)
class Launch:
    """One replica to make."""

    pool: PoolSpec
    placement: ReplicaPlacement


def nodes_lock(names: Iterable[str]) -> dict[str, Node]:
    """Lock nodes' rows in one order until the transaction ends."""
    rows = Node.objects.select_for_update(no_key=True).filter(name__in=set(names)).order_by("name")
    return {node.name: node for node in rows}


def nodes_touch(names: Iterable[str]) -> None:
    """Have these nodes' agents look at what they should run."""
    touched = set(names)
    if Node.objects.filter(name__in=touched).update(generation=NextGeneration()):
        poke_agents(touched)


def replicas_launch(*, unit: Unit, launches: Sequence[Launch], now: datetime) -> None:
    """Make replicas of a unit where they were placed, and claim their GPUs.

    Raises ConflictError `gpu-taken` when another has claimed one of them since the placement was made.
    """
    places = [rank for launch in launches for rank in launch.placement.ranks]
    nodes = nodes_lock(place.node for place in places)
    ports = _Ports(nodes)
    replicas, ranks = [], []
    for launch in launches:
        replica = _replica(unit, launch, now)
        replicas.append(replica)
        ranks += [_rank(replica, index, place, ports) for index, place in enumerate(launch.placement.ranks)]
    unit.save(update_fields=["attempts"])
    Replica.objects.bulk_create(replicas)
    Rank.objects.bulk_create(ranks)
    _claim(unit, ranks)
    nodes_touch(nodes)


def _replica(unit: Unit, launch: Launch, now: datetime) -> Replica:
    pool, ordinal = launch.pool, launch.placement.ordinal
    key = f"{pool.role.value}/{pool.generation}/{ordinal}"
    attempt = unit.attempts.get(key, 0)
    unit.attempts[key] = attempt + 1
    alone = len(launch.placement.ranks) == 1  # nobody to wait for
    return Replica(
        id=derived_id("r", unit.id, pool.role.value, pool.generation, ordinal, attempt),
        unit=unit,
        role=pool.role.value,
        ordinal=ordinal,
        attempt=attempt,
        release=pool.release,
        generation=pool.generation,
        engine=wire.to_plain(pool.engine),
        desired=RankDesired.RUN if alone else RankDesired.HOLD,
        desired_at=now,
    )


def _rank(replica: Replica, index: int, place: RankPlacement, ports: _Ports) -> Rank:
    rank_id = derived_id("k", replica.id, index, place.node)
    port = ports.next(place.node, port_count(len(place.gpus), replica.engine["tensor_parallel"]))
    return Rank(id=rank_id, replica=replica, node_id=place.node, index=index, gpus=list(place.gpus), port=port)


class _Ports:
    """The lowest free ports of nodes whose rows are locked, in blocks of four."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self._nodes = nodes
        self._taken: dict[str, set[int]] = defaultdict(set)
        for rank in Rank.objects.filter(node_id__in=nodes).select_related("replica"):
            count = port_count(len(rank.gpus), rank.replica.engine["tensor_parallel"])
            self._taken[rank.node_id].update(range(rank.port, rank.port + count, PORTS_A_RANK))

    def next(self, name: str, count: int) -> int:
        """The first of `count` ports in a row that nobody has, taken by asking."""
        node = self._nodes.get(name)
        if node is None:
            raise ConflictError(f"Node {name} is gone.", code="node-gone")
        for port in range(node.port_base, node.port_base + node.port_count - count + 1, PORTS_A_RANK):
            block = set(range(port, port + count, PORTS_A_RANK))
            if not block & self._taken[name]:
                self._taken[name] |= block
                return port
        raise ConflictError(f"Node {name} has no {count} ports left of its {node.port_count}.", code="no-port")


def _claim(unit: Unit, ranks: Sequence[Rank]) -> None:
    """Claim each rank's GPUs; those kept for the unit pass to the rank."""
    kept = {(claim.node_id, claim.gpu_index): claim for claim in GpuClaim.objects.filter(unit=unit, rank=None)}
    passed, fresh = [], []
    for rank in ranks:
        for index in rank.gpus:
            claim = kept.get((rank.node_id, index))
            if claim is not None:
                claim.rank = rank
                passed.append(claim)
            else:
                fresh.append(GpuClaim(node_id=rank.node_id, gpu_index=index, unit=unit, rank=rank))
    GpuClaim.objects.bulk_update(passed, ["rank"])
    try:
        with transaction.atomic():
            GpuClaim.objects.bulk_create(fresh)
    except IntegrityError as error:
        raise ConflictError(_taken_sentence(fresh), code="gpu-taken") from error


def _taken_sentence(wanted: Sequence[GpuClaim]) -> str:
    pairs = {(claim.node_id, claim.gpu_index) for claim in wanted}
    held = GpuClaim.objects.filter(node_id__in={node for node, _ in pairs}).select_related("unit").order_by("node_id", "gpu_index")
    first = next((claim for claim in held if (claim.node_id, claim.gpu_index) in pairs), None)
    if first is None:
        return "A GPU of this placement was claimed by another unit; plan again."
    return f"GPU {first.gpu_index} of {first.node_id} is claimed by {first.unit_id} of {first.unit.stage} by now; plan again."


def replicas_end(*, replicas: Iterable[Replica], now: datetime, retire: bool) -> None:
    """Tell replicas to stop; `retire` ones no longer count as their unit's while they do."""
    ids = [replica.id for replica in replicas]
    Replica.objects.filter(id__in=ids).exclude(desired=RankDesired.STOP).update(desired=RankDesired.STOP, desired_at=now)
    if retire:
        Replica.objects.filter(id__in=ids).update(retired=True)
    nodes_touch(Rank.objects.filter(replica_id__in=ids).values_list("node_id", flat=True))


def gang_start(*, replica: Replica, now: datetime) -> bool:
    """HOLD to RUN; False when another process did it first."""
    started = Replica.objects.filter(id=replica.id, desired=RankDesired.HOLD).update(desired=RankDesired.RUN, desired_at=now)
    if started:
        nodes_touch(Rank.objects.filter(replica=replica).values_list("node_id", flat=True))
    return bool(started)
