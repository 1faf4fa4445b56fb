"""Forms that change a stage: roll back, promote, pause, resume. Each goes through the service that API and command use."""

from __future__ import annotations

from collections.abc import Callable
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
from releases.selectors.rollouts import rollout_view
from releases.selectors.stages import preflight_view, stage_view
from releases.services import rollouts
from releases.services.access import access_promote

_SERVICES: dict[str, Callable[..., object]] = {
    "promote": lambda **asked: rollouts.rollout_promote(**asked),
    "pause": lambda **asked: rollouts.rollout_pause(**asked),
    "resume": lambda **asked: rollouts.rollout_resume(**asked),
    "abort": lambda **asked: rollouts.rollout_abort(**asked),
}
_DONE = {
    "promote": "Promoted: the rollout goes on to its next step.",
    "pause": "Paused: traffic stays as it is, alarms stay armed.",
    "resume": "Resumed.",
    "abort": "Aborting: all traffic goes back. It was written down before this page answered.",
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
    """Promote, pause, resume or abort the stage's rollout; a promotion names the generation that the person saw.

    From a rollout's own page it is that rollout and no later one, and that page is shown again.
    """
    stage = f"{model}/{name}"
    generation, asked = request.POST.get("generation", ""), request.POST.get("rollout", "")
    reason = request.POST.get("reason", "").strip()[:200]
    seen = int(generation) if generation.isdecimal() else None
    access_stage(request.user, stage)
    one = {"rollout_id": _rollout_of(stage, asked)} if asked else {}
    try:
        if action == "promote":
            seen = access_promote(request.user, stage, generation=seen)
        else:
            access_stage(request.user, stage, Action.ROLL_BACK if action == "abort" else Action.PAUSE)
        _SERVICES[action](stage=stage, generation=seen, actor=actor(request), via="ui", reason=reason, **one)
    except NotFoundError:
        raise
    except DenvError as error:
        write_refusal(request, error, stage=stage)
        stale = error.code == "stale-generation"  # nobody did anything wrong: what was looked at is not so any more
        messages.add_message(
            request, messages.INFO if stale else messages.ERROR, f"Refused: {error.detail}", extra_tags="info" if stale else "bad"
        )
    else:
        messages.success(request, _DONE[action], extra_tags="ok")
    return redirect(reverse("rollout", args=(asked,)) if asked else reverse("stage", args=(model, name)))


def _rollout_of(stage: str, id: str) -> str:
    """The rollout, if it is one of the stage that the person's roles were asked for."""
    if not id.isascii() or "\0" in id or rollout_view(id=id).stage != stage:
        raise NotFoundError(f"There is no such rollout of {stage}.")
    return id
