"""What is free, as a working copy that a plan may take from and give back to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleets.domain.types import DomainView, FleetView, NodeState, RankPlacement, UnitPlacement


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


class DomainRoom:
    """One scale-up domain; `free` is kept beside its nodes, which are copied only when they are looked at.

    A scan over thousands of domains so costs one count each.
    """

    __slots__ = ("_nodes", "_view", "free", "name")

    def __init__(self, view: DomainView) -> None:
        self.name = view.name
        self.free = sum([len(node.free) for node in view.nodes if node.state is NodeState.READY and not node.cordoned])
        self._view = view
        self._nodes: list[NodeRoom] | None = None

    @property
    def size(self) -> int:
        """GPUs that the domain has, free or not."""
        return self._view.size

    @property
    def nodes(self) -> list[NodeRoom]:
        """The working copies of its nodes."""
        if self._nodes is None:
            self._nodes = [NodeRoom(node.name, node.gpus, node.usable, list(node.free), frozenset(node.unfit)) for node in self._view.nodes]
        return self._nodes

    def node(self, name: str) -> NodeRoom:
        """One of its nodes."""
        return next(node for node in self.nodes if node.name == name)

    def set_free(self, node: NodeRoom, free: list[int]) -> None:
        """Change what is free on one of its nodes."""
        before = node.room
        node.free = free
        self.free += node.room - before


class FleetRoom:
    """One fleet. Every GPU is in at most one node's `free`, so a plan made here never gives one out twice."""

    def __init__(self, view: FleetView) -> None:
        self.name = view.name
        self.spans_nodes = view.fabric_spans_nodes
        self.domains = [DomainRoom(domain) for domain in view.domains]
        self._view = view
        self._domain_of: dict[str, DomainRoom] = {}

    def _find(self, rank: RankPlacement) -> DomainRoom | None:
        if not self._domain_of:  # only plans that take something need it: most look at domains alone
            pairs = zip(self._view.domains, self.domains, strict=True)
            self._domain_of = {node.name: room for domain, room in pairs for node in domain.nodes}
        return self._domain_of.get(rank.node)

    def take(self, placement: UnitPlacement) -> None:
        """Hold the GPUs of a placement."""
        for rank in (rank for replica in placement.replicas for rank in replica.ranks):
            if domain := self._find(rank):
                node = domain.node(rank.node)
                domain.set_free(node, [index for index in node.free if index not in rank.gpus])

    def give_back(self, placement: UnitPlacement) -> None:
        """Free the GPUs of a placement that will have ended by then; nodes that are gone are passed over."""
        for rank in (rank for replica in placement.replicas for rank in replica.ranks):
            if domain := self._find(rank):
                node = domain.node(rank.node)
                domain.set_free(node, sorted(({*node.free, *rank.gpus} & set(range(node.gpus))) - node.unfit))


def room_of(fleet: FleetView, freed: Iterable[UnitPlacement] = (), taken: Iterable[UnitPlacement] = ()) -> FleetRoom:
    """A working copy of a fleet, with `freed` given back and `taken` held already."""
    room = FleetRoom(fleet)
    for placement in freed:
        if placement.fleet == fleet.name:
            room.give_back(placement)
    for placement in taken:
        if placement.fleet == fleet.name:
            room.take(placement)
    return room


def largest_domain(fleet: FleetView) -> int:
    """GPUs of the largest domain, free or not; 0 without one."""
    return max((domain.size for domain in fleet.domains), default=0)


def largest_node(fleet: FleetView) -> int:
    """GPUs of the largest node; 0 without one."""
    return max((node.gpus for domain in fleet.domains for node in domain.nodes), default=0)


def unusable_nodes(domains: Sequence[DomainView]) -> int:
    """Nodes that may take nothing new: silent, lost or cordoned."""
    return sum(not node.usable for domain in domains for node in domain.nodes)
