"""A node: what would become of what runs there, and taking it out of use or back."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from denvweb.access import EVERY_MODEL, Action, actions_of, seen_by
from fleets.api.access import access_nodes
from fleets.selectors import drain_plan, node_standing
from fleets.services import node_cordon, node_drain
from frontend import words
from frontend.pages.base import PageRequest, actor, attempt, page, show

_DONE = {
    "cordon": "{} takes nothing new; what runs there goes on.",
    "uncordon": "{} takes new ranks again.",
    "drain": "{} is being drained: its units are replaced elsewhere, each as soon as there is room.",
}


@require_safe
@page
def node(request: PageRequest, name: str) -> HttpResponse:
    """The node and the plan of a drain; units of models that one may not see stay nameless."""
    access_nodes(request.user)
    standing, plan = node_standing(node=name), drain_plan(node=name)
    seen = seen_by(request.user)
    return show(
        request,
        "node",
        {
            "title": name,
            "section": "fleets",
            "node": standing,
            "plan": plan,
            "moves": [move for move in plan.moves if move.stage.partition("/")[0] in seen],
            "hidden": sum(move.stage.partition("/")[0] not in seen for move in plan.moves),
            "badge": words.node_badge(standing.state.value, standing.cordoned),
            "may": Action.PAUSE in actions_of(request.user, EVERY_MODEL),
        },
    )


@require_POST
@page
def node_act(request: PageRequest, name: str, action: str) -> HttpResponse:
    """Cordon, uncordon or drain."""
    access_nodes(request.user)
    node_standing(node=name)  # there is such a node
    reason = request.POST.get("reason", "").strip()[:200]

    def do() -> None:
        access_nodes(request.user, Action.PAUSE)
        if action == "drain":
            node_drain(node=name, actor=actor(request), via="ui", reason=reason)
        else:
            node_cordon(node=name, cordoned=action == "cordon", actor=actor(request), via="ui", reason=reason)

    attempt(request, do, done=_DONE[action].format(name))
    return redirect(reverse("node", args=(name,)))
