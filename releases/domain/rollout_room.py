"""Fleets as they would be: with the GPUs of a placement taken, or given back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fleets.domain.placement import place_unit
from fleets.domain.refusal import Refusal
from fleets.domain.types import DomainView, FleetView, NodeView, RankPlacement, ReplicaPlacement, UnitPlacement, UnitSpec
from fleets.domain.views import UnitView

Fleets = tuple[FleetView, ...]


def placement_of(unit: UnitView) -> UnitPlacement:
    """Where a running unit stands."""
    replicas = tuple(
        ReplicaPlacement(replica.role, replica.ordinal, tuple(RankPlacement(rank.node, rank.gpus) for rank in replica.ranks))
        for pool in unit.pools
        for replica in pool.replicas
    )
    return UnitPlacement(unit.fleet, unit.domain, replicas)


def take(fleets: Sequence[FleetView], placement: UnitPlacement) -> Fleets:
    """The fleets with a placement's GPUs in use."""
    return _map_nodes(fleets, placement, lambda node, gpus: tuple(gpu for gpu in node.free if gpu not in gpus))


def give(fleets: Sequence[FleetView], placement: UnitPlacement) -> Fleets:
    """The fleets with a placement's GPUs free again, but for those that are broken or held by others by now."""
    return _map_nodes(fleets, placement, lambda node, gpus: tuple(sorted({*node.free, *gpus} - {*node.unfit})))


def is_free(fleets: Sequence[FleetView], placement: UnitPlacement) -> bool:
    """Whether every GPU of a placement could be given out now."""
    wanted = _by_node(placement)
    nodes = {node.name: node for fleet in fleets for domain in fleet.domains for node in domain.nodes if node.name in wanted}
    return all(name in nodes and nodes[name].usable and gpus <= set(nodes[name].free) for name, gpus in wanted.items())


def place_near(spec: UnitSpec, fleets: Sequence[FleetView], planned: UnitPlacement | None) -> UnitPlacement | Refusal:
    """The planned placement while it is free, else a place in its domain, else anywhere; or the refusal."""
    if planned is not None and is_free(fleets, planned):
        return planned
    if planned is not None and planned.domain:
        near = place_unit(spec, _only_domain(fleets, planned.domain))
        if not isinstance(near, Refusal):
            return near
    return place_unit(spec, fleets)


def place_in_its_place(spec: UnitSpec, fleets: Sequence[FleetView], unit: UnitView) -> UnitPlacement | Refusal:
    """Room for `spec` where a unit stands, with that unit's own GPUs given back."""
    where = placement_of(unit)
    freed = give(fleets, where)
    return place_unit(spec, _only_domain(freed, where.domain) if where.domain else freed)


def _only_domain(fleets: Sequence[FleetView], domain: str) -> Fleets:
    narrowed = (replace(fleet, domains=tuple(one for one in fleet.domains if one.name == domain)) for fleet in fleets)
    return tuple(fleet for fleet in narrowed if fleet.domains)


def _by_node(placement: UnitPlacement) -> dict[str, set[int]]:
    gpus: dict[str, set[int]] = {}
    for replica in placement.replicas:
        for rank in replica.ranks:
            gpus.setdefault(rank.node, set()).update(rank.gpus)
    return gpus


def _map_nodes(fleets: Sequence[FleetView], placement: UnitPlacement, free: Callable[[NodeView, set[int]], tuple[int, ...]]) -> Fleets:
    """Only the fleet and the domains of the placement are made anew: a plan does this for hundreds of units over thousands of domains."""
    wanted = _by_node(placement)

    def changed(domain: DomainView) -> DomainView:
        if placement.domain not in ("", domain.name) or not any(node.name in wanted for node in domain.nodes):
            return domain
        nodes = tuple(replace(node, free=free(node, wanted[node.name])) if node.name in wanted else node for node in domain.nodes)
        return replace(domain, nodes=nodes)

    return tuple(replace(fleet, domains=tuple(map(changed, fleet.domains))) if fleet.name == placement.fleet else fleet for fleet in fleets)
