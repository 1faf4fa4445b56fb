"""API keys of a stage's clients: made, limited and taken back, by whoever administers the model."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from denvweb.access import Action, access_stage
from denvweb.core.errors import InvalidError
from fleets.domain.allowance import Allowance
from fleets.selectors import keys_view
from fleets.services import key_create, key_revoke, keys_require
from frontend.pages import once
from frontend.pages.base import PageRequest, actor, attempt, page, show

LIMITS = {"requests_per_min": "requests a minute", "tokens_per_min": "tokens a minute", "at_once": "requests at once"}


@require_safe
@page
def keys(request: PageRequest, model: str, name: str) -> HttpResponse:
    """Who has a key, and what it may ask for; a new one is shown once."""
    stage = f"{model}/{name}"
    access_stage(request.user, stage, Action.ADMIN)
    context = {"title": f"API keys of {stage}", "section": "overview", "model": model, "name": name, "limits": LIMITS}
    return show(request, "keys", {**context, "now": datetime.now(UTC), "keys": keys_view(stage=stage), "shown_once": once.take(request)})


def _number(form: QueryDict, field: str) -> int:
    text = form.get(field, "").replace(",", "").replace("_", "").strip()
    if text and not (text.isascii() and text.isdecimal()):
        raise InvalidError(f"The {LIMITS[field]} must be a whole number, or empty for no limit.", code="bad-allowance")
    return int(text[:20] or 0)


def _create(request: PageRequest, stage: str, form: QueryDict) -> None:
    days = form.get("days", "")
    expires_at = datetime.now(UTC) + timedelta(days=int(days)) if days in {"30", "90", "365"} else None
    made = key_create(
        stage=stage,
        client=form.get("client", "").replace("\0", ""),
        allowance=Allowance(*(_number(form, field) for field in LIMITS)),
        expires_at=expires_at,
        actor=actor(request),
        via="ui",
    )
    once.keep(request, f"API key {made.key.id} of {made.key.client}", made.text)


def _revoke(request: PageRequest, stage: str, form: QueryDict) -> None:
    key_revoke(stage=stage, key=form.get("id", ""), actor=actor(request), via="ui")


def _require(request: PageRequest, stage: str, form: QueryDict) -> None:
    keys_require(stage=stage, required=form.get("required") == "1", actor=actor(request), via="ui")


ACTS: dict[str, tuple[Callable[[PageRequest, str, QueryDict], None], str]] = {
    "create": (_create, "The key is made. Copy it now: it is shown this once."),
    "revoke": (_revoke, "The key is revoked: routers refuse it as soon as they have the new table."),
    "require": (_require, "It is so from now on."),
}


@require_POST
@page
def keys_act(request: PageRequest, model: str, name: str, action: str) -> HttpResponse:
    """One of the page's forms."""
    stage = f"{model}/{name}"
    access_stage(request.user, stage, Action.ADMIN)
    act, done = ACTS[action]
    attempt(request, lambda: act(request, stage, request.POST), done=done, stage=stage)
    return redirect(reverse("stage-keys", args=(model, name)))
