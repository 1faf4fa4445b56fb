"""Events: who did what, through what, and what was refused? And is the journal whole?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from denvweb.access import seen_by
from denvweb.core.errors import ForbiddenError
from frontend import filters
from frontend.pages.base import PageRequest, page, person, show
from metrics.selectors import chain_view, events_view
from releases.selectors.heads import stage_keys

PAGE_SIZE = 50
LEVELS = ("info", "warn", "bad")
THROUGH = ("ui", "api", "cli", "slack", "alarm", "system")
KINDS = {
    "": "everything",
    "change.refused": "what was refused",
    "rollout.": "rollouts",
    "rollback.": "rollbacks",
    "release.": "releases",
    "alarm.": "alarms",
    "node.": "nodes",
    "role.": "roles",
    "token.": "tokens",
    "freeze.": "freeze windows",
}


ALLOWED = {"stage": None, "kind": KINDS, "level": LEVELS, "actor": None, "via": THROUGH, "text": None, "since": None, "until": None}


@require_safe
@page
def events(request: PageRequest) -> HttpResponse:
    """The journal, newest first. Older pages stand still: only the newest one is live."""
    wanted, before = filters.read(request, ALLOWED), request.GET.get("before", "")
    asked: dict[str, Any] = {**wanted, **{name: filters.moment(wanted[name]) for name in ("since", "until")}}
    seen = seen_by(request.user)
    until = int(before) if before.isdecimal() else None
    found = events_view(**asked, models=seen.only, before=until, limit=PAGE_SIZE + 1)
    return show(
        request,
        "events",
        {
            "title": "Events",
            "section": "events",
            "now": datetime.now(UTC),
            "events": found[:PAGE_SIZE],
            "older": found[PAGE_SIZE - 1].seq if len(found) > PAGE_SIZE else None,
            "paged": bool(before),
            "filter": wanted,
            "kinds": KINDS,
            "levels": LEVELS,
            "through": THROUGH,
            "stages": [key for key in stage_keys() if key.partition("/")[0] in seen],
        },
    )


@require_POST
@page
def audit_verify(request: PageRequest) -> HttpResponse:
    """Check the journal against its chain of hashes."""
    if not person(request).is_superuser:
        raise ForbiddenError("Only an administrator may check the journal: it reads all of it.")
    found = chain_view(head=request.POST.get("head", "").strip()[:64])
    if found.problem:
        messages.error(request, f"The journal is not whole: {found.problem}. {found.checked:,} links before that hold.", extra_tags="bad")
    else:
        messages.success(
            request,
            f"The journal is whole: {found.checked:,} links hold. Note its head down to check against later: {found.head}",
            extra_tags="ok",
        )
    return redirect(reverse("events"))
