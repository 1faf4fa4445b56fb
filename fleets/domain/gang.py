"""A replica as a whole, from what its ranks are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleets.domain.types import NodeState, RankDesired, RankState
from fleets.domain.views import ReplicaState

START_DEADLINE_S = 600.0  # from RUN to ready; weights of hundreds of gigabytes load in minutes
HOLD_DEADLINE_S = 60.0  # from HOLD until all nodes of the gang have taken it up; they look every few seconds
DRAIN_DEADLINE_S = 120.0  # from DRAIN to STOP


@dataclass(frozen=True, slots=True)
class RankFact:
    """One rank and the node under it."""

    state: RankState | None  # None: not reported yet
    node: NodeState


def replica_state(desired: RankDesired, ranks: Sequence[RankFact]) -> ReplicaState:
    """The worst of its ranks decides: a gang is as ready as the last of its members."""
    states = [rank.state for rank in ranks]
    if all(state is RankState.STOPPED for state in states):
        return ReplicaState.GONE
    if RankState.FAILED in states:
        return ReplicaState.FAILED
    if any(rank.node is NodeState.LOST and rank.state is not RankState.STOPPED for rank in ranks):
        return ReplicaState.UNKNOWN
    if desired in (RankDesired.DRAIN, RankDesired.STOP) or RankState.DRAINING in states:
        return ReplicaState.DRAINING
    if all(state is RankState.READY for state in states):
        return ReplicaState.READY
    return ReplicaState.PENDING if desired is RankDesired.HOLD or None in states else ReplicaState.STARTING


def gang_complete(ranks: Sequence[RankFact]) -> bool:
    """Whether every node of the gang has taken its rank up and has its weights, so that all may start together."""
    return all(rank.state not in (None, RankState.FETCHING) for rank in ranks)
