"""What silence means: a node's lease on the control plane's belief, and when so much silence says that it is us."""

from __future__ import annotations

import math

from fleets.domain.types import NodeState

SUSPECT_AFTER_S = 10.0
LOST_AFTER_S = 30.0
GUARD_RATIO = 1 / 3  # of a fleet's nodes: more than that going silent together is a cut of ours, not their death
GUARD_FEWEST_NODES = 4  # below it a share means nothing: one node of two is half of the fleet
WATCH_GAP_S = 10.0  # passes further apart than this were not watching in between
SECOND_BOOT_WITHIN_S = 10.0  # two agents under one identity: the other one reported this lately


def node_state(silent_s: float | None, watched_s: float = math.inf) -> NodeState:
    """What to believe of a node by the seconds since its last report, by the server's clock; None: it never reported.

    `watched_s` is for how long somebody has been there to hear it: a node is not lost because the control plane was away.
    """
    if silent_s is None:
        return NodeState.NEW
    if min(silent_s, watched_s) >= LOST_AFTER_S:
        return NodeState.LOST
    return NodeState.SUSPECT if silent_s >= SUSPECT_AFTER_S else NodeState.READY


def guard_trips(*, silent: int, nodes: int) -> bool:
    """Whether so many of a fleet's nodes are silent (not counting those found lost before) that none may be acted on.

    When all are, there is nowhere in the fleet to heal to anyway.
    """
    return silent >= nodes or (nodes >= GUARD_FEWEST_NODES and silent > nodes * GUARD_RATIO)


def guard_sentence(*, fleet: str, silent: int, nodes: int) -> str:
    """Says what is not being done, and why."""
    return (
        f"fleet {fleet}: {silent} of {nodes} nodes went silent at once; that looks like a cut between them and denv, "
        "so nothing is replaced until they report again or fewer are silent"
    )
