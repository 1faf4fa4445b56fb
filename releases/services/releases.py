"""Creating a release, and with it the rollouts that take its stages there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from django.db import transaction

from denvweb.core import wire
from denvweb.core.errors import ConflictError, DenvError, InvalidError
from denvweb.wake import wake
from metrics.services import event_append
from releases.domain.dry_run import World, check_release, check_stage, chosen_stages
from releases.domain.rollout_types import RolloutState
from releases.domain.spec import ReleaseFile, StageSpec, parse
from releases.domain.views import FindingView, StagePlanView
from releases.models import Model, Release, Rollout, Stage
from releases.selectors.releases import generations_of, next_number, release_file, release_key, release_row
from releases.selectors.worlds import world_for
from releases.services.dry_runs import FILE, one_line, refuse_other_plan
from releases.services.rollouts import rollout_start, rollout_supersede


@dataclass(frozen=True, slots=True)
class Created:
    """A new release and its rollouts, in the order of their stages; each waits for the one before it."""

    release: Release
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class How:
    """How a release is to begin: `supersede` what is in flight, and `break_glass`, a reason, in spite of freeze windows.

    `automated`: no person is there, so what was taken back once is not deployed again before a person lifts that.
    `dry_run`: the one that was looked at; what begins is its plan or nothing.
    """

    supersede: bool = False
    break_glass: str = ""
    automated: bool = False
    dry_run: str = ""


_USUAL = How()


def release_create(*, yaml: str, actor: str, via: str, only_stage: str = "", note: str = "", how: How = _USUAL) -> Created:
    """Make the next release of the file's model and start its rollouts, all in one transaction.

    InvalidError for mistakes in the file, ConflictError where the dry run would have an error, or when nothing would change.
    """
    file = _read(yaml)
    with transaction.atomic():
        Model.objects.get_or_create(name=file.release.model)
        model = Model.objects.select_for_update().get(name=file.release.model)  # one at a time: the number, and what runs
        number, world = next_number(model.name), world_for(file, only_stage)
        plans = _refuse_errors(file, only_stage, number, replace(world, supersede=how.supersede, break_glass=bool(how.break_glass.strip())))
        if how.dry_run:
            refuse_other_plan(id=how.dry_run, yaml=yaml, plans=plans)
        stages = chosen_stages(file, only_stage)
        _refuse_nothing(model, file, stages)
        if how.automated:
            _refuse_held(model, file)
        release = Release.objects.create(
            model=model,
            number=number,
            yaml=yaml,
            spec=wire.to_plain(file),
            generations=generations_of(file),
            note=one_line(note, 200),
            created_by=actor,
        )
        rollouts = _start(release, file, stages, actor, via, how)
        names = ", ".join(stage.name for stage in stages)
        event_append(
            kind="release.created",
            sentence=f"{actor} created release {number} of {model.name} for {names}" + (f": {release.note}" if release.note else ""),
            actor=actor,
            via=via,
            model=model.name,
            release=release_key(release),
        )
    wake("releases.reconcile")
    return Created(release, rollouts)


def _read(yaml: str) -> ReleaseFile:
    file = parse(yaml)
    if isinstance(file, ReleaseFile):
        return file
    fields: dict[str, list[str]] = {}
    for error in file:
        fields.setdefault(error.path, []).append(error.text(FILE))
    raise InvalidError("\n".join(error.text(FILE) for error in file), code="spec-invalid", fields=fields)


def _refuse_errors(file: ReleaseFile, only_stage: str, number: int, world: World) -> tuple[StagePlanView, ...]:
    """Raise what a dry run would find, all of it, under the code of the first; without an error the plans."""
    results = [check_stage(file, stage, number, world) for stage in chosen_stages(file, only_stage)]
    found = [*check_release(file, only_stage, world), *(finding for result in results for finding in result.findings)]
    errors = [finding for finding in found if finding.severity == "error"]
    if errors:
        raise _as_error(errors)
    return tuple(result.plan for result in results if result.plan is not None)


def _as_error(errors: list[FindingView]) -> DenvError:
    fields: dict[str, list[str]] = {}
    for finding in errors:
        fields.setdefault(finding.subject, []).append(finding.sentence)
    detail = "\n".join(f"{finding.subject}: {finding.sentence}" for finding in errors)
    return ConflictError(detail, code=errors[0].code, fields=fields)


def _refuse_nothing(model: Model, file: ReleaseFile, stages: tuple[StageSpec, ...]) -> None:
    """Refuse a release that every one of its stages runs already."""
    running = {row.name: row.release for row in Stage.objects.filter(model=model).select_related("release__model")}
    for stage in stages:
        release = running.get(stage.name)
        if release is None:
            return
        now = release_file(release)
        if now.release != file.release or now.stage(stage.name) != stage:
            return
    names = " and ".join(f"{stage.name} (release {release.number})" for stage in stages if (release := running[stage.name]))
    raise ConflictError(f"This is what runs in {names} already; nothing would change.", code="nothing-to-change")


def _refuse_held(model: Model, file: ReleaseFile) -> None:
    """Refuse, from automation, what is the same as a release that was taken back and that nobody has let go since."""
    for held in Release.objects.filter(model=model).exclude(held_reason="").select_related("model").order_by("-number"):
        if release_file(held).release == file.release:
            raise ConflictError(
                f"This is the same as {release_key(held)}, which automation may not deploy: {held.held_reason}. "
                f"A person lifts that with `denv release resume {release_key(held)}`, or releases it.",
                code="release-held",
            )


def release_resume(*, model: str, number: int, actor: str, via: str, reason: str = "") -> Release:
    """Let automation deploy a release again that was taken back. Doing so twice is the same as once."""
    with transaction.atomic():
        row = Release.objects.select_for_update(no_key=True, of=("self",)).get(pk=release_row(model=model, number=number).pk)
        if row.held_reason:
            told = f": {reason.strip()}" if reason.strip() else ""
            event_append(
                kind="release.resumed",
                sentence=f"{actor} lifted the hold of release {number} of {model}{told}; it was held because {row.held_reason}",
                actor=actor,
                via=via,
                model=model,
                release=f"{model}@{number}",
            )
            Release.objects.filter(pk=row.pk).update(held_reason="")
    return row


def _start(release: Release, file: ReleaseFile, stages: tuple[StageSpec, ...], actor: str, via: str, how: How) -> tuple[Rollout, ...]:
    """One rollout a stage; the first starts at once, each other when the one before it succeeded."""
    rollouts: list[Rollout] = []
    # Before any stage is touched: whoever drives a rollout locks that before its stage.
    ended = _supersede(release, stages, actor, via) if how.supersede else {}
    for stage in stages:
        row, _ = Stage.objects.update_or_create(
            model=release.model,
            name=stage.name,
            defaults={"position": file.stages.index(stage), "settings": wire.to_plain(stage)},
        )
        after = rollouts[-1] if rollouts else None
        instead = ended.get(stage.name)
        rollouts.append(
            rollout_start(
                stage=row, release=release, actor=actor, via=via, after=after, instead=instead, break_glass=how.break_glass.strip()
            )
        )
        if how.break_glass.strip():
            _tell_broken_glass(rollouts[-1], actor, via, how.break_glass.strip())
    return tuple(rollouts)


def _supersede(release: Release, stages: tuple[StageSpec, ...], actor: str, via: str) -> dict[str, RolloutState | None]:
    rows = Stage.objects.filter(model=release.model, name__in=[stage.name for stage in stages]).select_related("model").order_by("pk")
    by = f"release {release.number}, as {actor} asked"
    return {row.name: rollout_supersede(stage=row, by=by, actor=actor, via=via) for row in rows}


def _tell_broken_glass(rollout: Rollout, actor: str, via: str, reason: str) -> None:
    number = rollout.to_release.number
    event_append(
        kind="rollout.break-glass",
        sentence=f"{actor} broke the glass: release {number} goes to {rollout.stage} in spite of freezes: {reason}",
        actor=actor,
        via=via,
        level="bad",
        stage=str(rollout.stage),
        rollout=rollout.pk,
        release=release_key(rollout.to_release),
    )
