"""What agents are refused is noted: in the journal, and for a while on the node."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from fleets.models import Node
from metrics.services import event_append

log = logging.getLogger(__name__)

NOTED_AGAIN_S = 3600.0  # an agent that is refused asks again every few seconds
_KEPT_FRESH_S = 30.0


def report_refused(*, node: Node, code: str, detail: str, now: datetime) -> None:
    """Note that a report under this node's credential was refused: on the node each time, in the journal once an hour."""
    since_s = (now - node.refused_at).total_seconds() if node.refused_at else float("inf")
    if node.refused == code and since_s < _KEPT_FRESH_S:
        return
    told = node.refused == code and node.refused_told_at is not None and now - node.refused_told_at < timedelta(seconds=NOTED_AGAIN_S)
    values = {"refused": code, "refused_at": now, **({} if told else {"refused_told_at": now})}
    Node.objects.filter(name=node.name).update(**values)
    if not told:
        fleet = node.domain.fleet_id
        event_append(kind="node.refused", sentence=f"a report of node {node.name} was refused: {detail}", level="warn", fleet=fleet)


def join_refused(*, fleet: str, detail: str) -> None:
    """Note that a join was refused. Without a good token (no `fleet`) it is in the log only: anybody can ask."""
    if fleet:
        event_append(kind="node.refused", sentence=f"a join to fleet {fleet} was refused: {detail}", level="warn", fleet=fleet)
    else:
        log.warning("a join was refused: %s", detail)
