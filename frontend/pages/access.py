"""Access: who may do what, and why may I not?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from denvweb.access import ALLOWED, EVERY_MODEL, Action, Role, access_model, actions_of, roles_of, seen_by
from denvweb.core.errors import InvalidError, NotFoundError
from frontend import filters
from frontend.accounts.roles import GrantView, grant_give, grant_take, grants_of, policies, policy_set
from frontend.pages.base import PageRequest, attempt, page, person, show
from releases.selectors.heads import stage_keys

_SHOWN = 25  # models; each brings two forms
ROLES = tuple(role for role in Role if role is not Role.NONE)


@dataclass(frozen=True, slots=True)
class OfModel:
    """What the page says of one model, or of all at once."""

    model: str
    name: str
    mine: tuple[str, ...]  # what the reader may do
    may_change: bool
    grants: tuple[GrantView, ...]
    approver_differs: bool


def _models(request: PageRequest, wanted: str, most: int | None) -> tuple[list[OfModel], int]:
    """Every model at once first, then those whose name has `wanted` in it, at most `most`; and how many there are of these."""
    user = person(request)
    grants: dict[str, list[GrantView]] = defaultdict(list)
    for grant in grants_of(user):
        grants[grant.model].append(grant)
    rules, seen = policies(), seen_by(user)
    names = sorted({stage.partition("/")[0] for stage in stage_keys()} | (grants.keys() - {EVERY_MODEL}))
    fit = [name for name in names if name in seen and wanted in name]
    return [
        OfModel(
            model=model,
            name="every model" if model == EVERY_MODEL else model,
            mine=tuple(action.value for action in Action if action in actions_of(user, model)),
            may_change=user.is_superuser or (model != EVERY_MODEL and Action.ADMIN in actions_of(user, model)),
            grants=tuple(grants[model]),
            approver_differs=rules.get(model, False),
        )
        for model in (*(() if wanted else (EVERY_MODEL,)), *fit[:most])
    ], len(fit)


@require_safe
@page
def access(request: PageRequest) -> HttpResponse:
    """Roles and what they may do; who has which for what; the rules of each model."""
    wanted = filters.read(request, {"model": None, "all": ("yes",)})
    models, fit = _models(request, wanted["model"], None if wanted["all"] else _SHOWN)
    table = [(action.value, [action in ALLOWED[role] for role in ROLES]) for action in Action]
    return show(
        request,
        "access",
        {
            "title": "Access",
            "section": "access",
            "roles": [role.value for role in ROLES],
            "table": table,
            "models": models,
            "fit": fit,
            "hidden": max(0, fit - _SHOWN) if not wanted["all"] else 0,
            "filter": wanted,
            "mine": roles_of(request.user),
            "everybody": settings.DEFAULT_ROLE,
        },
    )


def _give(user: User, name: str, model: str, role: str) -> None:
    if model != EVERY_MODEL:
        access_model(user, model)
    try:
        grant_give(name=name, model=model, role=role, by=user, via="ui")
    except NotFoundError as error:  # the model is there: it is the name that is wrong, and the form is to say so
        raise InvalidError(error.detail) from error


@require_POST
@page
def access_act(request: PageRequest, action: str) -> HttpResponse:
    """Give a role, take one, or set a rule."""
    user, posted = person(request), request.POST
    model = posted.get("model", "")
    if action == "give":
        name, role = posted.get("user", "").strip()[:150].replace("\0", ""), posted.get("role", "")
        if role in ROLES:
            attempt(request, lambda: _give(user, name, model, role), done=f"{name} is {role} of {model} now.")
    elif action == "take" and posted.get("id", "").isdecimal():
        attempt(request, lambda: grant_take(id=int(posted["id"]), by=user, via="ui"), done="The role is taken away.")
    elif action == "policy":
        differs = "approver_differs" in posted
        attempt(request, lambda: policy_set(model=model, approver_differs=differs, by=user, via="ui"), done="The rule is set.")
    return redirect(reverse("access"))
