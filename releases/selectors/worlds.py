"""All that a dry run looks at, read at once."""

from __future__ import annotations

import random

from django.utils import timezone

from fleets import selectors as fleets
from releases.catalog import catalog
from releases.domain.dry_run import StageNow, World, chosen_stages
from releases.domain.freezes import frozen
from releases.domain.spec import ReleaseFile
from releases.models import Rollout, Stage
from releases.selectors.freezes import freeze_windows
from releases.selectors.releases import release_unit
from releases.selectors.rollouts import bring_up_s_of
from releases.selectors.scales import wanted_of
from releases.selectors.traffic import traffic_of


def world_for(file: ReleaseFile, only_stage: str = "", *, traffic: bool = False) -> World:
    """Recipes, fleets, and the stages of the file's model as they are now; `only_stage` is the one that it is about.

    With `traffic`, what came to them in the last hour too, so that shapes are simulated under it: that takes seconds.
    """
    rows = Stage.objects.filter(model__name=file.release.model).select_related("model", "release__model")
    windows, now = freeze_windows(), timezone.now()
    held = {stage.name: frozen(windows, model=file.release.model, stage=stage.name, now=now) for stage in file.stages}
    coming = {row.name: traffic_of(stage=str(row), now=now) for row in rows if traffic and row.release is not None}
    return World(
        catalog=catalog(),
        fleets=fleets.fleet_views(),
        secrets=fleets.secret_names(),
        stages={row.name: _stage_now(row) for row in rows},
        first=next((stage.name for stage in chosen_stages(file, only_stage)), ""),
        traffic={name: process for name, process in coming.items() if process is not None},
        make_draws=random.Random,
        frozen={name: found for name, found in held.items() if found is not None},
    )


def _stage_now(row: Stage) -> StageNow:
    active = row.rollouts.exclude(state__in=Rollout.ENDED).first()
    return StageNow(
        running=release_unit(row.release, row.name) if row.release is not None else None,
        units=fleets.units_view(stage=str(row), now=timezone.now()),
        rollout=active.pk if active else "",
        bring_up_s=bring_up_s_of(row),
        wanted=wanted_of(row),
    )
