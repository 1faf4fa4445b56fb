"""A dry run as a pure computation: the file, the fleets and what runs now go in; findings and plans come out, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleets.domain.scaling.types import Knob
from fleets.domain.simulator.arrivals import Process
from fleets.domain.sizing.types import MakeDraws
from fleets.domain.types import FleetView, UnitPlacement, UnitSpec
from fleets.domain.views import UnitView
from releases.domain.advice import traffic_findings
from releases.domain.diff import touches
from releases.domain.findings import (
    Severity,
    all_simulated,
    has_errors,
    refusal_findings,
    release_findings,
    secret_findings,
    stage_findings,
    stage_subject,
)
from releases.domain.freezes import Frozen
from releases.domain.plan import MoveKind, StagePlan, plan_stage
from releases.domain.recipes import Catalog, Recipe
from releases.domain.scaling import Counts, in_force, scaled
from releases.domain.spec_types import ReleaseFile, StageSpec
from releases.domain.units import unit_spec
from releases.domain.views import FindingView, StagePlanView

MOST_NAMED = 12  # units that a sentence names one by one


@dataclass(frozen=True, slots=True)
class StageNow:
    """A stage as it stands. `running` is a unit of its stable release, None when nothing serves; `rollout` is the id of one in flight."""

    running: UnitSpec | None = None
    units: tuple[UnitView, ...] = ()
    rollout: str = ""
    bring_up_s: float | None = None  # how long a unit took to come up the last time
    wanted: Counts = field(default_factory=dict)  # numbers of units and replicas that were set or decided at run time


@dataclass(frozen=True, slots=True)
class World:
    """All that a dry run looks at."""

    catalog: Catalog
    fleets: tuple[FleetView, ...]
    stages: Mapping[str, StageNow] = field(default_factory=dict)  # by name; a stage that is new is not there
    frozen: Mapping[str, Frozen] = field(default_factory=dict)  # by name, those that are frozen now
    first: str = ""  # the stage in which the release would begin at once
    supersede: bool = False  # a rollout in flight is superseded
    secrets: Mapping[str, str] = field(default_factory=dict)  # whose they are, a model or `*`, by name
    break_glass: bool = False  # freeze windows are passed over
    traffic: Mapping[str, Process] = field(default_factory=dict)  # by name, of stages that had some in the last hour
    make_draws: MakeDraws | None = None  # random numbers of simulations; None: nothing is simulated


@dataclass(frozen=True, slots=True)
class StageResult:
    """What came of one stage; no plan after an error."""

    findings: tuple[FindingView, ...]
    plan: StagePlanView | None = None


def chosen_stages(file: ReleaseFile, only_stage: str) -> tuple[StageSpec, ...]:
    """The stages that a dry run or a release is about: all of the file's, or the named one; empty when the file lacks it."""
    return tuple(stage for stage in file.stages if only_stage in ("", stage.name))


def check_release(file: ReleaseFile, only_stage: str, world: World) -> tuple[FindingView, ...]:
    """The findings that hold whatever the stage."""
    found = (*release_findings(file, world.catalog), *secret_findings(file.release, world.secrets))
    if not chosen_stages(file, only_stage):
        names = ", ".join(stage.name for stage in file.stages)
        return (*found, FindingView("error", "stage-unknown", "release", f"the file has no stage {only_stage}; it has {names}"))
    return found


def check_stage(file: ReleaseFile, stage: StageSpec, number: int, world: World) -> StageResult:
    """Findings of one stage and, without an error, its plan. The release would get `number`."""
    recipe = world.catalog.get(file.release.recipe)
    if recipe is None:
        return StageResult(())
    found = list(stage_findings(file, stage, recipe, world.fleets))
    now = world.stages.get(stage.name, StageNow())
    found.extend(_in_flight(stage, now, world))
    found.extend(_frozen(stage, world))
    if has_errors(found):
        return StageResult(tuple(found))
    plan = stage_plan(file, stage, number, world)
    if plan.refusal is not None:
        return StageResult((*found, *refusal_findings(stage, plan.refusal)))
    placed = _finding(stage, Severity.OK, "placed", _where(plan, stage, now, world.fleets))
    return StageResult((*found, placed, *_surge(stage, plan, world), *_traffic(file, stage, recipe, world, plan)), plan.view)


def _traffic(file: ReleaseFile, stage: StageSpec, recipe: Recipe, world: World, plan: StagePlan) -> Sequence[FindingView]:
    """What the stage's measured traffic says about the new shape."""
    process = world.traffic.get(stage.name)
    if process is None or world.make_draws is None:
        return ()
    return traffic_findings(file.release, stage, recipe, world.fleets, process, world.make_draws, plan.view.capacity_ratio_min)


