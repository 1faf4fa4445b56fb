"""Forms that change a stage: roll back, promote, pause, resume. Each goes through the service that API and command use."""

from __future__ import annotations

from dataclasses import replace

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from denvweb.access import Action, access_stage
from denvweb.core.errors import DenvError, NotFoundError
from frontend.pages.base import PageRequest, actor, page, whole, write_refusal
from frontend.pages.stage import will
from releases.selectors.stages import preflight_view, stage_view
from releases.services import rollouts
from releases.services.access import access_promote

_DONE = {
    "promote": "Promoted: the rollout goes on to its next step.",
    "pause": "Paused: traffic stays as it is, alarms stay armed.",
    "resume": "Resumed.",
}


@require_http_methods(["GET", "HEAD", "POST"])
@page
def rollback(request: PageRequest, model: str, name: str) -> HttpResponse:
    """GET asks, for browsers without script; POST rolls back."""
    stage = f"{model}/{name}"
    access_stage(request.user, stage)
    to = (request.POST if request.method == "POST" else request.GET).get("to", "")
    if request.method != "POST":
        view = stage_view(stage=stage)
        if to.isdecimal():
            view = replace(view, preflight=preflight_view(stage=stage, to=int(to)))
        context = {"title": f"Roll back {stage}", "section": "overview", "stage": view, "will": will(view), "to": to}
        return whole(request, "rollback", context)
    try:
        access_stage(request.user, stage, Action.ROLL_BACK)
        rollouts.rollback(
            stage=stage,
            to=int(to) if to.isdecimal() else None,
            actor=actor(request),
            via="ui",
            reason=request.POST.get("reason", "").strip()[:200],
        )
    except NotFoundError:
        raise
    except DenvError as error:
        write_refusal(request, error, stage=stage)
        messages.error(request, f"Not rolled back: {error.detail}", extra_tags="bad")
    else:
        messages.success(
            request, "Rolling back. It was written down before this page answered, and goes on whatever happens to it.", extra_tags="ok"
        )
    return redirect(reverse("stage", args=(model, name)))


@require_POST
@page
def act(request: PageRequest, model: str, name: str, action: str) -> HttpResponse:
    """Promote, pause or resume the stage's rollout; a promotion names the generation that the person saw."""
    stage = f"{model}/{name}"
    generation = request.POST.get("generation", "")
    reason = request.POST.get("reason", "").strip()[:200]
    seen = int(generation) if generation.isdecimal() else None
    access_stage(request.user, stage)
    service = {"promote": rollouts.rollout_promote, "pause": rollouts.rollout_pause, "resume": rollouts.rollout_resume}[action]
    try:
        if action == "promote":
            seen = access_promote(request.user, stage, generation=seen)
        else:
            access_stage(request.user, stage, Action.PAUSE)
        service(stage=stage, generation=seen, actor=actor(request), via="ui", reason=reason)
    except NotFoundError:
        raise
    except DenvError as error:
        write_refusal(request, error, stage=stage)
        messages.error(request, f"Refused: {error.detail}", extra_tags="bad")
    else:
        messages.success(request, _DONE[action], extra_tags="ok")
    return redirect(reverse("stage", args=(model, name)))
