"""Sparklines as SVG paths. All share one scale: 0 to the limit, the limit at one height, what is above it red and thick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 120
HEIGHT = 32
LIMIT_Y = 9
_TOP_Y = -4.0
_SCALE_WITHOUT_LIMIT = 1.6

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Spark:
    """Paths in a box of 120 by 32. A gap in the figures is a gap in the line."""

    base: str
    area: str
    canary: str
    base_over: bool
    canary_over: bool
    limit: bool
    label: str

    @property
    def empty(self) -> bool:
        """Nothing was measured."""
        return not (self.base or self.canary)


def _y(value: float, limit: float) -> float:
    return max(_TOP_Y, HEIGHT - value / limit * (HEIGHT - LIMIT_Y))


def _runs(values: Values) -> list[list[tuple[int, float]]]:
    """Stretches without a gap, as (index, value)."""
    runs: list[list[tuple[int, float]]] = [[]]
    for index, value in enumerate(values):
        if value is not None:
            runs[-1].append((index, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def line(values: Values, limit: float) -> str:
    """The line's path; a lone sample is a short dash, or it would not be seen."""
    step = WIDTH / max(1, len(values) - 1)
    parts = []
    for run in _runs(values):
        points = [f"{index * step:.1f},{_y(value, limit):.1f}" for index, value in run]
        parts.append(f"M{' '.join(points)}" if len(points) > 1 else f"M{points[0]}h2")
    return "".join(parts)


def area(values: Values, limit: float) -> str:
    """What lies under the line."""
    step = WIDTH / max(1, len(values) - 1)
    return "".join(
        f"M{run[0][0] * step:.1f},{HEIGHT} "
        + " ".join(f"{index * step:.1f},{max(0.0, _y(value, limit)):.1f}" for index, value in run)
        + f" {run[-1][0] * step:.1f},{HEIGHT}Z"
        for run in _runs(values)
        if len(run) > 1
    )


def draw(base: Values, canary: Values, limit: float | None, label: str) -> Spark:
    """One cell of the stages' table; without a limit the scale is the data's own."""
    known = [value for value in (*base, *canary) if value is not None]
    scale = limit or max(known, default=1.0) * _SCALE_WITHOUT_LIMIT or 1.0
    return Spark(
        base=line(base, scale),
        area=area(base, scale),
        canary=line(canary, scale),
        base_over=limit is not None and any(value is not None and value > limit for value in base),
        canary_over=limit is not None and any(value is not None and value > limit for value in canary),
        limit=limit is not None,
        label=label,
    )
