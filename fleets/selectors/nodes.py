"""Nodes as they stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from denvweb.core.errors import NotFoundError
from fleets.domain.types import NodeState
from fleets.domain.views import NodeStanding
from fleets.models import GpuClaim, Node
from fleets.selectors.fleets import driver_of, node_troubles, unfit_gpus


def node_row(name: str) -> Node:
    """The row with its domain; NotFoundError `node-unknown`."""
    row = Node.objects.select_related("domain").filter(name=name).first()
    if row is None:
        raise NotFoundError(f"There is no node {name}; `denv nodes` lists them.", code="node-unknown")
    return row


def node_standing(*, node: str) -> NodeStanding:
    """Two queries."""
    return _standings([node_row(node)])[0]


def nodes_found(
    *, fleet: str = "", state: str = "", cordoned: bool | None = None, draining: bool | None = None, after: str = "", limit: int = 500
) -> tuple[NodeStanding, ...]:
    """The nodes that these words fit, by name; `after` is the last one of the page before. Two queries."""
    words = {"domain__fleet": fleet, "state": state, "name__gt": after}
    wanted: dict[str, object] = {name: value for name, value in words.items() if value}
    wanted |= {name: flag for name, flag in (("cordoned", cordoned), ("draining", draining)) if flag is not None}
    return _standings(Node.objects.select_related("domain").filter(**wanted).order_by("name")[:limit])


def _standings(nodes: Iterable[Node]) -> tuple[NodeStanding, ...]:
    rows = list(nodes)
    held: dict[str, set[int]] = defaultdict(set)
    for name, index in GpuClaim.objects.filter(node__in=rows).values_list("node_id", "gpu_index"):
        held[name].add(index)
    return tuple(_standing(row, held[row.name]) for row in rows)


def _standing(row: Node, held: set[int]) -> NodeStanding:
    unfit = unfit_gpus(row)
    return NodeStanding(
        node=row.name,
        fleet=row.domain.fleet_id,
        domain=row.domain_id,
        state=NodeState(row.state),
        cordoned=row.cordoned,
        draining=row.draining,
        reason=row.cordon_reason,
        gpus=row.gpus,
        used=sum(index < row.gpus for index in held),  # of those that it has now
        troubles=(*node_troubles(row), *(f"GPU {index} is {unfit[index].trouble}" for index in sorted(unfit))),
        driver=driver_of(row),
        gpu_memory_bytes=row.gpu_memory_bytes,
        free=sum(index not in held and index not in unfit for index in range(row.gpus)),
        last_report_at=row.last_report_at,
    )
