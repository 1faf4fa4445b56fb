"""Maps of fleets for who may not see every model: what is in use stays in use, and does not say by whom."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from fleets.domain.views import FleetMap, GpuCell, NodeMap

_EVERYTHING = "*"  # no model is called that


def veiled(fleet: FleetMap, seen: Container[str]) -> FleetMap:
    """The map with units of models outside of `seen` nameless; their GPUs keep their state, pool role and troubles."""
    if _EVERYTHING in seen:
        return fleet
    domains = tuple(replace(domain, nodes=tuple(_node(node, seen) for node in domain.nodes)) for domain in fleet.domains)
    return replace(fleet, domains=domains)


def _node(node: NodeMap, seen: Container[str]) -> NodeMap:
    if all(_shown(cell, seen) for cell in node.cells):
        return node
    return replace(node, cells=tuple(cell if _shown(cell, seen) else _nameless(cell) for cell in node.cells))


def _shown(cell: GpuCell, seen: Container[str]) -> bool:
    return not cell.stage or cell.stage.partition("/")[0] in seen


def _nameless(cell: GpuCell) -> GpuCell:
    return GpuCell(cell.index, cell.state, role=cell.role, trouble=cell.trouble)
