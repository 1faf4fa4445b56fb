"""Latency histograms that add up: log-spaced buckets with a bounded relative error.

The buckets are those of DDSketch (Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile sketch with
relative-error guarantees", VLDB 2019). Bucket i holds the values in [G^i, G^(i+1)), and 2 G^(i+1) / (G + 1) is within
(G - 1) / (G + 1) of each of them. Histograms of routers, units and windows merge without losing anything, so quantiles
are always taken of merged buckets and never averaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import log

from metrics.domain.types import HistogramData

RELATIVE_ERROR = 0.01
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
MIN_S = 1e-6  # shorter than any latency that a router can see; counted as zero

_SCALE = 1 / log(GAMMA)
_SHIFT = 1000  # keeps what `int` cuts positive: log_G(MIN_S) is -691, and cutting is cheaper than flooring
_MIDDLE = 2 * GAMMA / (GAMMA + 1)
LOWEST_BUCKET = int(log(MIN_S) * _SCALE + _SHIFT) - _SHIFT  # of anything that is not zero


def bucket_of(seconds: float) -> int:
    """The bucket of a latency over `MIN_S`."""
    return int(log(seconds) * _SCALE + _SHIFT) - _SHIFT


def bucket_value_s(index: int) -> float:
    """The value that stands for a whole bucket, in seconds."""
    return _MIDDLE * math.exp(index / _SCALE)


class Histogram:
    """Counts of seconds. A plain class with slots: `record` runs once a token on the router's path."""

    __slots__ = ("buckets", "count", "sum", "zeros")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.sum = 0.0
        self.zeros = 0

    def record(self, seconds: float) -> None:
        """Count one latency. What is not above a microsecond (a clock's own noise) counts as zero."""
        self.count += 1
        if seconds > MIN_S:
            self.sum += seconds
            index = int(log(seconds) * _SCALE + _SHIFT) - _SHIFT
            buckets = self.buckets
            if index in buckets:
                buckets[index] += 1
            else:
                buckets[index] = 1
        else:
            self.zeros += 1

    def record_all(self, values: Sequence[float]) -> None:
        """Count many latencies, in seconds, as `record` would: at half its cost for each."""
        buckets, zeros = self.buckets, 0
        for seconds in values:
            if seconds > MIN_S:
                index = int(log(seconds) * _SCALE + _SHIFT) - _SHIFT
                if index in buckets:
                    buckets[index] += 1
                else:
                    buckets[index] = 1
                self.sum += seconds
            else:
                zeros += 1
        self.zeros += zeros
        self.count += len(values)

    def merge(self, other: Histogram | HistogramData) -> None:
        """Add everything that `other` counted."""
        buckets = self.buckets
        for index, count in other.buckets.items():
            buckets[index] = buckets.get(index, 0) + count
        self.count += other.count
        self.sum += other.sum
        self.zeros += other.zeros

    def quantile(self, q: float) -> float | None:
        """The value, in seconds, that a share `q` of the samples is at or below: the one of rank ceil(q n), within 1%.

        None without a sample.
        """
        if not self.count:
            return None
        rank = max(1, math.ceil(q * self.count - 1e-9))  # 0.99 * 100 is 99.00000000000001 in floating point
        seen = self.zeros
        if rank <= seen:
            return 0.0
        if 2 * rank > self.count:  # most questions are about the slow end, which few samples are at
            return self._from_above(self.count - rank)
        for index in sorted(self.buckets):
            seen += self.buckets[index]
            if seen >= rank:
                return bucket_value_s(index)
        return bucket_value_s(max(self.buckets)) if self.buckets else 0.0

    def _from_above(self, above: int) -> float:
        """The value that so many samples are above of."""
        index = LOWEST_BUCKET
        for index in sorted(self.buckets, reverse=True):
            above -= self.buckets[index]
            if above < 0:
                break
        return bucket_value_s(index)

    @property
    def mean(self) -> float | None:
        """The exact mean in seconds; None without a sample."""
        return self.sum / self.count if self.count else None

    def clear(self) -> None:
        """Forget everything, for the next window."""
        self.buckets = {}
        self.count = 0
        self.sum = 0.0
        self.zeros = 0

    def to_data(self) -> HistogramData:
        """The wire form: a copy."""
        return HistogramData(buckets=dict(self.buckets), count=self.count, sum=self.sum, zeros=self.zeros)

    @classmethod
    def from_data(cls, data: HistogramData) -> Histogram:
        """A histogram that may go on counting, from the wire form."""
        made = cls()
        made.merge(data)
        return made
