"""What if the traffic were another? And the ratio of prefill to decode: in force, and advised."""

from __future__ import annotations

import random
from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from denvweb.access import access_stage
from denvweb.core.errors import ConflictError, InvalidError
from fleets.domain.sizing.size import size
from fleets.domain.sizing.types import Need
from fleets.domain.sizing.whatif import what_if as ask
from frontend import charts, whatif
from frontend.pages.assets import plotly_version
from frontend.pages.base import PageRequest, page, whole
from releases.selectors.ground import Ground, sizing_ground
from releases.selectors.scaling import scale_view

_REQUESTS = 600  # of a simulation that a page waits for
_ANSWER = "wi-answer"


@require_safe
@page
def what_if(request: PageRequest, model: str, name: str) -> HttpResponse:
    """The page; and the answer alone when a slider was moved."""
    stage = f"{model}/{name}"
    access_stage(request.user, stage)
    context: dict[str, Any] = {"title": f"What if: {stage}", "section": "overview", "model": model, "name": name}
    try:
        ground = sizing_ground(stage=stage)
    except ConflictError as error:
        return whole(request, "what_if", {**context, "absent": error.detail})
    form = whatif.sliders(ground, request.GET.dict())
    context |= {"form": form, "measured": ground.traffic is not None, "charts": whatif.stubs(), **_answer(ground, whatif.need_of(form))}
    if request.htmx and request.htmx.target == _ANSWER:
        return whole(request, "_what_if_answer", context)
    return whole(request, "what_if", {**context, "plotly_version": plotly_version()})


def _answer(ground: Ground, need: Need) -> dict[str, Any]:
    found = ask(ground.serving, need, ground.shape, random.Random)
    figures = {"charts": charts.plain(whatif.figures(found, need)), "marks": []}
    return {"need": need, "found": found, "rows": whatif.rows(found), "figures": figures}


@require_safe
@page
def ratio(request: PageRequest, model: str, name: str) -> HttpResponse:
    """A panel of the stage page: the scaling's own advice where it has given one, else what sizing makes of the measured traffic."""
    stage = f"{model}/{name}"
    access_stage(request.user, stage)
    scale = scale_view(stage=stage)
    context: dict[str, Any] = {"model": model, "name": name, "scale": scale, "advised": scale.ratio_advised, "why": scale.why}
    if not scale.ratio_advised:
        context |= _sized(stage)
    return whole(request, "_ratio", context)


def _sized(stage: str) -> dict[str, str]:
    """From the last hour's traffic."""
    try:
        ground = sizing_ground(stage=stage)
        in_force = whatif.shape_text(ground.shape)
        if ground.traffic is None:
            return {"in_force": in_force, "why": "nothing came in the last hour, so nothing is advised"}
        need = Need(ground.traffic, ground.limits, requests=_REQUESTS)
        found = size(ground.serving, need, random.Random, aggregated=len(ground.shape.pools) == 1)
    except (ConflictError, InvalidError) as error:
        return {"why": error.detail}
    return {
        "in_force": in_force,
        "advised": whatif.shape_text(found.shape),
        "why": f"{found.bottleneck.value} is the bottleneck of that: {found.why}",
    }
