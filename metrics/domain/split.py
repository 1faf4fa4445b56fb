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
_flat = wire.decoder(list)
_WIDTH = 1 + len(SplitBin._fields)  # numbers of a bin in the text


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
    """Sums of the four phases, in whole microseconds, by bin of TTFT: lists of five, as `SplitBin` names them, added to in place."""

    __slots__ = ("_bins", "_tail")

    def __init__(self) -> None:
        self._bins: dict[int, list[int]] = {}
        self._tail: Tail | None = None  # of what is counted so far: four lines of a chart ask for it at each step

    @property
    def bins(self) -> dict[int, SplitBin]:
        """As they are sent and kept: a copy."""
        return {index: SplitBin(*found) for index, found in self._bins.items()}

    def _add(self, index: int, more: Sequence[int]) -> None:
        self._tail = None
        held = self._bins.get(index)
        if held is None:
            self._bins[index] = list(more)
            return
        held[0] += more[0]
        held[1] += more[1]
        held[2] += more[2]
        held[3] += more[3]
        held[4] += more[4]

    def record_all(self, phases_s: Iterable[tuple[float, float, float, float]]) -> None:
        """Count requests by their queue, prefill, transfer and first step, in seconds."""
        for queue_s, prefill_s, transfer_s, first_step_s in phases_s:
            ttft_s = queue_s + prefill_s + transfer_s + first_step_s
            index = (bucket_of(ttft_s) if ttft_s > MIN_S else LOWEST_BUCKET) // BUCKETS_A_BIN
            self._add(index, (1, round(queue_s * _US), round(prefill_s * _US), round(transfer_s * _US), round(first_step_s * _US)))

    def merge(self, other: Split) -> None:
        """Add what another one counted."""
        for index, more in other._bins.items():
            self._add(index, more)

    def merge_bins(self, bins: Mapping[int, SplitBin]) -> None:
        """Add what a report says."""
        for index, more in bins.items():
            self._add(index, more)

    def merge_text(self, text: str) -> None:
        """Add what `pack` wrote."""
        flat: list[int] = _flat(text) if text else []
        bins, self._tail = self._bins, None
        for at in range(0, len(flat), _WIDTH):  # in place, as `_add` does: a chart of an hour has some twenty thousand of them
            held = bins.get(flat[at])
            if held is None:
                bins[flat[at]] = flat[at + 1 : at + _WIDTH]
                continue
            held[0] += flat[at + 1]
            held[1] += flat[at + 2]
            held[2] += flat[at + 3]
            held[3] += flat[at + 4]
            held[4] += flat[at + 5]

    def pack(self) -> str:
        """`[bin,n,queue,prefill,transfer,first step,bin,...]` as text; empty for nothing."""
        return wire.encode([number for index, found in self._bins.items() for number in (index, *found)]).decode() if self._bins else ""

    def tail(self) -> Tail | None:
        """The requests from the rank of the p99, ceil(0.99 n), up; None without a request."""
        if self._tail is None and self._bins:
            self._tail = self._slowest()
        return self._tail

    def _slowest(self) -> Tail:
        of = sum(found[0] for found in self._bins.values())
        left = n = of - max(1, math.ceil(TAIL * of - 1e-9)) + 1
        sums = [0.0, 0.0, 0.0, 0.0]
        for index in sorted(self._bins, reverse=True):
            found = self._bins[index]
            taken = min(left, found[0])
            sums = [total + us * taken / found[0] for total, us in zip(sums, found[1:], strict=True)]
            left -= taken
            if not left:
                break
        return Tail(n, of, GAMMA ** (index * BUCKETS_A_BIN), *(total / n / _US for total in sums))
