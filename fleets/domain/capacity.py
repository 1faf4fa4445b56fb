"""What is free, as a working copy that a plan may take from and give back to."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fleets.domain.types import DomainView, FleetView, NodeView, RankPlacement, UnitPlacement

_SCANS_MOST = 8  # of all domains, before it pays to keep them in order


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
    """One scale-up domain that is looked at; its nodes are copied when it is."""

    __slots__ = ("free", "name", "nodes", "size")

    def __init__(self, view: DomainView, *, emptied: bool) -> None:
        self.name, self.size = view.name, view.size
        self.nodes = [_node_room(node, emptied) for node in view.nodes]
        self.free = view.size if emptied else view.free

    def node(self, name: str) -> NodeRoom | None:
        """One of its nodes."""
        return next((node for node in self.nodes if node.name == name), None)

    def set_free(self, node: NodeRoom, free: list[int]) -> None:
        """Change what is free on one of its nodes."""
        before = node.room
        node.free = free
        self.free += node.room - before


def _node_room(node: NodeView, emptied: bool) -> NodeRoom:
    if emptied:
        return NodeRoom(node.name, node.gpus, True, list(range(node.gpus)))
    return NodeRoom(node.name, node.gpus, node.usable, list(node.free), frozenset(node.unfit))


class FleetRoom:
    """One fleet. Every GPU is in at most one node's `free`, so a plan made here never gives one out twice.

    `emptied`: as if every node were well and every GPU free. What is kept for each of thousands of domains is one count;
    a domain is copied when a plan looks into it.
    """

    def __init__(self, view: FleetView, *, emptied: bool = False) -> None:
        self.name, self.gpu_kind = view.name, view.gpu_kind
        self.spans_nodes = view.fabric_spans_nodes
        self.free_by_domain = [domain.size if emptied else domain.free for domain in view.domains]
        self._view, self._emptied = view, emptied
        self._copies: dict[int, DomainRoom] = {}
        self._index_of: dict[str, int] = {}
        self._index_of_node: dict[str, int] = {}
        self._ordered: list[tuple[int, str, int]] | None = None
        self._scans = 0

    @property
    def free(self) -> int:
        """GPUs that could be given out now."""
        return sum(self.free_by_domain)

    @property
    def out(self) -> int:
        """Nodes that may take nothing new: silent, lost or cordoned."""
        return 0 if self._emptied else sum(not node.usable for domain in self._view.domains for node in domain.nodes)

    @property
    def broken(self) -> int:
        """Broken GPUs of nodes that would take something new."""
        return sum(len(node.unfit) - len(node.foreign) for node in self._taking())

    @property
    def foreign(self) -> int:
        """GPUs of those nodes whose memory processes hold that are not denv's."""
        return sum(len(node.foreign) for node in self._taking())

    def _taking(self) -> Iterator[NodeView]:
        return (node for domain in self._view.domains for node in domain.nodes if node.usable and not self._emptied)

    @property
    def domains(self) -> list[DomainRoom]:
        """All of them, in the fleet's order; they are copied for it."""
        return [self._domain(index) for index in range(len(self.free_by_domain))]

    def domain(self, name: str) -> DomainRoom | None:
        """One of its domains."""
        index = self._find(name, "")
        return self._domain(index) if index is not None else None

    def holes(self, gpus: int) -> list[tuple[int, str, int]]:
        """Free GPUs, name and size of each domain with at least `gpus` free."""
        pairs = zip(self.free_by_domain, self._view.domains, strict=True)
        return [(free, domain.name, domain.size) for free, domain in pairs if free >= gpus]

    def by_fit(self, gpus: int) -> Iterator[DomainRoom]:
        """Domains with at least `gpus` free, the tightest first and then by name; nearly always the first is taken."""
        ordered = self._in_order()
        if ordered is not None:
            for at in range(bisect_left(ordered, (gpus, "", 0)), len(ordered)):
                yield self._domain(ordered[at][2])
            return
        domains = self._view.domains
        fitting = [(free, domains[index].name, index) for index, free in enumerate(self.free_by_domain) if free >= gpus]
        if fitting:
            first = min(fitting)
            yield self._domain(first[2])
            fitting.remove(first)
        yield from (self._domain(index) for _, _, index in sorted(fitting))

    def _in_order(self) -> list[tuple[int, str, int]] | None:
        """All domains by free GPUs and name, kept in order; None while so few asked that looking through is cheaper."""
        if self._ordered is None:
            self._scans += 1
            if self._scans > _SCANS_MOST:
                names = (domain.name for domain in self._view.domains)
                self._ordered = sorted(zip(self.free_by_domain, names, range(len(self.free_by_domain)), strict=True))
        return self._ordered

    def take(self, placement: UnitPlacement) -> None:
        """Hold the GPUs of a placement."""
        for index, node, rank in self._ranks(placement):
            self._set_free(index, node, [gpu for gpu in node.free if gpu not in rank.gpus])

    def give_back(self, placement: UnitPlacement) -> None:
        """Free the GPUs of a placement that will have ended by then; nodes that are gone are passed over."""
        for index, node, rank in self._ranks(placement):
            self._set_free(index, node, sorted(({*node.free, *rank.gpus} & set(range(node.gpus))) - node.unfit))

    def _set_free(self, index: int, node: NodeRoom, free: list[int]) -> None:
        domain = self._domain(index)
        before = domain.free
        domain.set_free(node, free)
        self.free_by_domain[index] = domain.free
        if self._ordered is not None:
            del self._ordered[bisect_left(self._ordered, (before, domain.name, index))]
            insort(self._ordered, (domain.free, domain.name, index))

    def _domain(self, index: int) -> DomainRoom:
        found = self._copies.get(index)
        if found is None:
            found = self._copies[index] = DomainRoom(self._view.domains[index], emptied=self._emptied)
        return found

    def _ranks(self, placement: UnitPlacement) -> Iterator[tuple[int, NodeRoom, RankPlacement]]:
        for rank in (rank for replica in placement.replicas for rank in replica.ranks):
            index = self._find(placement.domain, rank.node)
            node = self._domain(index).node(rank.node) if index is not None else None
            if index is not None and node is not None:
                yield index, node, rank

    def _find(self, domain: str, node: str) -> int | None:
        """The domain by its name, else by one of its nodes."""
        if domain:
            if not self._index_of:
                self._index_of = {view.name: index for index, view in enumerate(self._view.domains)}
            return self._index_of.get(domain)
        if not self._index_of_node:
            self._index_of_node = {view.name: index for index, each in enumerate(self._view.domains) for view in each.nodes}
        return self._index_of_node.get(node)


def room_of(
    fleet: FleetView, freed: Iterable[UnitPlacement] = (), taken: Iterable[UnitPlacement] = (), *, emptied: bool = False
) -> FleetRoom:
    """A working copy of a fleet, with `freed` given back and `taken` held already."""
    room = FleetRoom(fleet, emptied=emptied)
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
