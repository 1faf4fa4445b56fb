"""Releases: what is it, what changed, where is it? And a new one: does it fit, and what will happen?"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from denvweb.access import Action, access_model, actions_of, roles_for, seen_by
from denvweb.core.errors import DenvError, NotFoundError
from frontend import diffs, filters, words
from frontend.pages.base import PageRequest, actor, attempt, page, show, whole, write_refusal
from frontend.stagerows import two_releases
from frontend.words import Badge
from releases.domain.spec_edit import fields_of, with_value
from releases.domain.views import DryRunView, ReleaseHead, ReleaseView, StageHead
from releases.selectors.heads import stage_heads, stage_keys
from releases.selectors.releases import PAGE, diff_view, dry_run_view, release_view, releases_newest, releases_view
from releases.selectors.rollouts import rollouts_view
from releases.services.access import access_dry_run, access_release
from releases.services.dry_runs import dry_run_create
from releases.services.releases import How, release_create, release_resume

EXAMPLE = """\
release:
  model: my-model
  weights: hf://org/name@revision
  recipe: deepseek-v4.1-flash/deepinfer@3
  topology:
    mode: disaggregated
    prefill: { gpus: 4, replicas: 2 }
    decode: { gpus: 64, replicas: 1 }
stages:
  prod-us:
    fleets: [my-fleet]
    replicas: 2
    alarms: { ttft-p99: 1500ms, itl-p99: 60ms, error-rate: 1% }
    rollout: { canary: 10%, steps: [50%, 100%], hold: 10m, bake: 30m }
