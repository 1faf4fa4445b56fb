"""The stage: is the new release worse, why, and what if I go back?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.http import HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from denvweb.access import Action, access_approve, access_stage, actions_of
from denvweb.core import units
from denvweb.core.errors import ForbiddenError
from fleets.api.access import access_fleet_maps
from fleets.domain.views import FleetMap, UnitView
from fleets.selectors import units_view
from frontend import charts, evidence, gpumap, stagecharts, timerange, unitpic, words
from frontend.buttons import buttons
from frontend.generations import generations
from frontend.gpumap import Tenant
from frontend.pages.assets import plotly_version
from frontend.pages.base import PageRequest, page, show, whole
from frontend.stagerows import two_releases
from metrics.domain.views import MetricsView
from metrics.selectors import metrics_view
from releases.domain.synthetic import synthetic_text
from releases.domain.views import PlanStepView, RolloutView, StageView
from releases.selectors.heads import drawn_head
from releases.selectors.stages import stage_view

_RATE_SPAN_S = 60.0


@dataclass(frozen=True, slots=True)
class Step:
    """One stop of the rail."""

    view: PlanStepView
    css: str  # `done`, `now`, `todo`
    when: str
    passed_s: float | None  # of a hold
    total_s: float | None
    hold: str


@dataclass(frozen=True, slots=True)
class Will:
    """A line of what a rollback will do."""

    when: str
    what: str


def steps(rollout: RolloutView, now: datetime) -> tuple[Step, ...]:
    """The rail, with the time that a hold has taken."""
    return tuple(_step(step, now) for step in rollout.plan.steps)


def _step(step: PlanStepView, now: datetime) -> Step:
    css = {"done": "done", "now": "now", "stopped": "now"}.get(step.state, "todo")
    when = "" if step.started_at is None else words.when(step.started_at, now)
    if css == "done" and step.started_at is not None and step.ended_at is not None:
        when = words.span(step.started_at, step.ended_at, now)
    passed_s = total_s = None
    hold = ""
    if step.state == "now" and step.started_at and step.ends_at and step.ends_at > step.started_at:
        total_s = (step.ends_at - step.started_at).total_seconds()
        passed_s = min(total_s, max(0.0, (now - step.started_at).total_seconds()))
        hold = f"{units.format_duration(passed_s)} of {units.format_duration(total_s)}"
    return Step(step, css, when, passed_s, total_s, hold)


def own_approval(user: AbstractBaseUser, rollout: RolloutView | None) -> str:
    """Why whoever may approve others' rollouts may not approve this one; empty where they may."""
    if rollout is None or rollout.reason != "approval" or user.get_username() != rollout.started_by:
        return ""
    try:
        access_approve(user, rollout.stage, started_by=rollout.started_by)
    except ForbiddenError as error:
        return error.detail
    return ""


def will(stage: StageView) -> tuple[Will, ...]:
    """What a rollback does now, to what is in flight, then and after."""
    flight, warm = stage.preflight, stage.preflight.warm_units
    if not flight.possible or flight.to_release is None:
        return ()  # the preflight's own sentence says it all
    target = f"{stage.model}@{flight.to_release}"
    if warm:
        units_text = words.plural(warm, "warm unit")
        now = f"Release {flight.to_release} takes all traffic on {units_text}: {words.share(flight.capacity_ratio)} of capacity."
    else:
        now = f"No unit of release {flight.to_release} is warm: one is brought up first, and traffic stays where it is until it is ready."
    going = sum(count for release, count in stage.routers.inflight.items() if release != target)
    lines = [Will("now", now), Will("in flight", f"{words.plural(going, 'request')} on the newer release may finish; none is cut.")]
    if flight.full_after_s:
        lines.append(Will("then", f"All {flight.desired_units} units are back after about {units.format_duration(flight.full_after_s)}."))
    lines.append(Will("after", "The release that you leave is not deployed here again by itself until a person lifts the hold."))
    return tuple(lines)


