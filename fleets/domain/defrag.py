"""Which moves would open a whole domain: advice for people, from the same placement that would make the moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fleets.domain.packing import place_all
from fleets.domain.standing import StandingUnit
from fleets.domain.types import FleetView, UnitPlacement


@dataclass(frozen=True, slots=True)
class DefragMove:
    """One unit that would come up in another domain."""

    unit: str
    stage: str
    slot: int
    gpus: int
    to: str


@dataclass(frozen=True, slots=True)
class Opening:
    """One domain that all its units could leave. Each opening counts on those before it."""

    domain: str
    gpus: int  # that would be free there
    moved_gpus: int  # what it costs: engines with so many GPUs start anew
    moves: tuple[DefragMove, ...]


@dataclass(frozen=True, slots=True)
class DefragAdvice:
    """One fleet. Empty domains are those with nothing of denv in them."""

    fleet: str
    domains: int
    empty: int  # now
    openings: tuple[Opening, ...]
    sentence: str


def advise(fleet: FleetView, units: Sequence[StandingUnit]) -> DefragAdvice:
    """Domains of `fleet` that could be emptied into holes of others that are in use anyway, the cheapest first.

    `units` are all that stand in the fleet. A unit over several domains is left alone, and so are the domains it stands in.
    """
    inside = _by_domain(fleet, units)
    moved: dict[str, UnitPlacement] = {}  # by unit, where it would be after the openings so far
    kept: set[str] = {name for name, held in inside.items() if any(not unit.placement.domain for unit in held)}
    opened: set[str] = set()
    openings = []
    for name in sorted((name for name in inside if name not in kept), key=lambda name: (_gpus(inside[name]), name)):
        if name in kept:  # a unit of an earlier opening would have come here
            continue
        targets = [domain for domain in fleet.domains if domain.name in inside and domain.name not in opened and domain.name != name]
        places = place_all(
            [replace(unit.spec, fleets=()) for unit in inside[name]], [replace(fleet, domains=tuple(targets))], taken=tuple(moved.values())
        )
        found = [place for place in places if place is not None]
        if len(found) < len(places):
            continue
        moved.update({unit.unit: place for unit, place in zip(inside[name], found, strict=True)})
        kept |= {place.domain for place in found}
        opened.add(name)
        openings.append(_opening(fleet, name, inside[name], found))
    empty = sum(domain.name not in inside for domain in fleet.domains)
    return DefragAdvice(fleet.name, len(fleet.domains), empty, tuple(openings), _sentence(fleet, empty, openings))


def _by_domain(fleet: FleetView, units: Sequence[StandingUnit]) -> Mapping[str, list[StandingUnit]]:
    """The units with ranks in each domain that has any."""
    domain_of = {node.name: domain.name for domain in fleet.domains for node in domain.nodes}
    inside: dict[str, list[StandingUnit]] = {}
    for unit in units:
        nodes = {rank.node for replica in unit.placement.replicas for rank in replica.ranks}
        for name in sorted({domain_of[node] for node in nodes if node in domain_of}):
            inside.setdefault(name, []).append(unit)
    return inside


def _gpus(units: Sequence[StandingUnit]) -> int:
    return sum(unit.spec.gpus for unit in units)


def _opening(fleet: FleetView, name: str, units: Sequence[StandingUnit], places: Sequence[UnitPlacement]) -> Opening:
    domain = next(domain for domain in fleet.domains if domain.name == name)
    usable = sum(node.gpus - len(node.unfit) for node in domain.nodes if node.usable)
    moves = [
        DefragMove(unit.unit, unit.spec.stage, unit.slot, unit.spec.gpus, place.domain or place.fleet)
        for unit, place in zip(units, places, strict=True)
    ]
    return Opening(name, usable, _gpus(units), tuple(moves))


def _sentence(fleet: FleetView, empty: int, openings: Sequence[Opening]) -> str:
    now = f"{empty} of {len(fleet.domains)} domains of {fleet.name} {'is' if empty == 1 else 'are'} empty"
    if not openings:
        return f"{now}; no move would open another"
    moves = sum(len(opening.moves) for opening in openings)
    return f"{now}; {moves} {'move' if moves == 1 else 'moves'} would open {len(openings)} more"
