"""Settings: my tokens and browsers, my name in Slack; where notices go and when nothing goes forward."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from zoneinfo import available_timezones

from django.conf import settings as django_settings
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from denvweb.access import seen_by
from denvweb.core.errors import ForbiddenError, InvalidError, NotFoundError
from frontend import filters
from frontend.accounts.sessions import session_end, sessions_of
from frontend.accounts.tokens import token_make, token_revoke, tokens_of
from frontend.models import SlackApp, SlackUser
from frontend.oidc.people import identities_of, identity_unlink
from frontend.pages import once
from frontend.pages.base import PageRequest, actor, attempt, page, person, show
from frontend.slack.people import Caller, unlink
from metrics.selectors import channels_view
from metrics.services import channel_create, channel_delete, channel_switch
from releases.domain.freeze_reader import FreezeRequest
from releases.domain.freezes import DAYS
from releases.selectors.freezes import freeze_windows_view
from releases.selectors.heads import stage_keys
from releases.services.access import access_freeze
from releases.services.freezes import freeze_window_create, freeze_window_delete


@require_safe
@page
def settings(request: PageRequest) -> HttpResponse:
    """All of it; what only administrators may change is there only for them."""
    user, now = person(request), datetime.now(UTC)
    seen = seen_by(user)
    linked = SlackUser.objects.filter(account=user).order_by("team", "user")
    return show(
        request,
        "settings",
        {
            "title": "Settings",
            "section": "settings",
            "now": now,
            "tokens": tokens_of(user),
            "sessions": sessions_of(user, current_key=request.session.session_key),
            "shown_once": once.take(request),
            "oidc": django_settings.OIDC,
            "identities": identities_of(user),
            "linked": linked,
            "slack": SlackApp.objects.first(),
            "channels": channels_view() if user.is_superuser else None,
            "freezes": [window for window in freeze_windows_view() if window.model in seen],
            "days": DAYS,
            "zones": _zones(),
            "stages": [key for key in stage_keys() if key.partition("/")[0] in seen],
        },
    )


@cache
def _zones() -> tuple[str, ...]:
    """Time zones by name. They are files, hundreds of them, and are looked for once."""
    return tuple(sorted(zone for zone in available_timezones() if "/" in zone or zone == "UTC"))


def _administrator(request: PageRequest) -> None:
    if not person(request).is_superuser:
        raise ForbiddenError("Only an administrator may see and change where notices go.")


def _token_make(request: PageRequest, form: QueryDict) -> None:
    days = form.get("days", "")
    name = form.get("name", "").strip()[:80]
    text = token_make(user=person(request), name=name, days=int(days) if days.isdecimal() and int(days) else None, via="ui")
    once.keep(request, f"token {name}".strip(), text)


def _channel_make(request: PageRequest, form: QueryDict) -> None:
    _administrator(request)
    kind, name, address = (form.get(field, "").strip() for field in ("kind", "name", "address"))
    if kind not in ("slack", "webhook") or not 0 < len(name) <= 60 or not 0 < len(address) <= 500:
        raise InvalidError("A place for notices has a kind, a name and an address.")
    private = "allow_private" in form
    _, secret = channel_create(kind=kind, name=name, address=address, allow_private=private, actor=actor(request), via="ui")
    once.keep(request, f"key that calls of webhook {name} are signed with", secret)


def _channel_switch(request: PageRequest, form: QueryDict) -> None:
    _administrator(request)
    channel_switch(id=form.get("id", ""), enabled=form.get("enabled") == "1", actor=actor(request), via="ui")


def _channel_delete(request: PageRequest, form: QueryDict) -> None:
    _administrator(request)
    channel_delete(id=form.get("id", ""), actor=actor(request), via="ui")


def _slack_unlink(request: PageRequest, form: QueryDict) -> None:
    unlink(Caller(form.get("team", ""), form.get("user", "")), account=person(request), via="ui")


def _freeze_make(request: PageRequest, form: QueryDict) -> None:
    model, _, stage = form.get("where", "").partition("/")
    asked = FreezeRequest(
        zone=form.get("zone", ""),
        reason=form.get("reason", "").strip(),
        model=model,
        stage=stage,
        days=tuple(form.getlist("days")),
        start=form.get("start", ""),
        end=form.get("end", ""),
        begins_at=filters.moment(form.get("begins_at", "")),
        ends_at=filters.moment(form.get("ends_at", "")),
    )
    access_freeze(person(request), asked.model)
    freeze_window_create(asked=asked, actor=actor(request), via="ui")


def _freeze_delete(request: PageRequest, form: QueryDict) -> None:
    seen = seen_by(request.user)
    found = next((view for view in freeze_windows_view() if view.id == form.get("id") and view.model in seen), None)
    if found is None:
        raise NotFoundError("There is no such freeze window.")
    access_freeze(person(request), found.model)
    freeze_window_delete(id=found.id, actor=actor(request), via="ui")


_Act = Callable[[PageRequest, QueryDict], None]
ACTS: dict[str, tuple[_Act, str]] = {
    "token-make": (_token_make, "The token is made. Copy it now: it is shown this once."),
    "token-revoke": (lambda request, form: token_revoke(id=form.get("id", ""), user=person(request), via="ui"), "The token is revoked."),
    "session-end": (
        lambda request, form: session_end(id=form.get("id", ""), user=person(request), via="ui"),
        "That browser is signed out.",
    ),
    "channel-make": (_channel_make, "Notices go there from now on."),
    "channel-switch": (_channel_switch, "Done."),
    "channel-delete": (_channel_delete, "It is removed."),
    "slack-unlink": (_slack_unlink, "That Slack account is nobody here any more."),
    "oidc-unlink": (
        lambda request, form: identity_unlink(id=form.get("id", ""), account=person(request), via="ui"),
        "You sign in that way no longer.",
    ),
    "freeze-make": (_freeze_make, "The freeze window is set. Rollbacks are exempt from it."),
    "freeze-delete": (_freeze_delete, "The freeze window is removed; what it held goes on."),
}


@require_POST
@page
def settings_act(request: PageRequest, action: str) -> HttpResponse:
    """One of the page's forms."""
    act, done = ACTS[action]
    attempt(request, lambda: act(request, request.POST), done=done)
    return redirect(reverse("settings"))
