"""Replicas on broken GPUs: replaced where their unit has room for that, else their unit is to move, and serves on until it has."""

from __future__ import annotations

from dataclasses import replace

from denvweb.wake import wake
from fleets.domain.placement import Refusal
from fleets.domain.types import RankPlacement, ReplicaPlacement, Role, UnitSpec
from fleets.models import Node, Replica, Unit
from fleets.reconcile.look import Needs
from fleets.reconcile.room import kept, place_of, place_replica
from metrics.services import event_append

MASS_NODES_MIN = 3  # so few say nothing of a cause that they share
MASS_RATIO = 1 / 3  # of a fleet's nodes: more likely a driver's upgrade than so many broken GPUs


def mend_sick(unit: Unit, spec: UnitSpec, needs: Needs) -> None:
    """Move sick replicas with a place elsewhere in the unit to `needs.replace`; of the others the unit says why it should move."""
    going = {replica.id for replica, _ in needs.replace}
    sick = [(replica, reason) for replica, reason in needs.sick if replica.id not in going]
    leaving = ""
    if sick and not _many_broken(unit.fleet_id):
        leaving = _replace(unit, spec, needs, sick)
    if leaving != unit.leaving:
        _say(unit, leaving)


def _replace(unit: Unit, spec: UnitSpec, needs: Needs, sick: list[tuple[Replica, str]]) -> str:
    fleet, mine = place_of(unit), kept(unit)
    pools = {pool.role: pool for pool in spec.pools}
    placed: list[ReplicaPlacement] = []
    for replica, reason in sick:
        mine = replace(mine, replicas=(*mine.replicas, _own(replica)))
        found = place_replica(spec, pools[Role(replica.role)], fleet, mine, placed)
        if isinstance(found, Refusal):
            return f"{reason}; no room for another in {unit.domain or unit.fleet_id}: {found.arithmetic}"
        placed.append(found)
        needs.replace.append((replica, reason))
    return ""


def _own(replica: Replica) -> ReplicaPlacement:
    """What the replica has now: its sound GPUs are free for the one that follows it."""
    ranks = tuple(RankPlacement(rank.node_id, tuple(rank.gpus)) for rank in replica.ranks.all())
    return ReplicaPlacement(Role(replica.role), replica.ordinal, ranks)


def _many_broken(fleet: str) -> bool:
    nodes = Node.objects.filter(domain__fleet=fleet)
    broken = sum(any(not gpu["healthy"] for gpu in said) for said in nodes.exclude(gpu_reports=[]).values_list("gpu_reports", flat=True))
    return broken >= MASS_NODES_MIN and broken > MASS_RATIO * nodes.count()


def _say(unit: Unit, leaving: str) -> None:
    before, unit.leaving = unit.leaving, leaving
    Unit.objects.filter(id=unit.id).update(leaving=leaving)
    name = f"unit {unit.slot} of {unit.stage}"
    sentence = f"{name} is to move: {leaving}" if leaving else f"{name} may stay where it is again ({before.partition(';')[0]} no more)"
    event_append(
        kind="unit.leaving",
        sentence=sentence,
        level="warn" if leaving else "info",
        stage=unit.stage,
        model=unit.model,
        fleet=unit.fleet_id,
        release=unit.release,
    )
    wake("releases.reconcile")
