"""One node as it stands."""

from __future__ import annotations

from denvweb.core.errors import NotFoundError
from fleets.domain.types import NodeState
from fleets.domain.views import NodeStanding
from fleets.models import Node
from fleets.selectors.fleets import driver_of, node_troubles, unfit_gpus


def node_row(name: str) -> Node:
    """The row with its domain; NotFoundError `node-unknown`."""
    row = Node.objects.select_related("domain").filter(name=name).first()
    if row is None:
        raise NotFoundError(f"There is no node {name}; `denv nodes` lists them.", code="node-unknown")
    return row


def node_standing(*, node: str) -> NodeStanding:
    """Two queries."""
    row = node_row(node)
    return NodeStanding(
        node=row.name,
        fleet=row.domain.fleet_id,
        domain=row.domain_id,
        state=NodeState(row.state),
        cordoned=row.cordoned,
        draining=row.draining,
        reason=row.cordon_reason,
        gpus=row.gpus,
        used=row.claims.filter(gpu_index__lt=row.gpus).count(),  # of those that it has now
        troubles=(*node_troubles(row), *(f"GPU {index} is {unfit.trouble}" for index, unfit in sorted(unfit_gpus(row).items()))),
        driver=driver_of(row),
        gpu_memory_bytes=row.gpu_memory_bytes,
    )
