"""Least squares for a handful of parameters: Levenberg-Marquardt with derivatives by differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_STEP = 0.03  # of a difference: simulations jump a little, so it is wide
_ROUNDS = 25
_DAMPINGS = 6  # tries of a round
_FARTHEST = 0.5  # that a parameter moves in one round
_ENOUGH = 1e-4  # relative gain under which it stops

Residuals = Callable[[Sequence[float]], list[float]]


def fitted(residuals: Residuals, start: Sequence[float]) -> list[float]:
    """The parameters with the least sum of squared residuals that is reached from `start`."""
    best, left = list(start), residuals(start)
    cost, damping = _squares(left), 1e-2
    for _ in range(_ROUNDS):
        slopes = [_slope(residuals, best, index) for index in range(len(best))]
        downhill = [-sum(s * r for s, r in zip(slope, left, strict=True)) for slope in slopes]
        for _ in range(_DAMPINGS):
            trial = _moved(best, slopes, downhill, damping)
            found = residuals(trial)
            if _squares(found) < cost:
                break
            damping *= 5
        else:
            return best
        gain = cost - _squares(found)
        best, left, cost, damping = trial, found, cost - gain, damping / 5
        if gain < _ENOUGH * (cost + gain):
            break
    return best


def _squares(values: Sequence[float]) -> float:
    return sum(value * value for value in values)


def _slope(residuals: Residuals, at: Sequence[float], index: int) -> list[float]:
    ends = [[value + sign * _STEP * (index == i) for i, value in enumerate(at)] for sign in (1, -1)]
    return [(high - low) / (2 * _STEP) for high, low in zip(residuals(ends[0]), residuals(ends[1]), strict=True)]


def _moved(at: Sequence[float], slopes: Sequence[Sequence[float]], downhill: Sequence[float], damping: float) -> list[float]:
    rows = [
        [sum(a * b for a, b in zip(one, other, strict=True)) * (1 + damping * (i == k)) + 1e-9 * (i == k) for k, other in enumerate(slopes)]
        for i, one in enumerate(slopes)
    ]
    step = _solved(rows, downhill)
    factor = min(1.0, _FARTHEST / max(1e-12, *(abs(value) for value in step)))
    return [value + factor * change for value, change in zip(at, step, strict=True)]


def _solved(rows: list[list[float]], right: Sequence[float]) -> list[float]:
    """Gauss and Jordan, with pivots."""
    size = len(right)
    full = [[*row, value] for row, value in zip(rows, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(full[row][column]))
        full[column], full[pivot] = full[pivot], full[column]
        for row in range(size):
            if row != column:
                factor = full[row][column] / full[column][column]
                full[row] = [a - factor * b for a, b in zip(full[row], full[column], strict=True)]
    return [full[row][size] / full[row][row] for row in range(size)]
