"""The regularised incomplete beta function in log space, and the interval of a proportion that comes of it.

Log space, because evidence compares numbers such as 1e-400 with each other. Stdlib only: the domain needs no SciPy.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, expm1, inf, lgamma, log, log1p

_TINY = 1e-300
_PRECISION = 1e-15
_MAX_STEPS = 20_000  # about the square root of a or b are needed, so this is beyond any count


def log_beta(a: float, b: float) -> float:
    """log B(a, b)."""
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def log1mexp(x: float) -> float:
    """log(1 - e^x) for x <= 0, without cancelling (Maechler, "Accurately computing log(1 - exp(-|a|))", 2012)."""
    if x >= 0:
        return -inf
    return log(-expm1(x)) if x > -0.6931471805599453 else log1p(-exp(x))


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b) by Lentz's method (Numerical Recipes, 3rd ed., 6.4); quick for x < (a+1)/(a+b+2)."""
    c = 1.0
    d = 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _MAX_STEPS):
        step = 1.0
        for term in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + term / c
            c = c if abs(c) > _TINY else _TINY
            step = d * c
            value *= step
        if abs(step - 1.0) < _PRECISION:
            break
    return value


def log_betainc(a: float, b: float, x: float) -> tuple[float, float]:
    """(log I_x(a, b), log (1 - I_x(a, b))): each is exact even where the other is nearly 0."""
    if x <= 0:
        return -inf, 0.0
    if x >= 1:
        return 0.0, -inf
    front = a * log(x) + b * log1p(-x) - log_beta(a, b)
    if x < (a + 1) / (a + b + 2):
        below = min(0.0, front - log(a) + log(_fraction(a, b, x)))
        return below, log1mexp(below)
    above = min(0.0, front - log(b) + log(_fraction(b, a, 1 - x)))
    return log1mexp(above), above


def log_sum(terms: list[float]) -> float:
    """log of the sum of what the terms are the logs of; -inf for none."""
    top = max(terms, default=-inf)
    return top if top == -inf else top + log(sum(exp(term - top) for term in terms))


@lru_cache(maxsize=4096)
def interval(n: int, k: float, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson bounds of a proportion after k of n: never too narrow. k may be a sum of shares. n = 0: all is possible."""
    if n <= 0:
        return 0.0, 1.0
    tail = log((1 - confidence) / 2)
    if k <= 0:
        return 0.0, -expm1(tail / n)  # (1 - p)^n is the tail
    if k >= n:
        return exp(tail / n), 1.0
    return _quantile(k, n - k + 1, 0, tail), _quantile(k + 1, n - k, 1, tail)


def _quantile(a: float, b: float, side: int, tail: float) -> float:
    """Where I_x(a, b) (side 0) or 1 - I_x(a, b) (side 1) has the logarithm `tail`: Newton's method, kept within a bracket."""
    low, high = 0.0, 1.0
    x: float = min(
        max(a / (a + b) + (2 * side - 1) * 2 * (a * b / (a + b + 1)) ** 0.5 / (a + b), 0.1 * a / (a + b)), 0.9 + 0.1 * a / (a + b)
    )
    for _ in range(60):
        value = log_betainc(a, b, x)[side]
        low, high = (x, high) if (value < tail) is (side == 0) else (low, x)
        slope = (1 - 2 * side) * exp((a - 1) * log(x) + (b - 1) * log1p(-x) - log_beta(a, b) - value)
        following = x - (value - tail) / slope if slope else low
        if abs(following - x) <= 1e-12 + 1e-7 * x:
            return following
        x = following if low < following < high else (low + high) / 2
    return x
