"""What is free, as a working copy that a plan may take from and give back to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fleets.domain.types import DomainView, FleetView, UnitPlacement


@dataclass(slots=True)
class NodeRoom:
    """One node; `free` are the indices of GPUs that may be given out, in ascending order."""

    name: str
    gpus: int
    usable: bool
    free: list[int]
    unfit: frozenset[int] = frozenset()

    @property
    def room(self) -> int:
        """GPUs that new ranks may take here."""
        return len(self.free) if self.usable else 0


@dataclass(slots=True)
class DomainRoom:
    """One scale-up domain; `free` is kept beside its nodes, so that a scan over thousands of domains is cheap."""

    name: str
    size: int
    free: int
    nodes: list[NodeRoom]


@dataclass(slots=True)
class FleetRoom:
    """One fleet. Every GPU is in at most one node's `free`, so a plan made here never gives one out twice."""

    name: str
    spans_nodes: bool
    domains: list[DomainRoom]
    _nodes: dict[str, tuple[DomainRoom, NodeRoom]] = field(default_factory=dict)

    def node(self, name: str) -> tuple[DomainRoom, NodeRoom] | None:
        """A node and its domain by the node's name; None when this fleet has no such node."""
        if not self._nodes:  # only plans that take something need the index: most look at domains alone
            self._nodes = {node.name: (domain, node) for domain in self.domains for node in domain.nodes}
        return self._nodes.get(name)

    def take(self, placement: UnitPlacement) -> None:
        """Hold the GPUs of a placement."""
        for rank in (rank for replica in placement.replicas for rank in replica.ranks):
            found = self.node(rank.node)
            if found:
                self._set(found, [index for index in found[1].free if index not in rank.gpus])

    def give_back(self, placement: UnitPlacement) -> None:
        """Free the GPUs of a placement that will have ended by then; nodes that are gone are passed over."""
        for rank in (rank for replica in placement.replicas for rank in replica.ranks):
            found = self.node(rank.node)
            if found:
                self._set(found, sorted(({*found[1].free, *rank.gpus} & set(range(found[1].gpus))) - found[1].unfit))

    @staticmethod
    def _set(found: tuple[DomainRoom, NodeRoom], free: list[int]) -> None:
        domain, node = found
        before = node.room
        node.free = free
        domain.free += node.room - before


def room_of(fleet: FleetView, freed: Iterable[UnitPlacement] = (), taken: Iterable[UnitPlacement] = ()) -> FleetRoom:
    """A working copy of a fleet, with `freed` given back and `taken` held already."""
    room = FleetRoom(name=fleet.name, spans_nodes=fleet.fabric_spans_nodes, domains=[_domain_room(domain) for domain in fleet.domains])
    for placement in freed:
        if placement.fleet == fleet.name:
            room.give_back(placement)
    for placement in taken:
        if placement.fleet == fleet.name:
            room.take(placement)
    return room


def _domain_room(domain: DomainView) -> DomainRoom:
    nodes = [NodeRoom(node.name, node.gpus, node.usable, list(node.free), frozenset(node.unfit)) for node in domain.nodes]
    return DomainRoom(domain.name, domain.size, sum(node.room for node in nodes), nodes)


def largest_domain(fleet: FleetView) -> int:
    """GPUs of the largest domain, free or not; 0 without one."""
    return max((domain.size for domain in fleet.domains), default=0)


def largest_node(fleet: FleetView) -> int:
    """GPUs of the largest node; 0 without one."""
    return max((node.gpus for domain in fleet.domains for node in domain.nodes), default=0)


def unusable_nodes(domains: Sequence[DomainView]) -> int:
    """Nodes that may take nothing new: silent, lost or cordoned."""
    return sum(not node.usable for domain in domains for node in domain.nodes)
