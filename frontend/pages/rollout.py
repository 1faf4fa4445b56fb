"""One rollout: how far is it, on what evidence did each step pass, what does it wait for, and what if it went back?"""

from __future__ import annotations

from datetime import UTC, datetime

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from denvweb.access import access_stage, actions_of
from denvweb.core import units
from frontend import evidence, words
from frontend.buttons import buttons
from frontend.pages.base import PageRequest, page, show, whole
from frontend.pages.stage import own_approval, steps, will
from metrics.selectors import events_view
from releases.domain.synthetic import synthetic_text
from releases.domain.views import DiffView, RolloutView
from releases.selectors.releases import diff_view
from releases.selectors.rollouts import rollout_view, rollouts_view
from releases.selectors.stages import stage_view
from releases.services.access import access_rollout

_EVENTS_MAX = 100
_OTHERS_MAX = 8
_GOING_BACK = ("rolling-back", "rollback-blocked")


@require_safe
@page
def rollout(request: PageRequest, id: str) -> HttpResponse:
    """The page. The way back is a part with a life of its own: it is worked out of all that stands on the stage."""
    now, view = datetime.now(UTC), access_rollout(request.user, rollout_view(id=id))
    model, _, name = view.stage.partition("/")
    others = [other for other in rollouts_view(stage=view.stage, limit=_OTHERS_MAX + 1) if other.id != id][:_OTHERS_MAX]
    return show(
        request,
        "rollout",
        {
            "title": f"{_name(view)} of {view.stage}",
            "section": "overview",
            "now": now,
            "rollout": view,
            "heading": _name(view),
            "share": words.share(view.weight_bp / 10_000),
            "model": model,
            "name": name,
            "rail": steps(view, now),
            "evidence": evidence.table(view.verdicts, ended=not view.active),
            "synthetic": synthetic_text(view.verdicts),
            "took": units.format_duration((view.ended_at - view.started_at).total_seconds()) if view.ended_at else "",
            "buttons": (may := buttons(view, actions_of(request.user, model), refused=own_approval(request.user, view))),
            "may_abort": may.roll_back and view.active and view.state not in _GOING_BACK,
            "diff": _diff(view, model),
            "events": events_view(rollout=id, limit=_EVENTS_MAX),
            "events_max": _EVENTS_MAX,
            "others": others,
        },
    )


def _name(view: RolloutView) -> str:
    start = f"{view.from_release} → " if view.from_release is not None else "to release "
    return f"{view.kind.capitalize()} {start}{view.to_release}"


def _diff(view: RolloutView, model: str) -> DiffView | None:
    if view.from_release is None:
        return None
    return diff_view(model=model, number=view.to_release, against=view.from_release)


@require_safe
@page
def way_back(request: PageRequest, model: str, name: str) -> HttpResponse:
    """What going back would do now, and the form that does it; no more of a rollout that a later one has taken over from."""
    key = f"{model}/{name}"
    access_stage(request.user, key)
    stage = stage_view(stage=key)
    view = stage.rollout if stage.rollout is not None and stage.rollout.id == request.GET.get("rollout", "") else None
    context = {"rollout": view, "stage": stage, "will": will(stage), "buttons": buttons(view, actions_of(request.user, model))}
    return whole(request, "_way_back", context)
