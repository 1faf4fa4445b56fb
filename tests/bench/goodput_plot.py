"""A plain line chart as SVG: no fonts, scripts or libraries of its own, readable on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 64, 130, 24, 56
COLOURS = ("#2563eb", "#b45309", "#15803d", "#9333ea", "#475569")
DASHES = ("", "6 4", "2 4", "10 4 2 4", "1 3")  # colour alone would not tell them apart for everybody


@dataclass(frozen=True, slots=True)
class Line:
    """One series. `main` is drawn thicker."""

    name: str
    points: tuple[tuple[float, float], ...]
    main: bool = False


def round_step(wanted: float) -> float:
    """1, 2 or 5 times a power of ten: the largest that is not over `wanted`."""
    power = 10.0 ** math.floor(math.log10(wanted))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= wanted * (1 + 1e-9))


def plot(lines: Sequence[Line], *, x: str, y: str) -> str:
    """The chart, from 0 upwards on the vertical axis."""
    xs = sorted({at for line in lines for at, _ in line.points})
    top = max(value for line in lines for _, value in line.points) * 1.08 or 1.0
    low, high = (xs[0], xs[-1]) if len(xs) > 1 else (xs[0] - 0.5, xs[0] + 0.5)

    def place(at: float, value: float) -> tuple[float, float]:
        return LEFT + (at - low) / (high - low) * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(y)} over {escape(x)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    step = round_step(top / 4)
    for value in (count * step for count in range(int(top / step) + 1)):
        left, height = place(low, value)
        parts.append(f'<path d="M{left:.0f} {height:.1f}H{WIDTH - RIGHT}" stroke="#d4d4d8"/>')
        parts.append(f'<text x="{left - 8:.0f}" y="{height + 4:.1f}" text-anchor="end" fill="#3f3f46">{value:g}</text>')
    for at in xs:
        across, _ = place(at, 0)
        parts.append(f'<text x="{across:.0f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" fill="#3f3f46">{at:g}</text>')
    middle = (HEIGHT - BOTTOM + TOP) / 2
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle" fill="#18181b">{escape(x)}</text>')
    parts.append(f'<text transform="translate(16 {middle:.0f}) rotate(-90)" text-anchor="middle" fill="#18181b">{escape(y)}</text>')
    for index, line in enumerate(lines):
        parts += _drawn(line, [place(*point) for point in line.points], index)
    return "\n".join([*parts, "</svg>", ""])


def _drawn(line: Line, places: Sequence[tuple[float, float]], index: int) -> list[str]:
    """The line, its points, and its entry in the legend."""
    colour, dash, width = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)], 3.5 if line.main else 2
    style = f'stroke="{colour}" stroke-width="{width}"' + (f' stroke-dasharray="{dash}"' if dash else "")
    way = "L".join(f"{across:.1f} {height:.1f}" for across, height in places)
    legend_y = TOP + 14 + index * 22
    return [
        f'<path d="M{way}" fill="none" {style}/>',
        *(f'<circle cx="{across:.1f}" cy="{height:.1f}" r="3.5" fill="{colour}"/>' for across, height in places),
        f'<path d="M{WIDTH - RIGHT + 12} {legend_y}h26" fill="none" {style}/>',
        f'<text x="{WIDTH - RIGHT + 44}" y="{legend_y + 4}" fill="#18181b">{escape(line.name)}</text>',
    ]
