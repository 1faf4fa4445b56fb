"""How a router counts the evidence for alarms (metrics.domain.alarm_text says which there are).

In a router:

    counter = AlarmCounter(table.alarms)                   # one for each SeriesKey
    for name, limit_s in counter.gap_limits: ...           # count each request's gaps over these, while it streams
    counter.request(ttft_s=0.4, e2e_s=3.1, gaps_over={"itl-p99": 2}, gaps_n=120)   # once, when a request has ended
    delta = counter.take()                                 # key -> AlarmCount since the last take; starts again at nothing

Every alarm is a limit on a share: `ttft-p99: 1500ms` says that at most 1% of the requests take more than 1.5 s. So exact
counts are all that its test needs (metrics.domain.evidence), and counts add up over routers, units and windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log

from metrics.domain.alarm_text import ERROR_RATE, ITL, KV_EFFECTIVE, KV_USE, PREFILL_QUEUE, TIMED
from metrics.domain.types import AlarmCount, AlarmSpec

NOTHING = AlarmCount()
BASE = "/base"  # ends the name of a gap limit that is the baseline's own quantile

# Betting on Y, the share of one request's gaps that are over the limit: for a stake b, the wealth is multiplied by
# 1 + b (Y - p0), which a mean(Y) <= p0 does not let grow (Waudby-Smith & Ramdas, JRSS-B 2023). Stakes are those that
# would be best if the odds of a gap over the limit were so many times those of the limit, or of twice it for health.
BREACH_ODDS = (1.25, 1.6, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0)
HEALTH_ODDS = (0.7, 0.5, 0.3, 0.15, 0.05, 0.01)
BET_GRID = BREACH_ODDS + HEALTH_ODDS  # of `AlarmCount.bets`, place by place


def health_bound(p0: float) -> float:
    """The share that a healthy release must be proved to be under: twice the limit, and for a lax limit still under 1."""
    return min(2 * p0, (1 + p0) / 2)


def _at_odds(p: float, times: float) -> float:
    odds = times * p / (1 - p)
    return odds / (1 + odds)


@lru_cache(maxsize=64)
def _stakes(p0: float) -> tuple[tuple[float, float], ...]:
    """For every entry of BET_GRID, the factor of a request without a gap over the limit, and what a share of 1 adds to it.

    With the stake that is best for the alternative p, 1 + b (y - p0) = (1 - p)/(1 - p0) + y (p/p0 - (1 - p)/(1 - p0)).
    """
    nulls = ((p0, BREACH_ODDS), (health_bound(p0), HEALTH_ODDS))
    pairs = [(null, _at_odds(null, times)) for null, grid in nulls for times in grid]
    return tuple(((1 - p) / (1 - null), p / null - (1 - p) / (1 - null)) for null, p in pairs)


def bet_sums(y: float, p0: float) -> tuple[float, ...]:
    """Logarithms of what one request with share `y` multiplies each stake's wealth by, for every entry of BET_GRID."""
    return tuple([log(miss + y * gain) for miss, gain in _stakes(p0)])


def plus(a: AlarmCount, b: AlarmCount) -> AlarmCount:
    """Both together; sums of stakes that one side has not got count as nothing."""
    return AlarmCount(n=a.n + b.n, k=a.k + b.k, bets=_added(a.bets, b.bets, 1), base_k=a.base_k + b.base_k)


def minus(a: AlarmCount, b: AlarmCount) -> AlarmCount:
    """What `a` has over its own earlier state `b`."""
    return AlarmCount(n=a.n - b.n, k=a.k - b.k, bets=_added(a.bets, b.bets, -1), base_k=a.base_k - b.base_k)


def _added(a: Sequence[float], b: Sequence[float], sign: int) -> tuple[float, ...]:
    if not b:
        return tuple(a)
    if not a:
        return tuple(sign * value for value in b)
    return tuple(x + sign * y for x, y in zip(a, b, strict=True))


def counted(spec: AlarmSpec) -> bool:
    """Whether a router can count it: a comparison of latencies needs the baseline's quantile first."""
    return spec.over is None or spec.base_s is not None or spec.metric not in (ITL, *TIMED)


