"""Scaling a stage inside the ranges of its release: by a person, or by what the traffic asks for. No engine restarts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from denvweb.core.errors import ConflictError, InvalidError
from denvweb.failpoints import reach
from denvweb.wake import wake
from fleets import selectors as fleet_selectors
from fleets import services as fleets
from fleets.domain.scaling.types import Knob
from fleets.domain.views import UnitView
from metrics.services import event_append
from releases.domain.scaling import Counts, checked, counts_by_role, gpus_of_unit, in_force, shape_text
from releases.domain.spec_types import StageSpec
from releases.models import Release, Stage, StageScale
from releases.selectors.releases import release_key, stage_spec
from releases.selectors.scales import counts_of, room_for_units
from releases.selectors.stages import stage_row


@transaction.atomic
def stage_scale(
    *, stage: str, actor: str, via: str, counts: Mapping[Knob, int] | None = None, auto: bool = False, reason: str = ""
) -> StageScale:
    """Have a stage with these numbers, which then stay until they are changed or given back with `auto`.

    Raises InvalidError `outside-range` with the cure, ConflictError `no-room` with the arithmetic, or `nothing-serves`.
    """
    if bool(counts) == auto:
        raise InvalidError("Say either which numbers to set, or `auto` to give all of them back to the traffic.", code="nothing-to-scale")
    row, release, spec = _locked(stage)
    now = timezone.now()
    if auto:
        _release_control(row, actor, via, reason)
    else:
        _set(row, release, spec, counts or {}, actor, via, reason, now)
    scale_apply(stage=row.stage, now=now)
    reach("scale.before-commit")
    wake("releases.reconcile")
    return row


def _locked(stage: str) -> tuple[StageScale, Release, StageSpec]:
    """The stage's numbers, locked by its row as healing locks it, with its stable release and that one's settings."""
    row = Stage.objects.select_for_update(no_key=True, of=("self",)).select_related("model", "release__model").get(pk=stage_row(stage).pk)
    if row.release is None:
        raise ConflictError(f"Nothing serves in {stage} yet, so there is nothing to scale; release something first.", code="nothing-serves")
    scale, _ = StageScale.objects.get_or_create(stage=row)
    scale.stage = row
    return scale, row.release, stage_spec(row.release, row.name)


def _set(
    row: StageScale, release: Release, spec: StageSpec, asked: Mapping[Knob, int], actor: str, via: str, reason: str, now: datetime
) -> None:
    checked(spec, asked)
    before = in_force(spec, counts_of(row.wanted))
    after = {**before, **asked}
    _refuse_over_budget(str(row.stage), spec, before, after)
    row.wanted = {**row.wanted, **{knob.value: count for knob, count in asked.items()}}
    held = {knob.value: {"count": count, "by": actor, "at": now.isoformat()} for knob, count in asked.items()}
    row.manual = {**row.manual, **held}
    row.save(update_fields=["wanted", "manual"])
    moves = ", ".join(f"{knob.value} {before[knob]} -> {count}" for knob, count in sorted(asked.items()))
    told = f": {reason}" if reason else ""
    _event(row, release, "scale.set", f"{actor} scaled {row.stage}: {moves}, until given back to the traffic{told}", actor, via)


def _release_control(row: StageScale, actor: str, via: str, reason: str) -> None:
    if not row.manual:
        return
    names, told = ", ".join(sorted(row.manual)), f": {reason}" if reason else ""
    row.manual = {}
    row.save(update_fields=["manual"])
    release = row.stage.release
    assert release is not None
    _event(row, release, "scale.released", f"{actor} gave {names} of {row.stage} back to the traffic{told}", actor, via)


def _refuse_over_budget(stage: str, spec: StageSpec, before: Counts, after: Counts) -> None:
    """Every unit must have room for its new replicas inside its domain, and new units a domain with room."""
    need = gpus_of_unit(spec, after)
    more = after[Knob.UNITS] - before[Knob.UNITS]
    if more > 0 and (places := room_for_units(spec, need)) < more:
        raise ConflictError(
            f"{more} more serving {'unit' if more == 1 else 'units'} of {shape_text(after)} {'needs' if more == 1 else 'need'} {need} free "
            f"GPUs each in one domain; {', '.join(spec.fleets)} {'has' if len(spec.fleets) == 1 else 'have'} room for {places}.",
            code="no-room",
        )
    if need <= gpus_of_unit(spec, before):
        return
    for room in fleet_selectors.unit_rooms(stage=stage):
        if need > room.budget:
            raise ConflictError(
                f"Unit {room.slot} needs {need} GPUs for {shape_text(after)} in {room.where}; it holds {room.held}, and {room.free} more "
                f"are free to it, short by {need - room.budget}. Scale another role down in the same step, or add serving units.",
                code="no-room",
            )


def scale_apply(*, stage: Stage, now: datetime) -> int:
    """Give the units of a stage the numbers of replicas that are in force; how many units changed.

    The number of units itself is for healing and rollouts: they make and drain units. In the caller's transaction.
    """
    kept = StageScale.objects.filter(stage=stage).values_list("wanted", flat=True).first()
    if kept is None:
        return 0
    wanted, changed = counts_of(kept), 0
    for unit in fleet_selectors.units_view(stage=str(stage), now=now):
        if not unit.stopping:
            changed += _apply_to(stage, unit, wanted)
    return changed


def _apply_to(stage: Stage, unit: UnitView, wanted: Counts) -> bool:
    """Under the ranges of the release that the unit runs: in a rollout the two may differ."""
    release = Release.objects.select_related("model").filter(model=stage.model_id, number=int(unit.release.rpartition("@")[2])).first()
    if release is None:
        return False
    replicas = counts_by_role(in_force(stage_spec(release, stage.name), wanted))
    if all(pool.desired == replicas.get(pool.role, pool.desired) for pool in unit.pools):
        return False
    return fleets.unit_scale(unit=unit.unit, replicas=replicas)


def _event(row: StageScale, release: Release, kind: str, sentence: str, actor: str, via: str) -> None:
    event_append(kind=kind, sentence=sentence, actor=actor, via=via, stage=str(row.stage), release=release_key(release))
