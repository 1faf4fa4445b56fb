"""Many units of several stages at once, as tightly as they go: for plans over whole fleets and for advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from fleets.domain.capacity import FleetRoom, room_of
from fleets.domain.placement import place_in_domain, place_in_fleet
from fleets.domain.types import FleetView, PlacementRule, UnitPlacement, UnitSpec

Placed = list[UnitPlacement | None]  # one entry a spec; None: no room


def place_all(
    specs: Sequence[UnitSpec],
    fleets: Sequence[FleetView],
    *,
    freed: Iterable[UnitPlacement] = (),
    taken: Iterable[UnitPlacement] = (),
) -> tuple[UnitPlacement | None, ...]:
    """Place each of `specs` in one of its fleets, so that as many GPUs as possible are put to use.

    Largest first into the tightest hole is tried first, and nearly always places all. When it leaves one out, domains are also
    filled one by one as full as they go (minimum bin slack; Gupta & Ho, "A new heuristic algorithm for the one-dimensional
    bin-packing problem", 1999), from the tightest and from the widest, and the best of the three is taken.
    """
    freed, taken = tuple(freed), tuple(taken)
    best: Placed = []
    for pack in (_largest_first, _tightest_first, _widest_first):
        rooms = [room_of(fleet, freed, taken) for fleet in fleets]
        placed = pack(specs, rooms)
        if not best or _used(specs, placed) > _used(specs, best):
            best = placed
        if None not in best:
            break
    return tuple(best)


def _used(specs: Sequence[UnitSpec], placed: Placed) -> int:
    return sum(spec.gpus for spec, where in zip(specs, placed, strict=True) if where is not None)


def _allowed(spec: UnitSpec, room: FleetRoom) -> bool:
    return not spec.fleets or room.name in spec.fleets


def _largest_first(specs: Sequence[UnitSpec], rooms: Sequence[FleetRoom]) -> Placed:
    placed: Placed = [None] * len(specs)
    return _rest(specs, rooms, placed)


def _rest(specs: Sequence[UnitSpec], rooms: Sequence[FleetRoom], placed: Placed) -> Placed:
    """Those that have no place yet, the largest first, each into the first of its fleets that takes it."""
    by_name = {room.name: room for room in rooms}
    for number in sorted(range(len(specs)), key=lambda number: -specs[number].gpus):
        if placed[number] is not None:
            continue
        spec = specs[number]
        for room in [by_name[name] for name in spec.fleets if name in by_name] or rooms:
            found = place_in_fleet(spec, room)
            if found is not None:
                room.take(found)
                placed[number] = found
                break
    return placed


def _tightest_first(specs: Sequence[UnitSpec], rooms: Sequence[FleetRoom]) -> Placed:
    return _filled(specs, rooms, lambda hole: hole)


def _widest_first(specs: Sequence[UnitSpec], rooms: Sequence[FleetRoom]) -> Placed:
    return _filled(specs, rooms, lambda hole: (-hole[0], hole[1]))


def _filled(specs: Sequence[UnitSpec], rooms: Sequence[FleetRoom], order: Callable[[tuple[int, str, int]], object]) -> Placed:
    """Each domain in turn takes the units that fill it best; what is left over goes wherever it fits."""
    placed: Placed = [None] * len(specs)
    for room in rooms:
        waiting: dict[int, list[int]] = {}  # by GPUs
        for number, spec in enumerate(specs):
            if placed[number] is None and spec.placement is PlacementRule.SAME_DOMAIN and _allowed(spec, room):
                waiting.setdefault(spec.gpus, []).append(number)
        known: dict[int, Counter[int]] = {}  # the best filling by free GPUs: it stays the best for as long as it can be had
        for free, name, _ in sorted(room.holes(1), key=order):  # type: ignore[arg-type]  # any order over holes
            sizes = known.get(free)
            if sizes is None or any(len(waiting.get(size, ())) < count for size, count in sizes.items()):
                sizes = known[free] = _fullest(free, {size: len(numbers) for size, numbers in waiting.items() if numbers})
            for size in sorted(sizes.elements(), reverse=True):
                number = waiting[size][-1]
                found = place_in_domain(specs[number], room, name)
                if found is not None:
                    room.take(found)
                    placed[number] = found
                    waiting[size].pop()
    return _rest(specs, rooms, placed)


def _fullest(free: int, counts: dict[int, int]) -> Counter[int]:
    """Which of the sizes at hand, each up to its count, fill `free` GPUs best; of equal fillings one with larger units."""
    reached: dict[int, Counter[int]] = {0: Counter()}
    for size in sorted(counts, reverse=True):
        for total, sizes in list(reached.items()):
            for copies in range(1, min(counts[size], (free - total) // size) + 1):
                reached.setdefault(total + copies * size, sizes + Counter({size: copies}))
        if free in reached:
            break
    return reached[max(reached)]
