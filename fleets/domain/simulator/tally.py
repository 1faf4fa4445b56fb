"""Quantiles of millions of values in a few hundred counters."""

from __future__ import annotations

from math import exp, log

from fleets.domain.simulator.types import Quantiles

_PER_E = 100  # buckets are 1% wide


class Tally:
    """Counts of positive seconds in buckets 1% wide."""

    __slots__ = ("counts", "n", "total_s")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.n = 0
        self.total_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """`count` values of `seconds`."""
        index = int(log(seconds) * _PER_E + 10_000) if seconds > 1e-9 else 0
        counts = self.counts
        counts[index] = counts.get(index, 0) + count
        self.n += count
        self.total_s += seconds * count

    def quantile(self, q: float) -> float | None:
        """Nearest rank, at the middle of its bucket."""
        if not self.n:
            return None
        left = q * self.n
        last = 0
        for index, count in sorted(self.counts.items()):
            left -= count
            last = index
            if left <= 1e-9:
                break
        return exp((last - 10_000 + 0.5) / _PER_E) if last else 0.0

    def quantiles(self) -> Quantiles:
        """Mean and the usual three."""
        mean = self.total_s / self.n if self.n else None
        return Quantiles(self.n, mean, self.quantile(0.5), self.quantile(0.9), self.quantile(0.99))
