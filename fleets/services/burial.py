"""What has stopped is cleared away: its claims are given back, its rows go."""

from __future__ import annotations

from denvweb.core.units import format_duration
from fleets.domain.types import NodeState, RankDesired, RankState
from fleets.domain.views import ReplicaState
from fleets.models import GpuClaim, NextGeneration, Node, Replica, Unit
from fleets.selectors.rows import state_of
from metrics.services import event_append


def replica_bury(*, replica: Replica) -> bool:
    """Give back the GPUs of a stopping replica's stopped ranks, and remove it with the last of them; True when it went.

    GPUs of a unit that goes on are kept for the replica that comes next. The replica must be loaded with its ranks and unit,
    under the lock of its stage.
    """
    if replica.desired != RankDesired.STOP:
        return False
    stopped = [rank.id for rank in replica.ranks.all() if rank.state == RankState.STOPPED]
    claims = GpuClaim.objects.filter(rank_id__in=stopped)
    if replica.unit.desired in (Unit.Desired.STOP, Unit.Desired.GONE):
        claims.delete()
    else:
        claims.update(rank=None)
    if state_of(replica) is not ReplicaState.GONE:
        return False
    # Their agents need no haste to forget what has stopped: they see it with their next look.
    Node.objects.filter(ranks__replica=replica).update(generation=NextGeneration())
    Replica.objects.filter(id=replica.id).delete()
    return True


def unit_bury(*, unit: Unit) -> bool:
    """Remove a stopping unit when nothing of it is left that may still answer; True when it is gone from view.

    Ranks on lost nodes may still run there, so their rows and claims stay until those nodes say otherwise.
    """
    if unit.desired not in (Unit.Desired.STOP, Unit.Desired.GONE):
        return False
    left = [rank for replica in Replica.objects.filter(unit=unit).prefetch_related("ranks__node") for rank in replica.ranks.all()]
    living = [rank for rank in left if rank.state != RankState.STOPPED]
    if any(rank.node.state != NodeState.LOST for rank in living):
        return False
    if living and unit.desired == Unit.Desired.GONE:
        return True
    if left:
        Unit.objects.filter(id=unit.id).update(desired=Unit.Desired.GONE)
    else:
        Unit.objects.filter(id=unit.id).delete()
    if unit.desired == Unit.Desired.STOP:
        rest = f"; {len(living)} of its ranks were on lost nodes, whose GPUs stay claimed" if living else ""
        drain = f" after a drain of {format_duration(unit.drained_s)}" if unit.drained_s is not None else ""
        sentence = f"unit {unit.slot} of {unit.stage} ({unit.release}, {unit.domain or unit.fleet_id}) has stopped{drain}{rest}"
        event_append(kind="unit.stopped", sentence=sentence, stage=unit.stage, model=unit.model, fleet=unit.fleet_id, release=unit.release)
    return True
