"""The overview: is something wrong, where, and is it mine?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from denvweb.access import seen_by
from fleets.selectors import fleet_maps
from frontend import attention, spark, words
from frontend.pages.base import PageRequest, page, seen_stages, show
from frontend.spark import Spark
from metrics.domain.views import FrameView, MetricsView
from metrics.selectors import events_view, frame_view, metrics_view
from releases.domain.views import AlarmView, StageView
from releases.selectors.stages import stages_view

_SPAN_S = 1800.0
_STEP_S = 20.0
_SHORTEST = 9  # steps that a sparkline shows at least
_RATE_SPAN_S = 60.0
_EVENTS = 8


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

    view: StageView
    per_s: float | None
    error_ratio: float | None
    errors_over: bool
    ttft: MetricCell
    itl: MetricCell
    base: str
    base_share: float
    canary: str
    canary_share: float


def line(frame: FrameView, name: str, release: str) -> tuple[float | None, ...]:
    """One release's line; where its units differ in whose prefill they kept, the first that has a figure."""
    found = [line.values for line in frame.lines if line.name == name and words.release_of(line.group) == release]
    return tuple(next((value for value in column if value is not None), None) for column in zip(*found, strict=True))


def _last(values: Sequence[float | None]) -> float | None:
    """The newest figure of the last five steps; older ones are no present."""
    return next((value for value in reversed(values[-5:]) if value is not None), None)


def _alarm(stage: StageView, metric: str) -> AlarmView | None:
    return next((alarm for alarm in stage.alarms if alarm.metric == metric), None)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def metric_cell(stage: StageView, frame: FrameView, metric: str, base: str, canary: str) -> MetricCell:
    """TTFT or ITL of one stage: the line of what you have, that of what is on trial, and the limit."""
    alarm = _alarm(stage, metric)
    limit_s = alarm.limit_s if alarm else None
    base_line, canary_line = line(frame, f"{metric}.p99", base), line(frame, f"{metric}.p99", canary)
    value_s = _last(base_line)
    if value_s is None and not canary and alarm is not None:
        value_s = alarm.value
    canary_s = _last(canary_line)
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


def two_releases(stage: StageView) -> tuple[str, str]:
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


def row(stage: StageView, frame: FrameView, now_figures: MetricsView) -> Row:
    """Everything the table says of one stage."""
    base, canary = two_releases(stage)
    total = now_figures.total
    error_alarm = _alarm(stage, "error-rate")
    limit = error_alarm.limit_ratio if error_alarm else None
    return Row(
        view=stage,
        per_s=total.per_s if total.requests else 0.0,
        error_ratio=total.error_ratio,
        errors_over=bool(limit is not None and total.error_ratio is not None and total.error_ratio > limit),
        ttft=metric_cell(stage, frame, "ttft", base, canary),
        itl=metric_cell(stage, frame, "itl", base, canary),
        base=base,
        base_share=stage.releases.get(base, 0.0),
        canary=canary,
        canary_share=stage.releases.get(canary, 0.0),
    )


def _frames(stages: Sequence[StageView], now: datetime) -> tuple[dict[str, FrameView], int]:
    """The lines of all stages, cut to where the first of them begins, and how many minutes that is."""
    frames = {
        stage.stage: frame_view(stage=stage.stage, names=("ttft.p99", "itl.p99"), span_s=_SPAN_S, step_s=_STEP_S, by="release", now=now)
        for stage in stages
    }
    points = max((len(frame.at) for frame in frames.values()), default=0)
    lines = [line.values for frame in frames.values() for line in frame.lines]
    first = min((index for values in lines for index, value in enumerate(values) if value is not None), default=0)
    skip = max(0, min(first, points - _SHORTEST))
    cut = {
        name: replace(frame, at=frame.at[skip:], lines=tuple(replace(line, values=line.values[skip:]) for line in frame.lines))
        for name, frame in frames.items()
    }
    return cut, round((points - skip) * _STEP_S / 60)


@require_safe
@page
def overview(request: PageRequest) -> HttpResponse:
    """All stages on one page."""
    now = datetime.now(UTC)
    stages, fleets = seen_stages(request, stages_view()), fleet_maps()
    needs, moves = attention.needs_person(stages, fleets), attention.moving(stages)
    frames, minutes = _frames(stages, now)
    rows = [
        row(stage, frames[stage.stage], metrics_view(stage=stage.stage, span_s=_RATE_SPAN_S, by="release", now=now)) for stage in stages
    ]
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
    stages = seen_stages(request, stages_view())
    needs = attention.needs_person(stages, fleet_maps())
    bad = any(item.badge.tone == "bad" for item in (*needs, *attention.moving(stages)))
    return render(request, "frontend/_attention.html", {"count": len(needs), "tone": "bad" if bad else "warn"})
