"""What a stage is sized on: its recipe and GPUs, the shape in force, its limits, and what came in the last hour."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils import timezone

from denvweb.core.errors import ConflictError
from fleets import selectors as fleets
from fleets.domain.scaling.types import Knob
from fleets.domain.simulator.arrivals import Process
from fleets.domain.simulator.types import Limits, StageShape
from fleets.domain.sizing.types import Serving
from releases.domain.scaling import counts_by_role
from releases.domain.serving import limits_of, serving_on, shape_of
from releases.selectors.releases import recipe_of, release_file, stage_spec
from releases.selectors.scales import conditional_now, counts_for
from releases.selectors.stages import stage_row
from releases.selectors.traffic import traffic_of


@dataclass(frozen=True, slots=True)
class Ground:
    """The ground that a stage's size stands on. `traffic` is None when nothing came."""

    serving: Serving
    shape: StageShape
    limits: Limits
    traffic: Process | None


def sizing_ground(*, stage: str) -> Ground:
    """Of a stage's stable release; ConflictError before the first one, or where its fleet is not known."""
    row = stage_row(stage)
    if row.release is None:
        raise ConflictError(f"{stage} has no release yet; there is no shape to look at", code="no-release")
    file, spec = release_file(row.release), stage_spec(row.release, row.name)
    recipe = recipe_of(file)
    serving = serving_on(recipe, spec, fleets.fleet_views(names=spec.fleets))
    if serving is None:
        raise ConflictError(f"fleet {', '.join(spec.fleets)} is not there, or its GPU kind is not known", code="fleet-unknown")
    counts = counts_for(spec, model_id=row.model_id)
    shape = shape_of(
        file.release,
        spec,
        recipe,
        serving.gpu,
        units=counts[Knob.UNITS],
        conditional=conditional_now(row, spec.topology.conditional),
        replicas=counts_by_role(counts),
    )
    return Ground(serving, shape, limits_of(spec), traffic_of(stage=stage, now=timezone.now()))
