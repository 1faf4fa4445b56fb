"""The numbers of units and replicas that are in force at run time."""

from __future__ import annotations

from fleets import selectors as fleets
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.scaling.types import Knob
from fleets.domain.types import PlacementRule
from releases.domain.scaling import Counts, in_force
from releases.domain.spec_types import StageSpec
from releases.models import Stage, StageScale


def counts_for(spec: StageSpec, *, model_id: int) -> dict[Knob, int]:
    """The numbers of a stage under this release's settings: what was asked for at run time, as far as its ranges allow."""
    if not spec.is_ranged:
        return in_force(spec, {})
    row = StageScale.objects.filter(stage__model_id=model_id, stage__name=spec.name).values_list("wanted", flat=True).first()
    return in_force(spec, counts_of(row or {}))


def wanted_of(stage: Stage) -> Counts:
    """What was set or decided for a stage at run time, whatever its release allows."""
    return counts_of(StageScale.objects.filter(stage=stage).values_list("wanted", flat=True).first() or {})


def counts_of(kept: dict[str, int]) -> Counts:
    """Numbers as they are kept in a row."""
    return {Knob(name): int(count) for name, count in kept.items()}


def room_for_units(spec: StageSpec, gpus: int) -> int:
    """How many more units of so many GPUs the stage's fleets could take now."""
    found = fleets.fleet_views(names=spec.fleets)
    if spec.topology.placement is PlacementRule.ANY:
        return sum(sum(domain.free for domain in fleet.domains) // gpus for fleet in found)
    return sum(domain.free // gpus for fleet in found for domain in fleet.domains)


def conditional_now(stage: Stage, conditional: ConditionalPolicy) -> ConditionalPolicy:
    """The release's rule for prefilling locally, with the limit that is in force."""
    below = StageScale.objects.filter(stage=stage).values_list("local_prefill_below", flat=True).first()
    return conditional if below is None else ConditionalPolicy(below, conditional.prefill_queue_above)
