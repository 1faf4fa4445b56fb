"""Where a serving unit goes: best fit over domains, then over nodes, so that large holes stay large.

Pure and deterministic: one snapshot gives one answer. A replica takes whole GPUs, and its ranks are laid out node by node.
One tensor-parallel group never crosses a node, unless the fleet's fabric spans the nodes of a domain (an NVL72's does, an
HGX pair's does not); it never crosses a domain.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fleets.domain.capacity import FleetRoom, NodeRoom, room_of
from fleets.domain.refusal import Refusal, refuse
from fleets.domain.types import FleetView, PlacementRule, RankPlacement, ReplicaPlacement, Role, UnitPlacement, UnitSpec

__all__ = ["Refusal", "place_in_domain", "place_in_fleet", "place_unit", "place_units"]


@dataclass(frozen=True, slots=True)
class _Want:
    """One replica to lay out, and the size of the groups that must not be torn apart."""

    role: Role
    ordinal: int
    gpus: int
    group: int


def place_unit(
    spec: UnitSpec,
    fleets: Sequence[FleetView],
    *,
    freed: Iterable[UnitPlacement] = (),
    taken: Iterable[UnitPlacement] = (),
    elsewhere: Sequence[FleetView] = (),
) -> UnitPlacement | Refusal:
    """Place one serving unit in the first of `fleets` (in order of preference) that takes it.

    `freed` are placements that will have ended by then, `taken` those that will have been made. A refusal is the first
    fleet's, with those of the others in `also`; `elsewhere` are further fleets that it may name as fitting.
    """
    placed = place_units(spec, 1, fleets, freed=freed, taken=taken, elsewhere=elsewhere)
    return placed if isinstance(placed, Refusal) else placed[0]


def place_units(
    spec: UnitSpec,
    count: int,
    fleets: Sequence[FleetView],
    *,
    freed: Iterable[UnitPlacement] = (),
    taken: Iterable[UnitPlacement] = (),
    elsewhere: Sequence[FleetView] = (),
    emptied: bool = False,
) -> tuple[UnitPlacement, ...] | Refusal:
    """Place `count` equal serving units beside each other; all of them, or a refusal whose `placed` are those that fit.

    `emptied`: as if nothing ran in `fleets` and all their nodes were well, to tell what never fits from what does not fit now.
    """
    freed, taken = tuple(freed), tuple(taken)
    rooms = [room_of(fleet, freed, taken, emptied=emptied) for fleet in fleets]
    placed: list[UnitPlacement] = []
    while len(placed) < count:
        placement = next((found for room in rooms if (found := place_in_fleet(spec, room))), None)
        if placement is None:
            return _refusal(spec, count, fleets, rooms, tuple(placed), elsewhere)
        placed.append(placement)
        if len(placed) < count:
            next(room for room in rooms if room.name == placement.fleet).take(placement)
    return tuple(placed)


def place_in_domain(spec: UnitSpec, room: FleetRoom, name: str) -> UnitPlacement | None:
    """One unit in one domain of a fleet, or None; what it takes is not held yet."""
    domain = room.domain(name)
    replicas = _lay_out(_wants(spec, room.spans_nodes), domain.nodes) if domain is not None and domain.free >= spec.gpus else None
    return UnitPlacement(room.name, name, replicas) if replicas is not None else None


def place_in_fleet(spec: UnitSpec, room: FleetRoom) -> UnitPlacement | None:
    """One unit in the tightest domain of a fleet that takes it, else apart where the placement may be; what it takes is not held yet."""
    for domain in room.by_fit(spec.gpus):
        replicas = _lay_out(_wants(spec, room.spans_nodes), domain.nodes)
        if replicas is not None:
            return UnitPlacement(room.name, domain.name, replicas)
    return _place_apart(spec, room) if spec.placement is PlacementRule.ANY else None


def _wants(spec: UnitSpec, spans_nodes: bool) -> list[_Want]:
    return [
        _Want(pool.role, ordinal, pool.gpus, 1 if spans_nodes else min(pool.gpus, max(1, pool.engine.tensor_parallel)))
        for pool in spec.pools
        for ordinal in range(pool.replicas)
    ]


def _lay_out(wants: Sequence[_Want], nodes: Sequence[NodeRoom]) -> tuple[ReplicaPlacement, ...] | None:
    """Ranks of each replica on these nodes; None when they do not fit."""
    assigned = _assign([node.room for node in nodes], wants)
    if assigned is None:
        return None
    given = [0] * len(nodes)
    replicas = []
    for want, parts in zip(wants, assigned, strict=True):
        ranks = []
        for index, count in sorted(parts.items()):
            gpus = nodes[index].free[given[index] : given[index] + count]
            given[index] += count
            ranks.append(RankPlacement(nodes[index].name, tuple(gpus)))
        replicas.append(ReplicaPlacement(want.role, want.ordinal, tuple(ranks)))
    return tuple(replicas)


def _assign(free: Sequence[int], wants: Sequence[_Want]) -> list[dict[int, int]] | None:
    """GPUs of each bin for each want, or None.

    The widest groups go first. When each width divides the next wider (1, 2, 4, 8, ...), every order of bins then finds
    a fit if there is one (Coffman, Garey & Johnson, "Bin packing with divisible item sizes", 1987), so the choice of bins
    is free to keep large holes large and ranks few: the smallest bin that takes all that is left, else the emptiest.
    """
    bins = sorted((count, index) for index, count in enumerate(free) if count)
    parts: list[dict[int, int]] = [{} for _ in wants]
    for number in sorted(range(len(wants)), key=lambda number: -wants[number].group):
        left, group = wants[number].gpus, wants[number].group
        while left:
            at = bisect_left(bins, (left, -1))
            if at == len(bins):
                at = bisect_left(bins, (bins[-1][0], -1)) if bins else at
                if at == len(bins) or bins[at][0] < min(group, left):
                    return None
            count, index = bins.pop(at)
            taken = left if count >= left else count // group * group
            parts[number][index] = parts[number].get(index, 0) + taken
            left -= taken
            if count > taken:
                insort(bins, (count - taken, index))
    return parts


def _place_apart(spec: UnitSpec, room: FleetRoom) -> UnitPlacement | None:
    """Placement `any` over several domains: a replica stays in one where it can."""
    if not room.spans_nodes:
        nodes = [node for domain in room.domains for node in domain.nodes]
        replicas = _lay_out(_wants(spec, spans_nodes=False), nodes)
        return UnitPlacement(room.name, "", replicas) if replicas is not None else None
    wants = _wants(spec, spans_nodes=False)  # across domains there is no fabric, so here the groups count
    assigned = _assign(room.free_by_domain, wants)
    if assigned is None:
        return None
    ranks: list[list[RankPlacement]] = [[] for _ in wants]
    for index, domain in enumerate(room.domains):
        numbers = [number for number, parts in enumerate(assigned) if index in parts]
        here = _lay_out([replace(wants[number], gpus=assigned[number][index], group=1) for number in numbers], domain.nodes)
        for number, replica in zip(numbers, here or (), strict=True):
            ranks[number].extend(replica.ranks)
    replicas = tuple(ReplicaPlacement(want.role, want.ordinal, tuple(ranks[number])) for number, want in enumerate(wants))
    return UnitPlacement(room.name, "", replicas)


def _fits(spec: UnitSpec, room: FleetRoom) -> bool:
    return place_in_fleet(spec, room) is not None


def _refusal(
    spec: UnitSpec,
    count: int,
    fleets: Sequence[FleetView],
    rooms: Sequence[FleetRoom],
    placed: tuple[UnitPlacement, ...],
    elsewhere: Sequence[FleetView],
) -> Refusal:
    others = [room_of(fleet) for fleet in elsewhere if fleet.name not in {room.name for room in rooms}]
    each = [
        refuse(spec, fleet, room, [other for other in others if _fits(spec, other)], _fits)
        for fleet, room in zip(fleets, rooms, strict=True)
    ]
    if not each:
        return Refusal("fleet-unknown", f"stage {spec.stage} names no fleet that is known")
    first = replace(each[0], also=tuple(each[1:]), placed=placed)
    if placed:
        sentence = f"{_named(fleets)} room for {len(placed)} of {count} serving units of {spec.gpus} GPUs ({spec.placement.value})"
        return replace(first, sentence=sentence)
    return first


def _named(fleets: Sequence[FleetView]) -> str:
    names = " and ".join(fleet.name for fleet in fleets)
    return f"fleet {names} has" if len(fleets) == 1 else f"fleets {names} have"
