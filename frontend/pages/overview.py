"""The overview: is something wrong, where, and is it mine?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from denvweb.access import Action, actions_of, seen_by
from fleets.domain.views import FleetHead
from fleets.selectors import fleet_heads
from frontend import attention, filters, words
from frontend.pages.base import PageRequest, page, seen_stages, show
from frontend.stagerows import rows_of
from metrics.selectors import events_view, glances_view
from releases.domain.views import STAGE_STATES, StageHead
from releases.selectors.heads import stage_heads

_EVENTS = 8


def _look(request: PageRequest) -> tuple[tuple[StageHead, ...], tuple[FleetHead, ...]]:
    """The stages that the person may see, and all fleets."""
    fleets = fleet_heads()
    heads = stage_heads(simulated=frozenset(fleet.fleet for fleet in fleets if fleet.simulated))
    return seen_stages(request, heads), fleets


def _fit(stages: Sequence[StageHead], wanted: filters.Filter) -> list[StageHead]:
    """Those that the table is asked for. What needs a person is shown whatever the table is."""
    model, state, fleet = wanted["model"], wanted["state"], wanted["fleet"]
    fits = (stage for stage in stages if model in ("", stage.model) and state in ("", stage.state))
    return [stage for stage in fits if not fleet or fleet in stage.fleets]


def _menus(stages: Sequence[StageHead]) -> dict[str, list[tuple[str, str]]]:
    """What can be chosen, by filter: values and their names, of those that there are."""
    models, used = sorted({stage.model for stage in stages}), sorted({fleet for stage in stages for fleet in stage.fleets})
    return {
        "model": [(model, model) for model in models],
        "state": [(state, words.STATES[state].text) for state in STAGE_STATES],
        "fleet": [(fleet, fleet) for fleet in used],
    }


def _theirs(request: PageRequest, items: Sequence[attention.Item]) -> list[attention.Item]:
    """The same, with only those buttons that this person may press; the way to the stage, which says who may, is there for all."""

    def may(item: attention.Item) -> bool:
        able = actions_of(request.user, item.stage.partition("/")[0])
        return (Action.APPROVE if item.action == "promote" else Action.PAUSE) in able

    return [item if not item.action or may(item) else replace(item, action="") for item in items]


@require_safe
@page
def overview(request: PageRequest) -> HttpResponse:
    """All stages on one page."""
    now = datetime.now(UTC)
    stages, fleets = _look(request)
    needs, moves = attention.needs_person(stages, fleets), attention.moving(stages)
    wanted = filters.read(request, {"model": None, "state": STAGE_STATES, "fleet": None})
    glances = glances_view(now=now)
    rows, minutes = rows_of(_fit(stages, wanted), glances)
    return show(
        request,
        "overview",
        {
            "title": "Overview",
            "section": "overview",
            "now": now,
            "verdict": attention.verdict(stages, needs, moves),
            "needs": _theirs(request, needs),
            "oldest": min((item.since for item in needs if item.since), default=None),
            "moves": moves,
            "groups": [(model, list(group)) for model, group in groupby(rows, key=lambda row: row.model)],
            "stages": stages,
            "minutes": minutes,
            "shown": len(rows),
            "filter": wanted,
            "menus": _menus(stages),
            "per_s": sum(glances[stage.stage].per_s for stage in stages if stage.stage in glances),
            "simulated": any(stage.simulated for stage in stages),
            "fleets": fleets,
            "events": events_view(limit=_EVENTS, models=seen_by(request.user).only),
        },
    )


@require_safe
@page
def attention_count(request: PageRequest) -> HttpResponse:
    """The number beside "Overview", on every page."""
    stages, fleets = _look(request)
    needs = attention.needs_person(stages, fleets)
    bad = any(item.badge.tone == "bad" for item in (*needs, *attention.moving(stages)))
    return render(request, "frontend/_attention.html", {"count": len(needs), "tone": "bad" if bad else "warn"})