def drawings(units: Sequence[UnitView], base: str, maps: Sequence[FleetMap], figures: MetricsView) -> tuple[unitpic.Drawing, ...]:
    """All units of a stage, each with its figures and its domain; `base` is the release that is not on trial."""
    by_unit = {group.group: group for group in figures.groups}
    domains = {domain.domain: domain for fleet in maps for domain in fleet.domains}
    who = {unit.unit: Tenant(unit.release, bool(base) and unit.release != base) for unit in units}

    def drawing(unit: UnitView) -> unitpic.Drawing:
        domain = domains.get(unit.domain)
        picture = gpumap.draw(domain, who) if domain else None
        nodes = len(domain.nodes) if domain else 0
        return unitpic.draw(unit, who[unit.unit].canary, by_unit.get(unit.unit), figures.span_s, picture, nodes)

    return tuple(drawing(unit) for unit in sorted(units, key=lambda unit: unit.slot))


def _rollout_context(stage: StageView, now: datetime) -> dict[str, Any]:
    rollout = stage.rollout
    if rollout is None:
        return {"rollout": None}
    return {
        "rollout": rollout,
        "rail": steps(rollout, now),
        "evidence": evidence.table(rollout.verdicts, ended=not rollout.active),
        "synthetic": synthetic_text(rollout.verdicts),
    }


def _living(request: PageRequest, stage: StageView, now: datetime) -> dict[str, Any]:
    may = actions_of(request.user, stage.model)
    base, canary = two_releases(stage)
    return {
        "stage": stage,
        "base": base,
        "canary": canary,
        "model": stage.model,
        "name": stage.name,
        "buttons": buttons(stage.rollout, may, refused=own_approval(request.user, stage.rollout)),
        "may_keys": Action.ADMIN in may,
        "will": will(stage),
        "generations": generations(stage),
        **_rollout_context(stage, now),
    }


@require_safe
@page
def stage(request: PageRequest, model: str, name: str) -> HttpResponse:
    """The page, with empty places for the charts: their figures come from a source of their own."""
    now = datetime.now(UTC)
    access_stage(request.user, f"{model}/{name}")
    view = stage_view(stage=f"{model}/{name}")
    return show(
        request,
        "stage",
        {
            "title": view.stage,
            "section": "overview",
            "now": now,
            "range": (seen := timerange.of(request.GET.dict(), now)),
            "links": timerange.links(seen, now),
            "presets": timerange.PRESETS,
            "plotly_version": plotly_version(),
            "charts": stagecharts.stubs(),
            **_living(request, view, now),
        },
    )


@require_safe
@page
def stage_charts(request: PageRequest, model: str, name: str) -> HttpResponse:
    """The figures alone, for the page's script, and the events that are drawn on them."""
    now = datetime.now(UTC)
    seen = timerange.of(request.GET.dict(), now)
    access_stage(request.user, f"{model}/{name}")
    head = drawn_head(stage=f"{model}/{name}")
    marks = stagecharts.marks(head.stage, seen)
    built = stagecharts.build(head, seen, marks)
    shown = [{"letter": mark.letter, "at": mark.at.strftime("%H:%M:%S"), "text": mark.text} for mark in marks]
    bar = {
        "query": seen.query,
        "text": seen.text,
        "every_ms": seen.every_ms,
        "pin": timerange.pin(built.since, built.until),
        "links": timerange.links(seen, now),
    }
    return JsonResponse({"charts": charts.plain(built.charts), "marks": shown, "range": bar})


@require_safe
@page
def stage_units(request: PageRequest, model: str, name: str) -> HttpResponse:
    """The units as drawings, a part of the page with a life of its own; `base` is the release that the page has as not on trial."""
    now, key = datetime.now(UTC), f"{model}/{name}"
    access_stage(request.user, key)
    units = units_view(stage=key, now=now)
    maps = access_fleet_maps(request.user, names=tuple({unit.fleet for unit in units})) if units else ()
    figures = metrics_view(stage=key, span_s=_RATE_SPAN_S, by="unit", now=now)
    drawn = drawings(units, request.GET.get("base", ""), maps, figures)
    return whole(request, "_units", {"drawings": drawn, "per_s": figures.total.per_s})