"""
_SHOWN = ((5, 10), (30, 3), (sys.maxsize, 1))  # with up to so many models, so many releases of each
_FILTERS = {"model": None, "stage": None, "by": None, "held": ("yes", "no")}
_FIELDS_MAX = 300
_ROLLOUTS_MAX = 12
_PLACE = re.compile(r"^[^:\s]*:(\d+):\d+\s+(?:([\w.\[\]-]+): )?")


@dataclass(frozen=True, slots=True)
class FileError:
    """One mistake in the file; `line` is None where no line is to blame."""

    line: int | None
    text: str
    path: str = ""  # of the value, as the form names it


@dataclass(frozen=True, slots=True)
class Place:
    """A release in one stage."""

    stage: StageHead
    badge: Badge
    base: str
    canary: str
    share: float | None
    here: bool


def _place(release: str, stage: StageHead) -> Place:
    base, canary = two_releases(stage)
    here = release in stage.releases or release == base
    badge = words.stage_badge(stage) if here or release == canary else Badge("off", "off", "Not deployed")
    return Place(stage, badge, base, canary, stage.releases.get(release), here)


@require_safe
@page
def releases(request: PageRequest) -> HttpResponse:
    """The newest releases of every model, or with `?model=` all of one, a page at a time."""
    stages: dict[str, list[str]] = {}
    seen = seen_by(request.user)
    for model, _, stage in (key.partition("/") for key in stage_keys()):  # only their names: no look at what runs there
        if model in seen:
            stages.setdefault(model, []).append(stage)
    wanted, before = filters.read(request, _FILTERS), request.GET.get("before", "")
    one = wanted["model"]
    found: Mapping[str, Sequence[ReleaseHead | ReleaseView]]
    if one:
        access_model(request.user, one)
        number = int(before) if before.isdecimal() and len(before) < 10 else None
        held = {"yes": True, "no": False}.get(wanted["held"])
        found = {one: releases_view(model=one, before=number, stage=wanted["stage"], by=wanted["by"], held=held)}
    else:
        each = next(limit for models, limit in _SHOWN if len(stages) <= models)
        found = releases_newest(models=stages, limit=each)
    context = {
        "title": "Releases",
        "section": "releases",
        "models": [(model, found.get(model, ()), stages.get(model, ())) for model in ([one] if one else stages)],
        "one": one,
        "filter": wanted,
        "model_menu": [(model, model) for model in stages],
        "stage_menu": [(stage, stage) for stage in stages.get(one, ())],
        "held_menu": [("yes", "held"), ("no", "not held")],
        "older": found[one][-1].number if one and len(found[one]) == PAGE and found[one][-1].number > 1 else None,
    }
    return show(request, "releases", context)


@require_safe
@page
def release(request: PageRequest, model: str, number: int) -> HttpResponse:
    """One release, against the one before it or the one that `?against=` names."""
    access_model(request.user, model)
    newest = releases_view(model=model)
    view = next((found for found in newest if found.number == number), None) or release_view(model=model, number=number)
    others = [other for other in newest if other.number != number]
    against = _against(others, number, request.GET.get("against", ""))
    stages, may = stage_heads(model=model, simulated=frozenset()), actions_of(request.user, model)
    return show(
        request,
        "release",
        {
            "title": f"{model}, release {number}",
            "section": "releases",
            "now": datetime.now(UTC),
            "release": view,
            "key": f"{model}@{number}",
            "others": others,
            "against": against,
            "diff": diffs.compare(against.yaml, view.yaml) if against else (),
            "changes": diff_view(model=model, number=number, against=against.number) if against else None,
            "pools": _pools(against, view),
            "places": [_place(f"{model}@{number}", stage) for stage in stages],
            "may_roll_back": Action.ROLL_BACK in may,
            "may_start": Action.START in may,
            "takes": {"roll_back": roles_for(Action.ROLL_BACK), "start": roles_for(Action.START)},
        },
    )


@require_POST
@page
def release_let_go(request: PageRequest, model: str, number: int) -> HttpResponse:
    """Let automation deploy a release again that was taken back."""
    access_model(request.user, model, Action.START)
    reason = request.POST.get("reason", "").strip()[:200]
    attempt(
        request,
        lambda: release_resume(model=model, number=number, actor=actor(request), via="ui", reason=reason),
        done=f"Automation may deploy release {number} again.",
    )
    return redirect(reverse("release", args=(model, number)))


@require_safe
@page
def release_rollouts(request: PageRequest, model: str, number: int) -> HttpResponse:
    """The newest rollouts to a release and away from it, a part of its page."""
    access_model(request.user, model)
    found = rollouts_view(model=model, release=number, limit=_ROLLOUTS_MAX)
    return whole(request, "_rollouts", {"rollouts": found, "with_stage": True})


def _against(others: Sequence[ReleaseView], number: int, asked: str) -> ReleaseView | None:
    if asked.isdecimal():
        return next((other for other in others if other.number == int(asked)), None)
    return max((other for other in others if other.number < number), key=lambda other: other.number, default=None)


def _pools(before: ReleaseView | None, after: ReleaseView) -> list[tuple[str, str, bool]]:
    """Each pool with its generation hash, and whether that is the one of the release before."""
    return [
        (role, digest, before is not None and before.generations.get(role) == digest)
        for role, digest in after.generations.items()
        if role != "compat"
    ]


def file_errors(run: DryRunView) -> list[FileError]:
    """Mistakes with the line that each names."""
    found = [(_PLACE.match(text), text) for text in run.file_errors]
    return [FileError(int(match[1]) if match else None, text, (match[2] or "") if match else "") for match, text in found]


def _starting_text(request: PageRequest) -> tuple[str, str]:
    """The text to begin with, and where it is from: the release asked for, or the newest of any model."""
    asked = request.GET.get("from", "")
    model, _, number = asked.partition("@")
    if number.isdecimal():
        access_model(request.user, model)
        return release_view(model=model, number=int(number)).yaml, f"Starts from {model}, release {number}."
    return EXAMPLE, "Starts from an example: put in your model, weights, recipe and fleets."


def _run_context(request: PageRequest, run: DryRunView) -> dict[str, object]:
    model = run.release.partition("@")[0]
    return {
        "may_release": Action.START in actions_of(request.user, model),
        "takes": roles_for(Action.START),
        "model": model,
        "run": run,
        "file_errors": file_errors(run),
        "running": run.state != "done",
        "can": run.state == "done" and not run.error_count and not run.file_errors,
    }


@require_http_methods(["GET", "HEAD", "POST"])
@page
def release_new(request: PageRequest) -> HttpResponse:
    """The editor. A POST runs the text dry, or with `action=release` makes it a release."""
    if request.method != "POST":
        return _editor(request, *_starting_text(request))
    yaml = request.POST.get("yaml", "").replace("\r\n", "\n")
    if request.POST.get("action") == "release":
        return _create(request, yaml)
    try:
        access_release(request.user, yaml, Action.SEE)
        context = _run_context(request, dry_run_view(id=dry_run_create(yaml=yaml, actor=actor(request)).pk))
    except DenvError as error:
        context = {"failed": error}
    return whole(request, "_dry_run", context) if request.htmx else _editor(request, yaml, more=context)


@require_POST
@page
def release_fields(request: PageRequest) -> JsonResponse:
    """The text as a form; with `path` and `value`, the text with that value changed, and its form."""
    yaml = request.POST.get("yaml", "").replace("\r\n", "\n")
    if path := request.POST.get("path", ""):
        yaml = with_value(yaml, path, request.POST.get("value", ""))
    fields = [{"path": field.path, "value": field.value} for field in fields_of(yaml)[:_FIELDS_MAX]]
    return JsonResponse({"yaml": yaml, "fields": fields})


def _editor(
    request: PageRequest, yaml: str, start: str = "", *, status: int = 200, more: Mapping[str, object] | None = None
) -> HttpResponse:
    context = {"title": "New release", "section": "releases", "yaml": yaml, "start": start, **(more or {})}
    return whole(request, "release_new", context, status=status)


def _create(request: PageRequest, yaml: str) -> HttpResponse:
    note = request.POST.get("note", "").strip()[:200]
    try:
        access_release(request.user, yaml, Action.START)
        made = release_create(yaml=yaml, actor=actor(request), via="ui", note=note, how=How(dry_run=request.POST.get("dry_run", "")[:24]))
    except NotFoundError:
        raise
    except DenvError as error:
        write_refusal(request, error)
        messages.error(request, f"Not released: {error.detail}", extra_tags="bad")
        return _editor(request, yaml, status=409, more={"failed": error})
    number, model = made.release.number, made.release.model.name
    messages.success(request, f"Release {number} of {model} is written down, and its rollout begins.", extra_tags="ok")
    return redirect(reverse("release", args=(model, number)))


@require_safe
@page
def dry_run(request: PageRequest, dry_run: str) -> HttpResponse:
    """How far a dry run is; the page asks until it is done, and then stops by itself."""
    return whole(request, "_dry_run", _run_context(request, access_dry_run(request.user, dry_run_view(id=dry_run))))
