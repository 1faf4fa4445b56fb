"""The newest figure beside each alarm, and whether it is over the limit now. No test: those need evidence (metrics.domain.verdict)."""

from __future__ import annotations

from dataclasses import dataclass

from denvweb.core.units import format_ms, format_ratio
from metrics.domain.alarm import NOTHING
from metrics.domain.alarm_text import ERROR_RATE, KV_EFFECTIVE, KV_USE, PREFILL_QUEUE
from metrics.domain.figures import ratio
from metrics.domain.types import AlarmSpec
from metrics.domain.window import Figures

COUNTED = (KV_EFFECTIVE, PREFILL_QUEUE, KV_USE)  # metrics whose figure is that of the alarm's own counts


@dataclass(frozen=True, slots=True)
class AlarmFigure:
    """`value` in seconds, or a share; `text` as a person reads it beside the limit; None and `-` without a sample."""

    value: float | None
    text: str
    state: str  # `ok`, `over`, `no-data`; `rests` for a comparison, which only a rollout can make


def alarm_figure(spec: AlarmSpec, figures: Figures) -> AlarmFigure:
    """The figure of one alarm from the sums of some minutes."""
    if spec.over is not None:
        return AlarmFigure(None, "-", "rests")
    if spec.metric in COUNTED:
        return _of_counts(spec, figures)
    if spec.metric == ERROR_RATE:
        value, limit = ratio(figures.counters.get("errors", 0), figures.counters.get("requests", 0)), spec.p0
        return AlarmFigure(value, format_ratio(value), _state(value, limit))
    value = figures.histogram(spec.metric).quantile(1 - spec.p0)
    return AlarmFigure(value, format_ms(value), _state(value, spec.limit_s or 0.0))


def _of_counts(spec: AlarmSpec, figures: Figures) -> AlarmFigure:
    count = figures.alarms.get(spec.key, NOTHING)
    over = count.k / count.n if count.n else None
    state = _state(over, spec.p0)
    if over is None:
        return AlarmFigure(None, "-", state)
    if spec.metric == KV_EFFECTIVE:
        return AlarmFigure(1 - over, format_ratio(1 - over), state)
    trials = "readings" if spec.metric == KV_USE else "requests"
    return AlarmFigure(over, f"{format_ratio(over)} of {trials} over", state)


def _state(value: float | None, limit: float) -> str:
    return "no-data" if value is None else "over" if value > limit else "ok"
