"""Reading releases: views, and a release as the values that plans are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from django.db.models import Exists, F, Max, OuterRef, Q, QuerySet, Window
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import RowNumber

from denvweb.core import wire
from denvweb.core.errors import ConflictError, NotFoundError
from fleets import selectors as fleets
from fleets.domain.scaling.types import Knob
from fleets.domain.types import Role, UnitSpec
from releases.catalog import catalog
from releases.domain import diff
from releases.domain.findings import all_simulated
from releases.domain.generations import generations
from releases.domain.recipes import Recipe, recipe_unknown
from releases.domain.scaling import Counts, in_force, scaled
from releases.domain.spec import ReleaseFile, StageSpec
from releases.domain.units import SIMULATED_PROTOCOLS, unit_spec
from releases.domain.views import DiffView, DryRunView, RecipeView, ReleaseHead, ReleaseView
from releases.models import DryRun, Release, Rollout, Stage
from releases.selectors.scales import counts_for

PAGE = 50


def release_key(release: Release) -> str:
    """`ds-flash@7`."""
    return f"{release.model.name}@{release.number}"


def release_file(release: Release) -> ReleaseFile:
    """The release's file as values."""
    return wire.from_plain(release.spec, ReleaseFile)


def recipe_of(file: ReleaseFile) -> Recipe:
    """The recipe of a file; ConflictError when this catalogue has lost it."""
    recipe = catalog().get(file.release.recipe)
    if recipe is None:
        raise ConflictError(recipe_unknown(file.release.recipe, catalog()), code="recipe-unknown")
    return recipe


def stage_spec(release: Release, stage: str) -> StageSpec:
    """A stage's settings as this release's file has them; when it does not name the stage, those of the stage with the release's shape."""
    file = release_file(release)
    found = file.stage(stage)
    if found is not None:
        return found
    row = Stage.objects.get(model_id=release.model_id, name=stage)
    return replace(wire.from_plain(row.settings, StageSpec), name=stage, topology=file.release.topology)


def release_unit(release: Release, stage: str, keep: UnitSpec | None = None, wanted: Counts | None = None) -> UnitSpec:
    """One serving unit of a stage (by its name) on a release, with as many replicas as are in force.

    `wanted` are the numbers that were asked for at run time, where the caller has read them already.
    """
    file, spec = release_file(release), stage_spec(release, stage)
    recipe = recipe_of(file)
    unit = unit_spec(file.release, spec, recipe, release_key(release), keep, simulated=_is_simulated(recipe, spec))
    return scaled(unit, _counts(spec, release, wanted)) if spec.is_ranged else unit


def units_wanted(release: Release, stage: str, wanted: Counts | None = None) -> int:
    """How many serving units a stage is to have on a release now; `wanted` as in `release_unit`."""
    return _counts(stage_spec(release, stage), release, wanted)[Knob.UNITS]


def _counts(spec: StageSpec, release: Release, wanted: Counts | None) -> dict[Knob, int]:
    return counts_for(spec, model_id=release.model_id) if wanted is None else in_force(spec, wanted)


def _is_simulated(recipe: Recipe, stage: StageSpec) -> bool:
    """Whether the stage's fleets are; asked only where it makes a difference."""
    return recipe.protocol not in SIMULATED_PROTOCOLS and all_simulated(fleets.fleet_views(names=stage.fleets))


def next_number(model: str) -> int:
    """The number that the model's next release gets."""
    newest: int | None = Release.objects.filter(model__name=model).aggregate(newest=Max("number"))["newest"]
    return (newest or 0) + 1


def _releases() -> QuerySet[Release]:
    return Release.objects.select_related("model")


def release_row(*, model: str, number: int) -> Release:
    """The row, or NotFoundError."""
    release = _releases().filter(model__name=model, number=number).first() if "\0" not in model else None
    if release is None:
        raise NotFoundError(f"There is no release {number} of {model}.")
    return release


def release_view(*, model: str, number: int) -> ReleaseView:
    """One release."""
    release = release_row(model=model, number=number)
    return _view(release, _where([release.pk]))


