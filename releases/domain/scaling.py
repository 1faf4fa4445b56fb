"""A stage's numbers of units and replicas: what its release allows, what is in force, and what a person may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from denvweb.core.errors import InvalidError
from fleets.domain.scaling.types import Bounds, Knob
from fleets.domain.types import Role, UnitSpec
from releases.domain.spec_types import StageSpec

Counts = Mapping[Knob, int]


def bounds_of(spec: StageSpec) -> dict[Knob, Bounds]:
    """The ranges of a stage as its release's file has them; a number without a range is a range of one."""
    found = {Knob.UNITS: Bounds(spec.replicas, spec.most_replicas or spec.replicas)}
    return found | {Knob(role.value): Bounds(pool.min_replicas, pool.max_replicas) for role, pool in spec.topology.pools}


def in_force(spec: StageSpec, wanted: Counts) -> dict[Knob, int]:
    """The numbers that a stage should have: the wanted ones inside the ranges, and what the file starts with for the others."""
    return {knob: bounds.clamp(wanted.get(knob, bounds.least)) for knob, bounds in bounds_of(spec).items()}


def counts_by_role(counts: Counts) -> dict[Role, int]:
    """Replicas of one unit."""
    return {knob.role: count for knob, count in counts.items() if knob.role is not None}


def scaled(unit: UnitSpec, counts: Counts) -> UnitSpec:
    """A unit with these numbers of replicas. Its generations stay: a count is in no hash."""
    by_role = counts_by_role(counts)
    return replace(unit, pools=tuple(replace(pool, replicas=by_role.get(pool.role, pool.replicas)) for pool in unit.pools))


def gpus_of_unit(spec: StageSpec, counts: Counts) -> int:
    """GPUs of one serving unit with these numbers of replicas."""
    return sum(pool.gpus * counts[Knob(role.value)] for role, pool in spec.topology.pools)


def shape_text(counts: Counts) -> str:
    """`2P1D`, or `2A`."""
    return "".join(f"{counts[knob]}{knob.value[0].upper()}" for knob in (Knob.PREFILL, Knob.DECODE, Knob.AGGREGATED) if knob in counts)


def checked(spec: StageSpec, asked: Counts) -> None:
    """Refuse numbers outside the ranges, all at once, each with its cure. InvalidError `outside-range`."""
    bounds, sentences, fields = bounds_of(spec), [], {}
    for knob, count in asked.items():
        if knob not in bounds:
            sentences.append(f"this stage has no {knob.value} to count; it has {', '.join(bounds)}")
            fields[knob.value] = ["not a number of this stage"]
        elif bounds[knob].clamp(count) != count:
            sentences.append(_outside(spec, knob, count, bounds[knob]))
            fields[knob.value] = [f"must be {_allowed(bounds[knob])}"]
    if fields:
        raise InvalidError(f"Not scaled: {'; '.join(sentences)}.", code="outside-range", fields=fields)


def _allowed(bounds: Bounds) -> str:
    return f"{bounds.least}, as the release has it" if bounds.fixed else f"{bounds.least} to {bounds.most}, as the release has it"


def _outside(spec: StageSpec, knob: Knob, count: int, bounds: Bounds) -> str:
    if count < 1:
        return f"{knob.value} cannot be {count}; there is always at least one"
    least, most = min(count, bounds.least), max(count, bounds.most)
    path = f"stages.{spec.name}.replicas" if knob is Knob.UNITS else f"{knob.value}.replicas"
    cure = f"to change that, release it with `{path}: {{ min: {least}, max: {most} }}`"
    return f"{knob.value} {count} is not allowed, it must be {_allowed(bounds)}; {cure}"
