"""Leases, the guard against mass loss, and replicas as a whole."""

from __future__ import annotations

import pytest

from fleets.domain.gang import RankFact, gang_complete, replica_state
from fleets.domain.lease import guard_trips, node_state
from fleets.domain.types import NodeState, RankDesired, RankState
from fleets.domain.views import ReplicaState


@pytest.mark.parametrize(
    ("silent_s", "state"),
    [
        (None, NodeState.NEW),
        (0.0, NodeState.READY),
        (9.9, NodeState.READY),
        (10.0, NodeState.SUSPECT),
        (29.9, NodeState.SUSPECT),
        (30.0, NodeState.LOST),
    ],
)
def test_silence_is_suspect_after_10_s_and_lost_after_30(silent_s: float | None, state: NodeState) -> None:
    assert node_state(silent_s) is state


def test_silence_while_nobody_listened_makes_no_node_lost() -> None:
    assert node_state(500.0, watched_s=29.0) is NodeState.SUSPECT
    assert node_state(500.0, watched_s=30.0) is NodeState.LOST


@pytest.mark.parametrize(
    ("silent", "nodes", "trips"),
    [(6, 18, False), (7, 18, True), (1, 4, False), (2, 4, True), (1, 2, False), (2, 2, True), (1, 1, True)],
)
def test_the_guard_trips_over_a_third_of_a_fleet_that_has_thirds(silent: int, nodes: int, trips: bool) -> None:
    assert guard_trips(silent=silent, nodes=nodes) is trips


def _state(desired: RankDesired, *states: RankState | None, node: NodeState = NodeState.READY) -> ReplicaState:
    return replica_state(desired, [RankFact(state, node) for state in states])


def test_a_replica_is_what_the_last_of_its_ranks_is() -> None:
    run, ready = RankDesired.RUN, RankState.READY
    assert _state(run, ready, ready) is ReplicaState.READY
    assert _state(run, ready, ready, node=NodeState.SUSPECT) is ReplicaState.READY
    assert _state(run, ready, ready, node=NodeState.LOST) is ReplicaState.UNKNOWN
    assert _state(run, ready, RankState.STARTING) is ReplicaState.STARTING
    assert _state(run, ready, RankState.BACKOFF) is ReplicaState.STARTING
    assert _state(run, ready, None) is ReplicaState.PENDING
    assert _state(run, ready, RankState.FAILED) is ReplicaState.FAILED
    assert _state(RankDesired.HOLD, RankState.CLAIMED, RankState.CLAIMED) is ReplicaState.PENDING
    assert _state(RankDesired.DRAIN, ready, ready) is ReplicaState.DRAINING
    assert _state(RankDesired.STOP, RankState.STOPPED, ready) is ReplicaState.DRAINING
    assert _state(RankDesired.STOP, RankState.STOPPED, RankState.STOPPED, node=NodeState.LOST) is ReplicaState.GONE


def test_a_gang_is_complete_when_all_have_taken_it_up() -> None:
    assert not gang_complete([RankFact(RankState.CLAIMED, NodeState.READY), RankFact(None, NodeState.READY)])
    assert gang_complete([RankFact(RankState.CLAIMED, NodeState.READY), RankFact(RankState.READY, NodeState.READY)])
