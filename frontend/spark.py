"""Sparklines as SVG. All share one scale: 0 to the limit, the limit at one height, what is above it red and thick.

The box is a unit wide for each step and four units high for each pixel, so that paths are small whole numbers, most of them
relative: a third of the text that points with decimals take, which counts where hundreds of stages have two lines each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

HEIGHT = 128
LIMIT_Y = 36
TOP_Y = -16
_NONE_Y = 112  # of the dashes in place of a line
_SCALE_WITHOUT_LIMIT = 1.6
_TALLEST = HEIGHT - TOP_Y
_STEPS = {by: f"l1{'' if by < 0 else ' '}{by}" if by else "h1" for by in range(-_TALLEST, _TALLEST + 1)}  # one on, so much down

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Spark:
    """Paths in a box of `width` by `HEIGHT`. A gap in the figures is a gap in the line."""

    base: str
    area: str
    canary: str
    base_over: bool
    canary_over: bool
    limit: bool
    label: str
    width: int

    @property
    def svg(self) -> SafeString:
        """The drawing. Only its label holds what anybody typed."""
        parts = [
            f'<path class="a" d="{self.area}"/>' if self.area else "",
            f'<path class="lim" d="M0 {LIMIT_Y}h{self.width}"/>' if self.limit else "",
            "" if self.base or self.canary else f'<path class="none" d="M0 {_NONE_Y}h{self.width}"/>',
            _stroke("b", self.base, self.base_over),
            _stroke("c", self.canary, self.canary_over),
        ]
        box = f'viewBox="0 0 {self.width} {HEIGHT}" preserveAspectRatio="none"'
        return mark_safe(f'<svg class="spark" {box} role="img" aria-label="{escape(self.label)}">{"".join(parts)}</svg>')


def _stroke(css: str, path: str, over: bool) -> str:
    if not path:
        return ""
    above = f'<path class="over" clip-path="url(#above)" d="{path}"/>' if over else ""
    return f'<path class="{css}" d="{path}"/>{above}'


def _runs(values: Values) -> Iterator[tuple[int, Sequence[float]]]:
    """Stretches without a gap, each with the index of its first step."""
    ended, begun = (*values, None), 0
    while begun < len(ended):
        end = ended.index(None, begun)
        if begun < end:
            yield begun, cast(Sequence[float], values[begun:end])
        begun = end + 1


def paths(values: Values, limit: float) -> tuple[str, str]:
    """The line, and what lies under it; a lone sample is a short dash, or it would not be seen."""
    if values.count(None) == len(values):  # most stages have nothing on trial
        return "", ""
    line, area = [], []
    scale = (HEIGHT - LIMIT_Y) / limit
    for begun, run in _runs(values):
        heights = [int(value * scale + 0.5) for value in run]
        if max(heights) > _TALLEST:
            heights = [min(_TALLEST, height) for height in heights]
        steps = "".join([_STEPS[before - after] for before, after in pairwise(heights)])
        line.append(f"M{begun} {HEIGHT - heights[0]}{steps or 'h1'}")
        if steps:
            area.append(f"M{begun} {HEIGHT}v-{heights[0]}{steps}V{HEIGHT}z")
    return "".join(line), "".join(area)


def draw(base: Values, canary: Values, limit: float | None, label: str) -> Spark:
    """One cell of the stages' table; without a limit the scale is the data's own."""
    base_most, canary_most = max(filter(None, base), default=0.0), max(filter(None, canary), default=0.0)
    scale = limit or max(base_most, canary_most) * _SCALE_WITHOUT_LIMIT or 1.0
    line, area = paths(base, scale)
    return Spark(
        base=line,
        area=area,
        canary=paths(canary, scale)[0],
        base_over=limit is not None and base_most > limit,
        canary_over=limit is not None and canary_most > limit,
        limit=limit is not None,
        label=label,
        width=max(1, len(base) - 1),
    )
