"""Events: who did what, through what, and what was refused?"""

from __future__ import annotations

from datetime import UTC, datetime

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from denvweb.access import seen_by
from frontend.pages.base import PageRequest, page, show
from metrics.selectors import events_view
from releases.selectors.stages import stage_rows

PAGE_SIZE = 50


@require_safe
@page
def events(request: PageRequest) -> HttpResponse:
    """The journal, newest first. Older pages stand still: only the newest one is live."""
    stage, before = request.GET.get("stage", ""), request.GET.get("before", "")
    seen = seen_by(request.user)
    found = events_view(stage=stage, models=seen.only, before=int(before) if before.isdecimal() else None, limit=PAGE_SIZE + 1)
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
            "stage": stage,
            "stages": [key for key in map(str, stage_rows()) if key.partition("/")[0] in seen],
        },
    )