def _in_flight(stage: StageSpec, now: StageNow, world: World) -> Sequence[FindingView]:
    if not now.rollout:
        return ()
    if world.supersede:
        sentence = f"rollout {now.rollout} is in flight and superseded: what it brought is taken away before this release begins"
        return (_finding(stage, Severity.WARN, "rollout-superseded", sentence),)
    sentence = f"rollout {now.rollout} is in flight; wait for its end, abort it, or release with --supersede"
    return (_finding(stage, Severity.ERROR, "rollout-in-flight", sentence),)


def _frozen(stage: StageSpec, world: World) -> Sequence[FindingView]:
    """Refused where it would begin now; a stage that comes later waits until it is not frozen any more."""
    frozen = world.frozen.get(stage.name)
    if frozen is None:
        return ()
    if world.break_glass:
        return (_finding(stage, Severity.WARN, "frozen", f"{frozen.sentence}; the glass is broken, so it begins all the same"),)
    if stage.name == world.first:
        sentence = f"{frozen.sentence}; wait for its end, or release with --break-glass and a reason"
        return (_finding(stage, Severity.ERROR, "frozen", sentence),)
    return (_finding(stage, Severity.WARN, "frozen", f"{frozen.sentence}; what is to begin here before then waits for that"),)


def stage_plan(file: ReleaseFile, stage: StageSpec, number: int, world: World) -> StagePlan:
    """The plan of one stage; the recipe must be known."""
    now = world.stages.get(stage.name, StageNow())
    by_name = {fleet.name: fleet for fleet in world.fleets}
    fleets = [by_name[name] for name in stage.fleets if name in by_name]
    recipe, key = world.catalog[file.release.recipe], f"{file.release.model}@{number}"
    counts = in_force(stage, now.wanted)
    new = scaled(unit_spec(file.release, stage, recipe, key, keep=now.running, simulated=all_simulated(fleets)), counts)
    return plan_stage(
        stage=new.stage,
        old=now.running,
        new=new,
        replicas=counts[Knob.UNITS],
        policy=stage.rollout,
        units=now.units,
        fleets=fleets,
        bring_up_s=now.bring_up_s,
        changed=touches(now.running, new),
    )


def _finding(stage: StageSpec, severity: Severity, code: str, sentence: str) -> FindingView:
    return FindingView(severity.value, code, stage_subject(stage), sentence)


def _surge(stage: StageSpec, plan: StagePlan, world: World) -> Sequence[FindingView]:
    if plan.view.surge:
        return ()
    need = stage.topology.gpus
    mine = [fleet for fleet in world.fleets if fleet.name in stage.fleets]
    free = sum(domain.free >= need for fleet in mine for domain in fleet.domains)
    capacity = (
        f"at least {plan.view.capacity_ratio_min:.0%} of capacity is left" if plan.view.capacity_ratio_min else "nothing serves meanwhile"
    )
    sentence = f"no room to surge: {free} domains with {need} GPUs free; units are replaced one at a time, and {capacity}"
    return (_finding(stage, Severity.WARN, "no-room-to-surge", sentence),)


def _where(plan: StagePlan, stage: StageSpec, now: StageNow, fleets: Sequence[FleetView]) -> str:
    """`unit 1 on gb200-use1/d01, unit 2 on gb200-use1/d02 (72 of 72 GPUs each, same-domain)`."""
    standing = {unit.slot: unit.domain or unit.fleet for unit in now.units}
    places: dict[int, str] = {}
    for move in plan.moves:
        if move.kind is MoveKind.BRING_UP and move.placement is not None:
            places[move.slot] = f"unit {move.slot} on {_name(move.placement)}"
        elif move.kind is MoveKind.REPLACE:
            places[move.slot] = f"unit {move.slot} keeps {standing.get(move.slot, 'its place')}"
        elif move.kind is MoveKind.RELABEL:
            places.update({slot: f"unit {slot} keeps {where}" for slot, where in standing.items()})
    used = {place.rpartition(" ")[2] for place in places.values()}
    sizes = {domain.size for fleet in fleets for domain in fleet.domains if domain.name in used}
    of = f" of {sizes.pop()}" if len(sizes) == 1 else ""
    each = " each" if len(places) > 1 else ""
    told = [places[slot] for slot in sorted(places)]
    if len(told) > MOST_NAMED:
        told[MOST_NAMED:] = [f"and {len(told) - MOST_NAMED} more"]
    return f"{', '.join(told)} ({stage.topology.gpus}{of} GPUs{each}, {stage.topology.placement.value})"


def _name(placement: UnitPlacement) -> str:
    return placement.domain or f"{placement.fleet}, several domains"
