"""The overview: is something wrong, where, and is it mine?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from denvweb.access import seen_by
from fleets.domain.views import FleetHead
from fleets.selectors import fleet_heads
from frontend import attention, spark, words
from frontend.pages.base import PageRequest, page, seen_stages, show
from frontend.spark import Spark
from frontend.words import StageLook
from metrics.domain.glance import POINTS, STEP_S, GlanceView, Values
from metrics.selectors import events_view, glances_view
from releases.domain.views import StageHead
from releases.selectors.heads import stage_heads

_SHORTEST = 6  # steps that a sparkline shows at least
_EVENTS = 8
_NOTHING: Values = (None,) * POINTS


@dataclass(frozen=True, slots=True)
class MetricCell:
    """One sparkline with its figure in milliseconds."""

    spark: Spark
    value: float | None
    limit: float | None
    over: bool
    canary_value: float | None
    canary_over: bool
    canary_text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One stage in the table."""

    view: StageHead
    per_s: float | None
    error_ratio: float | None
    errors_over: bool
    ttft: MetricCell
    itl: MetricCell
    base: str
    base_share: float
    canary: str
    canary_share: float


def line(glance: GlanceView, name: str, release: str) -> Values:
    """One release's line; where its units differ in whose prefill they kept, the first that has a figure."""
    found = [by_name[name] for group, by_name in glance.lines.items() if words.release_of(group) == release]
    if len(found) <= 1:
        return found[0] if found else _NOTHING
    return tuple(next((value for value in column if value is not None), None) for column in zip(*found, strict=True))


def _last(values: Values) -> float | None:
    """The newest figure of the last five steps; older ones are no present."""
    return next((value for value in reversed(values[-5:]) if value is not None), None)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def metric_cell(stage: StageHead, glance: GlanceView, metric: str, base: str, canary: str, skip: int = 0) -> MetricCell:
    """TTFT or ITL of one stage: the line of what you have, that of what is on trial, and the limit; without the first `skip` steps."""
    limit_s = stage.limits.get(metric)
    base_line, canary_line = (line(glance, f"{metric}.p99", release)[skip:] for release in (base, canary))
    value_s, canary_s = _last(base_line), _last(canary_line)
    says = f"{value_s * 1000:,.0f} ms now" if value_s is not None else "no figures now"
    limit_says = f", limit {limit_s * 1000:,.0f} ms" if limit_s else ""
    return MetricCell(
        spark=spark.draw(base_line, canary_line, limit_s, f"{stage.stage} {metric.upper()} p99: {says}{limit_says}"),
        value=_ms(value_s),
        limit=_ms(limit_s),
        over=bool(limit_s and value_s and value_s > limit_s),
        canary_value=_ms(canary_s),
        canary_over=bool(limit_s and canary_s and canary_s > limit_s),
        canary_text=words.number_of(canary),
    )


def two_releases(stage: StageLook) -> tuple[str, str]:
    """The keys of what you have and of what is on trial; empty when there is none."""
    base = f"{stage.model}@{stage.release}" if stage.release is not None else ""
    others = [release for release in stage.releases if release != base]
    rollout = stage.rollout
    if rollout is not None and rollout.active:
        to = f"{stage.model}@{rollout.to_release}"
        from_ = f"{stage.model}@{rollout.from_release}" if rollout.from_release is not None else ""
        trial = from_ if to == base else to
        return base or to, trial if base and trial != base else ""
    return base or (others.pop(0) if others else ""), others[0] if others else ""


def row(stage: StageHead, glance: GlanceView, skip: int = 0) -> Row:
    """Everything the table says of one stage."""
    base, canary = two_releases(stage)
    limit, ratio = stage.limits.get("error-rate"), glance.error_ratio
    return Row(
        view=stage,
        per_s=glance.per_s,
        error_ratio=ratio,
        errors_over=bool(limit is not None and ratio is not None and ratio > limit),
        ttft=metric_cell(stage, glance, "ttft", base, canary, skip),
        itl=metric_cell(stage, glance, "itl", base, canary, skip),
        base=base,
        base_share=stage.releases.get(base, 0.0),
        canary=canary,
        canary_share=stage.releases.get(canary, 0.0),
    )


def rows_of(stages: Sequence[StageHead], glances: Mapping[str, GlanceView]) -> tuple[list[Row], int]:
    """The table's rows, their lines cut to where the first of them begins, and how many minutes that is."""
    shown = [glances.get(stage.stage, GlanceView()) for stage in stages]
    lines = [values for glance in shown for by_name in glance.lines.values() for values in by_name.values()]
    first = min((next(index for index, value in enumerate(values) if value is not None) for values in lines if any(values)), default=0)
    skip = max(0, min(first, POINTS - _SHORTEST))
    return [row(stage, glance, skip) for stage, glance in zip(stages, shown, strict=True)], (POINTS - skip) * STEP_S // 60


def _look(request: PageRequest) -> tuple[tuple[StageHead, ...], tuple[FleetHead, ...]]:
    """The stages that the person may see, and all fleets."""
    fleets = fleet_heads()
    heads = stage_heads(simulated=frozenset(fleet.fleet for fleet in fleets if fleet.simulated))
    return seen_stages(request, heads), fleets


@require_safe
@page
def overview(request: PageRequest) -> HttpResponse:
    """All stages on one page."""
    now = datetime.now(UTC)
    stages, fleets = _look(request)
    needs, moves = attention.needs_person(stages, fleets), attention.moving(stages)
    rows, minutes = rows_of(stages, glances_view(now=now))
    return show(
        request,
        "overview",
        {
            "title": "Overview",
            "section": "overview",
            "now": now,
            "verdict": attention.verdict(stages, needs, moves),
            "needs": needs,
            "moves": moves,
            "models": [(model, list(group)) for model, group in groupby(rows, key=lambda row: row.view.model)],
            "stages": stages,
            "minutes": minutes,
            "per_s": sum(row.per_s or 0 for row in rows),
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
