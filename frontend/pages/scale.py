"""Scaling a stage by hand: what is in force, what the traffic asks for, and who holds which number."""

from __future__ import annotations

from collections.abc import Mapping

from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from denvweb.access import Action, access_stage, actions_of, roles_for
from denvweb.core.errors import InvalidError
from fleets.domain.scaling.types import Knob
from frontend.pages.base import PageRequest, actor, attempt, page, show
from releases.domain.scaling_views import ScaleView
from releases.selectors.scaling import scale_view
from releases.services.scaling import stage_scale

_WHAT = {"units": "serving units", "prefill": "prefill replicas of each unit", "decode": "decode replicas of each unit"}


@require_http_methods(["GET", "HEAD", "POST"])
@page
def scale(request: PageRequest, model: str, name: str) -> HttpResponse:
    """GET shows the numbers; POST sets those that were changed, or with `auto` gives all of them back to the traffic."""
    stage = f"{model}/{name}"
    access_stage(request.user, stage)
    if request.method == "POST":
        access_stage(request.user, stage, Action.SCALE)
        auto = "auto" in request.POST
        done = "The traffic decides again." if auto else "Set: these numbers stay until they are changed or given back."
        attempt(request, lambda: _set(request, stage, auto), done=done, stage=stage, refused="Not scaled")
        return redirect(reverse("stage-scale", args=(model, name)))
    view = scale_view(stage=stage)
    return show(
        request,
        "scale",
        {
            "title": f"Scale {stage}",
            "section": "overview",
            "model": model,
            "name": name,
            "scale": view,
            "knobs": [(knob, _WHAT.get(knob.knob, f"{knob.knob} replicas of each unit")) for knob in view.knobs],
            "held": any(knob.held_by for knob in view.knobs),
            "may_scale": Action.SCALE in actions_of(request.user, model),
            "roles": roles_for(Action.SCALE),
        },
    )


def _set(request: PageRequest, stage: str, auto: bool) -> None:
    counts = {} if auto else _changed(request.POST, scale_view(stage=stage))
    if not auto and not counts:
        raise InvalidError("no number was changed")
    reason = request.POST.get("reason", "").strip()[:200]
    stage_scale(stage=stage, counts=counts, auto=auto, reason=reason, actor=actor(request), via="ui")


def _changed(posted: Mapping[str, str], view: ScaleView) -> dict[Knob, int]:
    """Only what is another number now: a number that nobody touched stays with the traffic."""
    asked = {knob: posted.get(knob.knob, "") for knob in view.knobs}
    return {Knob(knob.knob): int(text) for knob, text in asked.items() if text.isdecimal() and len(text) < 6 and int(text) != knob.in_force}
