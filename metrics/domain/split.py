"""What the slow requests' TTFT was made of.

The p99 of a sum is not the sum of its parts' p99s: the request that waited longest in the queue need not be the one whose prefill
took longest. What can be split is a set of requests: those at or over the p99, whose phases add up request by request, and so do
their means. For that the phases are summed by bins of TTFT, which add up over routers, units and windows as histograms do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from denvweb.core import wire
from metrics.domain.histogram import GAMMA, LOWEST_BUCKET, MIN_S, bucket_of
from metrics.domain.types import SplitBin

BUCKETS_A_BIN = 4  # of the histograms': a bin is 8% wide
TAIL = 0.99
_US = 1e6


@dataclass(frozen=True, slots=True)
class Tail:
    """The slowest requests of a group: `n` of `of`, all with a TTFT of `from_s` or more; means over them, which add up to `ttft_s`.

    Of the bin that holds the quantile only some of the requests belong to it: they count with the means of their bin.
    """

    n: int
    of: int
    from_s: float
    queue_s: float
    prefill_s: float  # on a route without KV transfer: until the first token
    transfer_s: float
    first_step_s: float

    @property
    def ttft_s(self) -> float:
        """Their mean TTFT."""
        return self.queue_s + self.prefill_s + self.transfer_s + self.first_step_s


class Split:
    """Sums of the four phases, in whole microseconds, by bin of TTFT."""

    __slots__ = ("bins",)

    def __init__(self) -> None:
        self.bins: dict[int, SplitBin] = {}

    def record_all(self, phases_s: Iterable[tuple[float, float, float, float]]) -> None:
        """Count requests by their queue, prefill, transfer and first step, in seconds."""
        bins = self.bins
        for queue_s, prefill_s, transfer_s, first_step_s in phases_s:
            ttft_s = queue_s + prefill_s + transfer_s + first_step_s
            index = (bucket_of(ttft_s) if ttft_s > MIN_S else LOWEST_BUCKET) // BUCKETS_A_BIN
            one = SplitBin(1, round(queue_s * _US), round(prefill_s * _US), round(transfer_s * _US), round(first_step_s * _US))
            held = bins.get(index)
            bins[index] = one if held is None else _plus(held, one)

    def merge(self, bins: Mapping[int, SplitBin]) -> None:
        """Add what another one counted."""
        mine = self.bins
        for index, more in bins.items():
            held = mine.get(index)
            mine[index] = more if held is None else _plus(held, more)

    def tail(self, q: float = TAIL) -> Tail | None:
        """The requests from the rank of the quantile, ceil(q n), up; None without a request."""
        of = sum(found.n for found in self.bins.values())
        if not of:
            return None
        left = n = of - max(1, math.ceil(q * of - 1e-9)) + 1
        sums = [0.0, 0.0, 0.0, 0.0]
        for index in sorted(self.bins, reverse=True):
            found = self.bins[index]
            taken = min(left, found.n)
            sums = [total + us * taken / found.n for total, us in zip(sums, found[1:], strict=True)]
            left -= taken
            if not left:
                break
        return Tail(n, of, GAMMA ** (index * BUCKETS_A_BIN), *(total / n / _US for total in sums))


def _plus(a: SplitBin, b: SplitBin) -> SplitBin:
    return SplitBin(a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4])


def pack(bins: Mapping[int, SplitBin]) -> str:
    """`[bin,n,queue,prefill,transfer,first step,bin,...]` as text; empty for nothing."""
    return wire.encode([number for index, found in bins.items() for number in (index, *found)]).decode() if bins else ""


def unpack(text: str) -> dict[int, SplitBin]:
    """What `pack` wrote."""
    flat: Sequence[int] = wire.decode(text, list[int]) if text else ()
    width = 1 + len(SplitBin._fields)
    return {flat[at]: SplitBin(*flat[at + 1 : at + width]) for at in range(0, len(flat), width)}
