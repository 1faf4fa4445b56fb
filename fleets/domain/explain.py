"""Why the units of a stage are where they are, and what each fleet says to one more: the answers of placement itself, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from denvweb.core.units import format_bytes
from fleets.domain.capacity import room_of
from fleets.domain.hardware import GPUS
from fleets.domain.placement import Refusal, place_unit
from fleets.domain.refusal import memory_holds, needs, pool_fit
from fleets.domain.standing import StandingUnit
from fleets.domain.types import FleetView, PlacementRule, PoolSpec, UnitSpec


@dataclass(frozen=True, slots=True)
class UnitExplained:
    """One unit and the reason for its place."""

    unit: str
    slot: int
    release: str
    where: str  # its domain, or its fleet when it stands in several
    gpus: int
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class FleetExplained:
    """What a fleet says to one more unit. `to` is where it would go; empty with the reason why not in `sentence`."""

    fleet: str
    gpu_kind: str
    preference: int  # 1: the stage's first choice; 0: none of its fleets
    gpus: int
    free: int
    domains: int
    domains_that_take_it: int  # with as many GPUs free as it needs
    largest_free: int  # GPUs of the domain with the most free
    to: str
    sentence: str
    arithmetic: str
    fits: str  # the nearest shape that would fit, and where
    memory: tuple[str, ...]  # one sentence a pool


@dataclass(frozen=True, slots=True)
class PlacementExplained:
    """A whole stage; shape and arithmetic are those of the release that has the traffic."""

    stage: str
    release: str
    shape: str
    rule: PlacementRule
    arithmetic: str
    units: tuple[UnitExplained, ...]
    fleets: tuple[FleetExplained, ...]  # the stage's in its order, then the others


def explain(stage: str, units: Sequence[StandingUnit], fleets: Sequence[FleetView]) -> PlacementExplained:
    """Explain `units`, at least one, against `fleets`: all that there are."""
    spec = next((unit.spec for unit in units if not unit.warm), units[0].spec)
    mine = next(unit for unit in units if unit.spec is spec).fleets(fleets)
    others = [fleet for fleet in fleets if fleet not in mine]
    asked = [_fleet(spec, fleet, at) for at, fleet in enumerate(mine, 1)] + [_fleet(spec, fleet, 0) for fleet in others]
    return PlacementExplained(
        stage=stage,
        release=spec.release,
        shape=spec.shape,
        rule=spec.placement,
        arithmetic=needs(spec),
        units=tuple(_unit(unit, fleets) for unit in units),
        fleets=tuple(asked),
    )


def _unit(unit: StandingUnit, fleets: Sequence[FleetView]) -> UnitExplained:
    nodes = sorted({rank.node for replica in unit.placement.replicas for rank in replica.ranks})
    why = "; ".join([*_why_this_fleet(unit, fleets), _why_this_domain(unit, fleets)])
    return UnitExplained(unit.unit, unit.slot, unit.spec.release, unit.where, unit.spec.gpus, tuple(nodes), why)


def _why_this_fleet(unit: StandingUnit, fleets: Sequence[FleetView]) -> list[str]:
    """What the fleets that its stage likes better say to it now."""
    said = []
    for fleet in unit.fleets(fleets):
        if fleet.name == unit.placement.fleet:
            break
        answer = place_unit(unit.spec, [fleet])
        said.append(answer.sentence if isinstance(answer, Refusal) else f"{fleet.name} comes first and has room by now")
    return said


def _why_this_domain(unit: StandingUnit, fleets: Sequence[FleetView]) -> str:
    fleet = next((fleet for fleet in fleets if fleet.name == unit.placement.fleet), None)
    if fleet is None:
        return f"fleet {unit.placement.fleet} is gone"
    if not unit.placement.domain:
        return "placement is any, and no single domain took all of it"
    holes = sorted(room_of(fleet, freed=[unit.placement]).holes(unit.spec.gpus))
    own = next((free for free, name, _ in holes if name == unit.placement.domain), None)
    if own is None:
        return "it would not fit there again: nodes of its domain are silent, cordoned or broken since"
    if holes[0][0] < own:
        return f"{own} GPUs are free there without it; {holes[0][1]} is tighter by now ({holes[0][0]} free)"
    if len(holes) == 1:
        return f"the only domain of {len(fleet.domains)} that takes it ({own} GPUs free without it)"
    return f"the tightest of {len(holes)} domains that take it ({own} GPUs free without it)"


def _fleet(spec: UnitSpec, fleet: FleetView, preference: int) -> FleetExplained:
    room = room_of(fleet)
    to, sentence, arithmetic, fits = _answer(spec, fleet)
    return FleetExplained(
        fleet=fleet.name,
        gpu_kind=fleet.gpu_kind,
        preference=preference,
        gpus=sum(domain.size for domain in fleet.domains),
        free=room.free,
        domains=len(fleet.domains),
        domains_that_take_it=len(room.holes(spec.gpus)),
        largest_free=max(room.free_by_domain, default=0),
        to=to,
        sentence=sentence,
        arithmetic=arithmetic,
        fits=fits,
        memory=tuple(sentence for pool in spec.pools if (sentence := memory_sentence(pool, fleet.gpu_kind))),
    )


def _answer(spec: UnitSpec, fleet: FleetView) -> tuple[str, str, str, str]:
    """Where one more unit would go, the sentence, the arithmetic, and what would fit instead."""
    answer = place_unit(spec, [fleet])
    if isinstance(answer, Refusal):
        return "", answer.sentence, answer.arithmetic, answer.fits
    if not memory_holds(spec, fleet.gpu_kind):
        return "", f"fleet {fleet.name} has the GPUs, but their memory does not hold it", needs(spec), ""
    where = answer.domain or answer.fleet
    return where, f"one more unit would go to {where}", needs(spec), ""


def memory_sentence(pool: PoolSpec, gpu_kind: str) -> str:
    """`decode x 64 on GB200: 10.8 GB of weights per GPU, 166 GB usable, KV for 1,600,000 tokens`; empty for a kind nobody described."""
    kind = GPUS.get(gpu_kind)
    if kind is None:
        return ""
    fit = pool_fit(pool, kind)
    has = f"{format_bytes(fit.weights_bytes)} of weights per GPU, {format_bytes(fit.usable_bytes)} usable"
    tokens = f"KV for {fit.kv_tokens:,} tokens"
    short = "" if fit.fits else f"; one sequence has {fit.wanted_kv_tokens:,}, so it needs at least {fit.gpus_needed} GPUs a replica"
    return f"{pool.role.value} x {pool.gpus} on {gpu_kind}: {has}, {tokens}{short}"
