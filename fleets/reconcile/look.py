"""What one unit needs, from its rows alone: decided without a write, so that it can be decided twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from fleets.domain.gang import DRAIN_DEADLINE_S, HOLD_DEADLINE_S, START_DEADLINE_S, gang_complete
from fleets.domain.scaling.drained import SCALE_IN_DEADLINE_S, finished
from fleets.domain.types import NodeState, PoolSpec, RankDesired, RankState, Role, UnitSpec
from fleets.domain.views import ReplicaState
from fleets.models import Replica, Unit
from fleets.selectors.rows import broken_under, current, facts_of, leader_of, state_of


@dataclass(slots=True)
class Needs:
    """What is to be done for one unit."""

    start: list[Replica] = field(default_factory=list)  # gangs that are complete
    replace: list[tuple[Replica, str]] = field(default_factory=list)  # and why
    sick: list[tuple[Replica, str]] = field(default_factory=list)  # on a broken GPU, though they may serve
    surplus: list[Replica] = field(default_factory=list)  # of another generation, or over the number and with nothing left to finish
    drain: list[Replica] = field(default_factory=list)  # over the number, and serving still
    idle: list[Replica] = field(default_factory=list)  # drained, as far as they say themselves; the routers must agree
    recall: list[Replica] = field(default_factory=list)  # on their way out, and wanted after all
    missing: list[tuple[PoolSpec, int]] = field(default_factory=list)  # pool and ordinal of replicas to make
    leaving: bool = False  # replicas on their way out still hold GPUs that will come free
    failed: str = ""  # why it cannot heal by itself
    stop: bool = False  # its drain is over time
    bury: bool = False  # something of it has stopped

    def anything(self, unit: Unit) -> bool:
        """Whether there is anything to do for `unit`, or anything new to say of it."""
        work = (self.start, self.replace, self.surplus, self.drain, self.idle, self.recall, self.missing, self.stop, self.bury)
        return any(work) or bool(self.sick or unit.leaving) or self.failed != unit.failed


def look_at(unit: Unit, spec: UnitSpec, now: datetime) -> Needs:
    """What the unit needs now; its replicas, ranks and nodes must be loaded."""
    needs = Needs()
    replicas = list(unit.replicas.all())
    for replica in replicas:
        if replica.desired == RankDesired.STOP:
            _look_at_leaving(replica, needs)
    if unit.desired in (Unit.Desired.STOP, Unit.Desired.GONE):
        over = not replicas if unit.desired == Unit.Desired.GONE else not any(_answers(replica) for replica in replicas)
        needs.bury = needs.bury or over
        needs.failed = unit.failed
    elif unit.desired == Unit.Desired.DRAIN:
        needs.stop = (now - unit.desired_at).total_seconds() >= DRAIN_DEADLINE_S
        needs.failed = unit.failed
    else:
        for pool in spec.pools:
            _look_at_pool(unit, pool, needs, now)
    return needs


def _answers(replica: Replica) -> bool:
    """Whether something of it may still run on a node that reports."""
    return any(rank.state != RankState.STOPPED and rank.node.state != NodeState.LOST for rank in replica.ranks.all())


def _look_at_leaving(replica: Replica, needs: Needs) -> None:
    if any(rank.state == RankState.STOPPED for rank in replica.ranks.all()):
        needs.bury = True
    if _answers(replica):
        needs.leaving = True


def _look_at_pool(unit: Unit, pool: PoolSpec, needs: Needs, now: datetime) -> None:
    wanted = range(pool.replicas)
    here: dict[int, Replica] = {}
    over: list[Replica] = []
    for replica in current(unit, pool):
        if replica.ordinal not in wanted:
            over.append(replica)
        elif replica.ordinal in here:
            needs.surplus.append(replica)
        else:
            here[replica.ordinal] = replica
            if trouble := broken_under(replica):
                needs.sick.append((replica, f"{replica.role} {replica.ordinal + 1}: {trouble}"))
    for ordinal in wanted:
        if ordinal in here:
            _look_at_replica(here[ordinal], needs, now)
        else:
            needs.missing.append((pool, ordinal))
    enough = sum(state_of(replica) is ReplicaState.READY for replica in here.values()) >= pool.replicas
    for replica in over:
        _look_at_over(replica, needs, now, enough=enough)


def _look_at_over(replica: Replica, needs: Needs, now: datetime, *, enough: bool) -> None:
    """One that is too many goes by finishing what it has, and not before those that stay can take its place."""
    state = state_of(replica)
    if replica.desired == RankDesired.DRAIN:
        needs.leaving = True
        waited_s = (now - replica.desired_at).total_seconds()
        if state in (ReplicaState.GONE, ReplicaState.FAILED, ReplicaState.UNKNOWN) or waited_s >= SCALE_IN_DEADLINE_S:
            needs.surplus.append(replica)
        elif finished(Role(replica.role), leader_of(replica).gauges, waited_s=waited_s):
            needs.idle.append(replica)
    elif state is not ReplicaState.READY:
        needs.surplus.append(replica)  # it has nothing to finish
    elif enough:
        needs.drain.append(replica)
        needs.leaving = True


def _look_at_replica(replica: Replica, needs: Needs, now: datetime) -> None:
    state = state_of(replica)
    if replica.desired == RankDesired.DRAIN:
        needs.recall.append(replica)
        return
    name, said = f"{replica.role} {replica.ordinal + 1}", _said(replica)
    waited_s = (now - replica.desired_at).total_seconds()
    if state is ReplicaState.UNKNOWN:
        nodes = ", ".join(rank.node_id for rank in replica.ranks.all() if rank.node.state == NodeState.LOST)
        needs.replace.append((replica, f"{name}: {nodes} lost"))
    elif state is ReplicaState.GONE:
        needs.replace.append((replica, f"{name} ended by itself{said}"))
    elif state is ReplicaState.FAILED and replica.ready_at is not None:
        needs.replace.append((replica, f"{name} served before, and now gave up{said}"))
    elif state is ReplicaState.FAILED:  # it never served: another copy of it would not either
        needs.failed = f"{name} gave up before it was ever ready{said}"
    elif replica.desired == RankDesired.HOLD and gang_complete(facts_of(list(replica.ranks.all()))):
        needs.start.append(replica)
    elif replica.desired == RankDesired.HOLD and waited_s >= HOLD_DEADLINE_S and any(rank.state is None for rank in replica.ranks.all()):
        nodes = ", ".join(rank.node_id for rank in replica.ranks.all() if rank.state is None)
        needs.failed = f"{name} waits for {nodes} to take up its rank, for over {HOLD_DEADLINE_S:.0f} s"
    elif any(rank.state == RankState.FETCHING for rank in replica.ranks.all()):
        return  # the agents see to it that a fetch which stands still ends
    elif state is not ReplicaState.READY and replica.ready_at is None and waited_s >= START_DEADLINE_S:
        needs.failed = f"{name} was not ready within {START_DEADLINE_S:.0f} s{said}"


def _said(replica: Replica) -> str:
    found = next((rank for rank in replica.ranks.all() if rank.detail and rank.state != RankState.READY), None)
    return f" ({found.node_id}: {found.detail})" if found else ""
