"""What becomes of the units on a node that is to be emptied: pure, from the same placement that will make it so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fleets.domain.placement import Refusal, place_unit
from fleets.domain.standing import StandingUnit
from fleets.domain.types import FleetView, UnitPlacement


class DrainHow(StrEnum):
    """How a unit leaves a node."""

    ELSEWHERE = "elsewhere"  # another unit comes up first, then this one goes: no capacity is lost
    AFTER = "after"  # room only once its own GPUs are free: it goes first, and its capacity is missing until the other is up
    STOPPED = "stopped"  # it is warm, without traffic: it just ends, and the way back is cold
    WAITS = "waits"  # no room: it goes on serving where it is until there is some


@dataclass(frozen=True, slots=True)
class DrainMove:
    """One unit with ranks on the node. `to` is a domain, or a fleet for placement over several; empty when it goes nowhere."""

    unit: str
    stage: str
    slot: int
    release: str
    gpus: int  # of the whole unit: it is replaced as one
    here: tuple[str, ...]  # its replicas with ranks on the node: `P1`, `D1`
    how: DrainHow
    to: str
    sentence: str


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """A whole node. `done`: it is being drained, and nothing is left on it."""

    node: str
    fleet: str
    domain: str
    cordoned: bool
    draining: bool
    done: bool
    moves: tuple[DrainMove, ...]


def plan_moves(node: str, units: Sequence[StandingUnit], fleets: Sequence[FleetView]) -> tuple[DrainMove, ...]:
    """What would become of each of `units` that has ranks on `node`, one after the other, by what is free now."""
    without = [_without(fleet, node) for fleet in fleets]
    taken: list[UnitPlacement] = []
    moves = []
    for unit in units:
        if not unit.on(node):
            continue
        how, to, sentence = _one(unit, without, taken)
        moves.append(
            DrainMove(
                unit.unit,
                unit.spec.stage,
                unit.slot,
                unit.spec.release,
                unit.spec.gpus,
                unit.on(node),
                how,
                _name(to),
                f"{unit.name} {sentence}",
            )
        )
        if to is not None:
            taken.append(to)
    return tuple(moves)


def _one(unit: StandingUnit, fleets: Sequence[FleetView], taken: Sequence[UnitPlacement]) -> tuple[DrainHow, UnitPlacement | None, str]:
    if unit.warm:
        return DrainHow.STOPPED, None, "is warm and takes no traffic: it is stopped, and a rollback to its release is cold then"
    mine = unit.fleets(fleets)
    placed = place_unit(unit.spec, mine, taken=taken)
    if not isinstance(placed, Refusal):
        return DrainHow.ELSEWHERE, placed, f"comes up in {_name(placed)} first, and ends here then"
    after = place_unit(unit.spec, mine, freed=[unit.placement], taken=taken)
    if not isinstance(after, Refusal):
        sentence = f"ends here first, for there is no other room, and comes up in {_name(after)} then; its capacity is missing meanwhile"
        return DrainHow.AFTER, after, sentence
    return DrainHow.WAITS, None, f"goes on serving here until there is room: {after.sentence} ({after.arithmetic})"


def _name(placement: UnitPlacement | None) -> str:
    return (placement.domain or placement.fleet) if placement else ""


def _without(fleet: FleetView, name: str) -> FleetView:
    """The fleet with one node cordoned."""
    domains = tuple(
        replace(domain, nodes=tuple(replace(node, cordoned=True) if node.name == name else node for node in domain.nodes))
        if any(node.name == name for node in domain.nodes)
        else domain
        for domain in fleet.domains
    )
    return replace(fleet, domains=domains)
