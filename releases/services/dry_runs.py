"""Dry runs: asked for here, computed by a task stage by stage, with the progress written as it goes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from denvweb.core import wire
from denvweb.core.errors import ConflictError, DenvError
from denvweb.core.ids import random_id
from denvweb.wake import poke, wake
from releases.domain.dry_run import check_release, check_stage, chosen_stages
from releases.domain.spec import ReleaseFile, SpecError, parse
from releases.domain.views import DryRunView, FindingView, StagePlanView
from releases.models import DryRun
from releases.selectors.releases import next_number
from releases.selectors.worlds import world_for

log = logging.getLogger(__name__)

FILE = "denv.yaml"  # the name in messages; a client that knows the file's real name puts that in its place
KEPT = timedelta(days=1)
OVERDUE = timedelta(seconds=3)  # a queued one this old lost its wake
STUCK = timedelta(seconds=60)  # a running one this old lost its worker


def dry_run_create(*, yaml: str | bytes, actor: str, only_stage: str = "", supersede: bool = False, break_glass: bool = False) -> DryRun:
    """A new dry run, to be computed by a task. A file with mistakes is answered at once, and not kept.

    `supersede` and `break_glass` look at the file as at a release that was asked for so.
    """
    file = parse(yaml)
    if isinstance(file, ReleaseFile):
        text = yaml if isinstance(yaml, str) else yaml.decode("utf-8-sig")
        row = DryRun.objects.create(
            id=random_id("dry"),
            yaml=text,
            only_stage=one_line(only_stage, 63),
            supersede=supersede,
            break_glass=break_glass,
            requested_by=actor,
        )
        wake("releases.run_dry_run", row.pk)
        return row
    view = _done(random_id("dry"), _Draft(file_errors=file))
    return DryRun.objects.create(
        id=view.id, state=DryRun.State.DONE, progress=1, progress_text=view.progress_text, result=wire.to_plain(view), requested_by=actor
    )


def one_line(text: str, most: int) -> str:
    """What a column takes of a text that somebody sent: printable, at most so long."""
    return "".join(char for char in text if char.isprintable())[:most]


def dry_run_run(*, id: str) -> None:
    """Compute a dry run; harmless when it is done, gone, or being computed elsewhere, where both come to the same."""
    row = DryRun.objects.filter(pk=id).exclude(state=DryRun.State.DONE).first()
    if row is None:
        return
    try:
        view = _compute(row)
    except DenvError as error:
        view = _done(row.pk, _Draft(findings=[FindingView("error", error.code, "release", error.detail)]))
    finished = DryRun.objects.filter(pk=id).exclude(state=DryRun.State.DONE)
    finished.update(state=DryRun.State.DONE, progress=1, progress_text=view.progress_text, result=wire.to_plain(view))
    poke(f"dry-run.{id}")


def refuse_other_plan(*, id: str, yaml: str, plans: Sequence[StagePlanView]) -> None:
    """ConflictError unless a release of this text with these plans is what somebody saw in a dry run."""
    row = DryRun.objects.filter(pk=id, state=DryRun.State.DONE).first() if "\0" not in id else None
    if row is None or row.result is None:
        raise ConflictError("The dry run that you looked at is not kept any more: run it again, then release.", code="plan-gone")
    if row.yaml != yaml:
        raise ConflictError(
            "The text is another than the one that was run dry: look at its plan first, then release.", code="plan-of-other-text"
        )
    was, now = (tuple(map(_gist, each)) for each in (wire.from_plain(row.result, DryRunView).plans, plans))
    if was != now:
        raise ConflictError(
            f"The plan is not the one that you saw any more: {_other(was, now)}. Look at the new one, then release.", code="plan-changed"
        )


_Gist = tuple[str, int | None, int, tuple[str, ...]]


def _gist(plan: StagePlanView) -> _Gist:
    """What of a plan a person decides on: where it starts and ends, and its steps; times and places move with every look."""
    return plan.stage, plan.from_release, plan.to_release, tuple(step.title for step in plan.steps)


def _other(was: tuple[_Gist, ...], now: tuple[_Gist, ...]) -> str:
    """The first thing that differs."""
    for (stage, old_from, old_to, old), (_, new_from, new_to, new) in zip(was, now, strict=False):
        if (old_from, old_to) != (new_from, new_to):
            return f"{stage} would go from release {new_from} to {new_to}, not from {old_from} to {old_to}"
        if old != new:
            return f"the steps of {stage} are now {', '.join(new)}"
    return "it is about other stages"


def dry_runs_sweep() -> int:
    """Compute those whose wake or worker was lost, and forget the old ones; returns how many were computed."""
    now = timezone.now()
    DryRun.objects.filter(created_at__lt=now - KEPT).delete()
    lost = Q(state=DryRun.State.QUEUED, created_at__lt=now - OVERDUE) | Q(state=DryRun.State.RUNNING, created_at__lt=now - STUCK)
    ids = list(DryRun.objects.filter(lost).order_by("created_at").values_list("pk", flat=True)[:10])
    for pk in ids:
        log.info("dry run %s was overdue; it is computed now", pk)
        dry_run_run(id=pk)
    return len(ids)


@dataclass(slots=True)
class _Draft:
    """What has come of a dry run so far."""

    release: str = ""
    recipe: str = ""
    file_errors: tuple[SpecError, ...] = ()
    findings: list[FindingView] = field(default_factory=list)
    plans: list[StagePlanView] = field(default_factory=list)


def _compute(row: DryRun) -> DryRunView:
    _progress(row, 0.1, "reading the file")
    file = parse(row.yaml)
    if not isinstance(file, ReleaseFile):
        return _done(row.pk, _Draft(file_errors=file))
    number = next_number(file.release.model)
    draft = _Draft(release=f"{file.release.model}@{number}", recipe=file.release.recipe)
    _progress(row, 0.2, "looking at recipes and fleets")
    world = replace(world_for(file, row.only_stage, traffic=True), supersede=row.supersede, break_glass=row.break_glass)
    draft.findings.extend(check_release(file, row.only_stage, world))
    stages = chosen_stages(file, row.only_stage)
    for index, stage in enumerate(stages):
        _progress(row, 0.3 + 0.6 * index / len(stages), f"placing and planning stage {stage.name}")
        result = check_stage(file, stage, number, world)
        draft.findings.extend(result.findings)
        if result.plan is not None:
            draft.plans.append(result.plan)
    return _done(row.pk, draft)


def _progress(row: DryRun, progress: float, text: str) -> None:
    changed = DryRun.objects.filter(pk=row.pk).exclude(state=DryRun.State.DONE)
    changed.update(state=DryRun.State.RUNNING, progress=progress, progress_text=text[:120])
    poke(f"dry-run.{row.pk}")


def _done(id: str, draft: _Draft) -> DryRunView:
    errors = len(draft.file_errors) + sum(finding.severity == "error" for finding in draft.findings)
    warnings = sum(finding.severity == "warn" for finding in draft.findings)
    plans = draft.plans if not errors else []  # a release is created whole or not at all
    return DryRunView(
        id=id,
        state=DryRun.State.DONE.value,
        progress=1.0,
        progress_text=_counted(errors, warnings),
        release=draft.release,
        recipe=draft.recipe,
        file_errors=tuple(error.text(FILE) for error in draft.file_errors),
        findings=tuple(draft.findings),
        plans=tuple(plans),
        error_count=errors,
        warning_count=warnings,
    )


def _counted(errors: int, warnings: int) -> str:
    """`1 error, 2 warnings`."""
    return f"{errors} error{'' if errors == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}"
