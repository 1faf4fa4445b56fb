"""What silence means: a node's lease on the control plane's belief, and when so much silence says that it is us."""

from __future__ import annotations

import math

from denvweb.core.units import format_duration
from fleets.domain.types import NodeState

SUSPECT_AFTER_S = 10.0
LOST_AFTER_S = 30.0
GUARD_RATIO = 1 / 3  # of a fleet's nodes: more than that going silent together is a cut of ours, not their death
GUARD_FEWEST_NODES = 4  # below it a share means nothing: one node of two is half of the fleet
WATCH_GAP_S = 10.0  # passes further apart than this were not watching in between
SECOND_BOOT_WITHIN_S = 10.0  # two agents under one identity: the other one reported this lately
CLOCK_OFF_S = 30.0  # a node's clock that is further off is said: its logs and certificates go by it, denv does not
LOSSES_SOON_S = 900.0  # a loss so soon after the one before counts with it
LOSSES_MAX = 2  # more of them in a row, and the node rests
REST_FIRST_S, REST_CAP_S = 300.0, 3600.0


def losses_now(losses: int, ago_s: float | None) -> int:
    """Losses in a row with the present one; `ago_s` is when the one before was, None if never."""
    return losses + 1 if ago_s is not None and ago_s < LOSSES_SOON_S else 1


def rest_s(losses: int) -> float:
    """How long nothing new is placed on a node that is back from so many losses in a row: what comes and goes moves units for nothing."""
    return 0.0 if losses <= LOSSES_MAX else min(REST_CAP_S, REST_FIRST_S * 2.0 ** min(losses - LOSSES_MAX - 1, 10))


def clock_sentence(skew_s: float) -> str:
    """What is wrong with a node's clock; empty when nothing is. `skew_s` is the node's clock minus the server's."""
    if abs(skew_s) < CLOCK_OFF_S:
        return ""
    way = "ahead" if skew_s > 0 else "behind"
    return f"its clock is {format_duration(abs(skew_s))} {way}; set it by NTP (denv goes by the server's clock)"


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
