"""A figure of the stages' table: the line of its last half hour, its newest value and its limit.

Put together here and not in a template: hundreds of stages have two of them each, and a template takes ten times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from frontend import spark, words
from frontend.spark import Spark
from metrics.domain.glance import POINTS, GlanceView, Values
from releases.domain.views import StageHead

_NOTHING: Values = (None,) * POINTS


@dataclass(frozen=True, slots=True)
class MetricCell:
    """One sparkline with its figure in milliseconds."""

    name: str  # `TTFT p99`
    spark: Spark
    value: float | None
    limit: float | None
    over: bool
    canary_value: float | None
    canary_over: bool
    canary_text: str

    @property
    def html(self) -> SafeString:
        """The cell's inside. Of what is not numbers and fixed words each is escaped."""
        parts = [
            f'<div class="metric">{self.spark.svg}<span data-l="{escape(self.name)}">',
            _bold(words.whole(self.value), self.over),
            f' <span class="dimmer">of {words.whole(self.limit)}</span>' if self.limit else "",
            "" if self.canary_value is None else self._canary(self.canary_value),
            "</span></div>",
        ]
        return mark_safe("".join(parts))

    def _canary(self, value: float) -> str:
        text = f"{escape(self.canary_text)}: {words.whole(value)}"
        return f'<span class="sub canary-t">{_bold(text, True) if self.canary_over else text}</span>'


def _bold(text: str, over: bool) -> str:
    return f'<b class="bad-t">{text}</b>' if over else f"<b>{text}</b>"


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
        name=f"{metric.upper()} p99",
        spark=spark.draw(base_line, canary_line, limit_s, f"{stage.stage} {metric.upper()} p99: {says}{limit_says}"),
        value=_ms(value_s),
        limit=_ms(limit_s),
        over=bool(limit_s and value_s and value_s > limit_s),
        canary_value=_ms(canary_s),
        canary_over=bool(limit_s and canary_s and canary_s > limit_s),
        canary_text=words.number_of(canary),
    )