class _Tally:
    """One alarm's counts that are not taken yet. Most requests have no gap over the limit: those are only counted."""

    __slots__ = ("base", "base_k", "clean", "k", "key", "limit", "n", "none_over", "p0", "sums")

    def __init__(self, spec: AlarmSpec) -> None:
        self.key = spec.key
        self.p0 = spec.p0
        self.base = spec.base_s
        if spec.base_s is not None and spec.over is not None:
            self.limit = spec.base_s * spec.over
        else:
            self.limit = spec.limit_s or spec.limit or 0.0
        self.none_over = bet_sums(0.0, spec.p0) if spec.metric == ITL and spec.over is None else ()
        self.clear()

    def clear(self) -> None:
        self.n = 0
        self.k = self.base_k = 0.0
        self.clean = 0
        self.sums = [0.0] * len(self.none_over)

    def value(self, value: float) -> None:
        self.n += 1
        if value > self.limit:
            self.k += 1
        if self.base is not None and value > self.base:
            self.base_k += 1

    def add(self, n: int, k: float) -> None:
        self.n += n
        self.k += k

    def share(self, y: float, base_y: float) -> None:
        """One request with these shares of its gaps over the limit, and over the baseline's quantile."""
        self.n += 1
        self.base_k += base_y
        if not y:
            self.clean += 1
            return
        self.k += y
        if self.sums:
            self.sums = [total + value for total, value in zip(self.sums, bet_sums(y, self.p0), strict=True)]

    def count(self) -> AlarmCount:
        bets = tuple(total + self.clean * value for total, value in zip(self.sums, self.none_over, strict=True))
        return AlarmCount(n=self.n, k=self.k, bets=bets, base_k=self.base_k)


class AlarmCounter:
    """Counts the requests of one series against the limits of a stage's alarms."""

    __slots__ = ("_all", "_errors", "_gaps", "_lost", "_queues", "_timed", "_uses", "gap_limits")

    def __init__(self, alarms: Sequence[AlarmSpec]) -> None:
        mine = [(spec.metric, _Tally(spec)) for spec in alarms if counted(spec)]
        self._all = tuple(tally for _, tally in mine)
        self._timed = tuple((TIMED.index(metric), tally) for metric, tally in mine if metric in TIMED)
        self._gaps, self._errors, self._lost, self._queues, self._uses = (
            tuple(tally for metric, tally in mine if metric == wanted) for wanted in (ITL, ERROR_RATE, KV_EFFECTIVE, PREFILL_QUEUE, KV_USE)
        )
        bases = tuple((tally.key + BASE, tally.base) for tally in self._gaps if tally.base is not None)
        self.gap_limits: tuple[tuple[str, float], ...] = (*((tally.key, tally.limit) for tally in self._gaps), *bases)

    def request(
        self,
        ttft_s: float | None = None,
        queue_s: float | None = None,
        kv_transfer_s: float | None = None,
        e2e_s: float | None = None,
        gaps_over: Mapping[str, int] | None = None,
        gaps_n: int = 0,
        error: bool = False,
        waiting: int | None = None,
    ) -> None:
        """Count one request that has ended, well or not. None is a figure that it has not got, and counts nowhere.

        `gaps_over` holds, by name, how many of its `gaps_n` gaps between tokens were over `gap_limits`; `waiting` is how many
        requests it found waiting for prefill in its unit.
        """
        values = (ttft_s, queue_s, kv_transfer_s, e2e_s)
        for place, tally in self._timed:
            value = values[place]
            if value is not None:
                tally.value(value)
        if gaps_n:
            for tally in self._gaps:
                over = gaps_over or {}
                tally.share(over.get(tally.key, 0) / gaps_n, over.get(tally.key + BASE, 0) / gaps_n if tally.base is not None else 0.0)
        for tally in self._errors:
            tally.add(1, error)
        if waiting is not None:
            for tally in self._queues:
                tally.value(waiting)

    def kv_judged(self, requests: int, lost: int) -> None:
        """So many requests with remote prefill are judged now; the KV of `lost` of them never moved."""
        for tally in self._lost:
            tally.add(requests, lost)

    def kv_read(self, use_ratio: float) -> None:
        """One reading of how full a decode replica's KV cache is."""
        for tally in self._uses:
            tally.value(use_ratio)

    def take(self) -> dict[str, AlarmCount]:
        """Everything since the last take, by alarm key, and start again; alarms without a request are left out."""
        taken: dict[str, AlarmCount] = {}
        for tally in self._all:
            if tally.n:
                taken[tally.key] = tally.count()
                tally.clear()
        return taken