def releases_view(
    *,
    model: str,
    before: int | None = None,
    limit: int = PAGE,
    stage: str = "",
    by: str = "",
    held: bool | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[ReleaseView, ...]:
    """A model's releases, newest first; those under number `before` when it is given.

    Of a `stage` (its name) those that were ever rolled out to it; made `by` whom, from `since` on and before `until`; `held` from
    automation, or not.
    """
    if "\0" in model:  # the database refuses even to look for it
        raise NotFoundError("There is no such model.")
    bounds = {"number__lt": before, "created_at__gte": since, "created_at__lt": until, "created_by": by or None}
    rows = _releases().filter(model__name=model, **{name: value for name, value in bounds.items() if value is not None})
    if stage:
        rows = rows.filter(Exists(Rollout.objects.filter(to_release=OuterRef("pk"), stage__name=stage)))
    if held is not None:
        rows = rows.exclude(held_reason="") if held else rows.filter(held_reason="")
    page = list(rows.order_by("-number")[:limit])
    if not page and not Stage.objects.filter(model__name=model).exists():
        raise NotFoundError(f"There is no model {model}.")
    where = _where([release.pk for release in page])
    return tuple(_view(release, where) for release in page)


def releases_newest(*, models: Collection[str], limit: int) -> dict[str, tuple[ReleaseHead, ...]]:
    """The newest releases of each of the models, newest first, without their files: three queries."""
    ranked = Window(RowNumber(), partition_by=F("model_id"), order_by=F("number").desc())
    ranking = Release.objects.filter(model__name__in=models).annotate(place=ranked).filter(place__lte=limit)
    recipe = KeyTextTransform("recipe", KeyTransform("release", "spec"))
    columns = ("pk", "model__name", "number", recipe, "created_at", "created_by", "note", "held_reason")
    rows = list(ranking.order_by("model__name", "-number").values_list(*columns))
    where, found = _where([row[0] for row in rows]), defaultdict[str, list[ReleaseHead]](list)
    for pk, model, number, name, at, by, note, held in rows:
        found[model].append(ReleaseHead(model, number, name, at, by, note, held, where.get(pk, ())))
    return {model: tuple(heads) for model, heads in found.items()}


def _where(ids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """Stage names by release: where it is the stable one, or on its way there."""
    stable = Stage.objects.filter(release__in=ids).values_list("release_id", "name")
    coming = (
        Rollout.objects.filter(~Q(state__in=Rollout.ENDED), to_release__in=ids)
        .exclude(to_release=F("stage__release"))
        .values_list("to_release_id", "stage__name")
    )
    found: dict[int, tuple[str, ...]] = {}
    for pk, name in [*stable, *coming]:
        if pk is not None and name not in found.get(pk, ()):
            found[pk] = (*found.get(pk, ()), name)
    return found


def _view(release: Release, where: dict[int, tuple[str, ...]]) -> ReleaseView:
    spec = release.spec["release"]
    return ReleaseView(
        model=release.model.name,
        number=release.number,
        recipe=spec["recipe"],
        weights=spec["weights"],
        created_at=release.created_at,
        created_by=release.created_by,
        note=release.note,
        yaml=release.yaml,
        spec=release.spec,
        generations=release.generations,
        stages=where.get(release.pk, ()),
        held=release.held_reason,
    )


def diff_view(*, model: str, number: int, against: int | None = None) -> DiffView:
    """A release beside another, by default the one before it."""
    if against is None:
        new = release_row(model=model, number=number)
        old = _releases().filter(model=new.model, number__lt=number).order_by("-number").first() or new
    else:
        both = _releases().filter(model__name=model, number__in=[number, against]) if "\0" not in model else ()
        rows = {row.number: row for row in both}
        new, old = (rows.get(wanted) or release_row(model=model, number=wanted) for wanted in (number, against))
    names = [stage.name for stage in release_file(new).stages if release_file(old).stage(stage.name)]
    touches = diff.touches(release_unit(old, names[0]), release_unit(new, names[0])) if names else "other stages"
    return DiffView(
        model=model,
        number=number,
        against=old.number,
        touches=touches if old.pk != new.pk else "nothing",
        changes=diff.changes(old.yaml, new.yaml),
        unified=diff.unified(old.yaml, new.yaml, f"{model}@{old.number}", f"{model}@{number}"),
    )


def generations_of(file: ReleaseFile) -> dict[str, str]:
    """Hash by role, and `compat`, of a unit with the release's own topology."""
    recipe, stage = recipe_of(file), replace(file.stages[0], topology=file.release.topology)
    unit = unit_spec(file.release, stage, recipe, f"{file.release.model}@0", simulated=_is_simulated(recipe, stage))
    return generations(unit.pools, unit.compat)


def dry_run_view(*, id: str) -> DryRunView:
    """A dry run as far as it is."""
    row = DryRun.objects.filter(pk=id).first() if "\0" not in id else None
    if row is None:
        raise NotFoundError(f"There is no dry run {id}; they are kept for a day.")
    if row.result is not None:
        return wire.from_plain(row.result, DryRunView)
    return DryRunView(row.pk, row.state, row.progress, row.progress_text, "", "", (), (), (), 0, 0)


def recipes_view() -> tuple[RecipeView, ...]:
    """The catalogue."""
    return tuple(_recipe_view(recipe) for recipe in catalog().values())


def _recipe_view(recipe: Recipe) -> RecipeView:
    modes = [("disaggregated", recipe.can_disaggregate), ("aggregated", Role.AGGREGATED in recipe.roles)]
    return RecipeView(
        recipe=recipe.name,
        summary=recipe.summary,
        engine=recipe.engine,
        engine_version=recipe.engine_version,
        protocol=recipe.protocol,
        gpu_kinds=recipe.gpu_kinds,
        modes=tuple(mode for mode, has in modes if has),
        weight_bytes=recipe.shape.weight_bytes,
        kv_bytes_per_token=recipe.model_shape().kv_bytes_per_token,
        options={role.value: rules.options for role, rules in recipe.roles.items()},
    )
