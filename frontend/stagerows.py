"""The rows of the stages' table. What changes seldom of a row is drawn once for each thing that it may say.

A cell that was drawn is kept under everything that it shows, so it is never old: another state, share or count is another cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from frontend import words
from frontend.cells import MetricCell, metric_cell
from frontend.words import Badge, StageLook
from metrics.domain.glance import POINTS, STEP_S, GlanceView
from releases.domain.views import StageHead

_SHORTEST = 6  # steps that a sparkline shows at least
_KEPT = 4096  # cells of each kind; a stage has few at a time


@dataclass(frozen=True, slots=True)
class Facts:
    """What a row says beside its figures."""

    stage: str
    model: str
    name: str
    fleets: tuple[str, ...]
    simulated: bool
    badge: Badge
    sentence: str  # empty while the stage is steady
    base: str
    base_share: float
    canary: str
    canary_share: float


@dataclass(frozen=True, slots=True)
class Row:
    """One stage in the table."""

    stage: str
    model: str
    tone: str
    facts: SafeString  # its first three cells
    per_s: float | None
    error_ratio: float | None
    errors_over: bool
    ttft: MetricCell
    itl: MetricCell
    units: SafeString


@lru_cache(maxsize=_KEPT)
def facts_cells(facts: Facts) -> SafeString:
    """Stage, state, and release with its traffic."""
    return render_to_string("frontend/_stage_facts.html", {"row": facts})


@lru_cache(maxsize=_KEPT)
def units_cell(ready: int, wanted: int) -> SafeString:
    """How many units are ready of those that are wanted."""
    return render_to_string("frontend/_stage_units_ready.html", {"ready": ready, "wanted": wanted})


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
    limit, ratio, badge = stage.limits.get("error-rate"), glance.error_ratio, words.stage_badge(stage)
    facts = Facts(
        stage=stage.stage,
        model=stage.model,
        name=stage.name,
        fleets=stage.fleets,
        simulated=stage.simulated,
        badge=badge,
        sentence="" if stage.state == "steady" else stage.sentence,
        base=base,
        base_share=stage.releases.get(base, 0.0),
        canary=canary,
        canary_share=stage.releases.get(canary, 0.0),
    )
    return Row(
        stage=stage.stage,
        model=stage.model,
        tone=badge.tone,
        facts=facts_cells(facts),
        per_s=glance.per_s,
        error_ratio=ratio,
        errors_over=bool(limit is not None and ratio is not None and ratio > limit),
        ttft=metric_cell(stage, glance, "ttft", base, canary, skip),
        itl=metric_cell(stage, glance, "itl", base, canary, skip),
        units=units_cell(stage.units_ready, stage.replicas),
    )


def rows_of(stages: Sequence[StageHead], glances: Mapping[str, GlanceView]) -> tuple[list[Row], int]:
    """The table's rows, their lines cut to where the first of them begins, and how many minutes that is."""
    shown = [glances.get(stage.stage, GlanceView()) for stage in stages]
    lines = [values for glance in shown for by_name in glance.lines.values() for values in by_name.values()]
    first = min((next(index for index, value in enumerate(values) if value is not None) for values in lines if any(values)), default=0)
    skip = max(0, min(first, POINTS - _SHORTEST))
    return [row(stage, glance, skip) for stage, glance in zip(stages, shown, strict=True)], (POINTS - skip) * STEP_S // 60
