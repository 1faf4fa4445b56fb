"""Alarms: what may be written, and how a router counts the evidence for them.

In a router:

    counter = AlarmCounter(table.alarms)                   # one for each SeriesKey
    for name, limit_s in counter.gap_limits: ...           # count each request's gaps over these, while it streams
    counter.request(ttft_s=0.4, e2e_s=3.1, gaps_over={"itl-p99": 2}, gaps_n=120)   # once, when a request has ended
    delta = counter.take()                                 # name -> AlarmCount since the last take; starts again at nothing

Every alarm is a limit on a share: `ttft-p99: 1500ms` says that at most 1% of the requests take more than 1.5 s. So exact
counts are all that its test needs (metrics.domain.evidence), and counts add up over routers, units and windows.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log

from denvweb.core.units import parse_duration_s, parse_ratio
from metrics.domain.types import AlarmCount, AlarmSpec

NOTHING = AlarmCount()
ERROR_RATE = "error-rate"
ITL = "itl"
_TIMED = ("ttft", "queue", "kv-transfer", "e2e")  # in the order of `AlarmCounter.request`'s values
_P0 = {"p50": 0.5, "p90": 0.1, "p95": 0.05, "p99": 0.01}
ALARM_NAMES = (*(f"{metric}-{quantile}" for metric in ("ttft", ITL, "e2e", "queue", "kv-transfer") for quantile in _P0), ERROR_RATE)

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


def parse_alarm(name: str, limit: str) -> AlarmSpec | str:
    """The alarm of a line such as `ttft-p99: 1500ms`, or a sentence that says what is wrong with it."""
    name, limit = name.strip(), limit.strip()
    if name not in ALARM_NAMES:
        near = difflib.get_close_matches(name, ALARM_NAMES, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else "an alarm is `error-rate`, or a metric and a quantile such as `ttft-p99`"
        return f"`{name}` is no alarm; {hint}"
    if name == ERROR_RATE:
        ratio = parse_ratio(limit)
        if ratio is None or not 0 < ratio < 1:
            return f"`{limit}` is no limit for {name}; write a percentage over 0% and under 100%, such as `1%`"
        return AlarmSpec(name=name, metric=ERROR_RATE, p0=ratio)
    limit_s = parse_duration_s(limit)
    if not limit_s:
        return f"`{limit}` is no limit for {name}; write a time with its unit, such as `1500ms`"
    metric, _, quantile = name.rpartition("-")
    return AlarmSpec(name=name, metric=metric, p0=_P0[quantile], limit_s=limit_s)


def plus(a: AlarmCount, b: AlarmCount) -> AlarmCount:
    """Both together; sums of stakes that one side has not got count as nothing."""
    return AlarmCount(n=a.n + b.n, k=a.k + b.k, bets=_added(a.bets, b.bets, 1))


def minus(a: AlarmCount, b: AlarmCount) -> AlarmCount:
    """What `a` has over its own earlier state `b`."""
    return AlarmCount(n=a.n - b.n, k=a.k - b.k, bets=_added(a.bets, b.bets, -1))


def _added(a: Sequence[float], b: Sequence[float], sign: int) -> tuple[float, ...]:
    if not b:
        return tuple(a)
    if not a:
        return tuple(sign * value for value in b)
    return tuple(x + sign * y for x, y in zip(a, b, strict=True))


class _Tally:
    """One alarm's counts that are not taken yet. Most requests have no gap over the limit: those are only counted."""

    __slots__ = ("clean", "k", "limit_s", "n", "name", "none_over", "p0", "sums")

    def __init__(self, spec: AlarmSpec) -> None:
        self.name = spec.name
        self.p0 = spec.p0
        self.limit_s = spec.limit_s or 0.0
        self.none_over = bet_sums(0.0, spec.p0) if spec.metric == ITL else ()
        self.clear()

    def clear(self) -> None:
        self.n = 0
        self.k = 0.0
        self.clean = 0
        self.sums = [0.0] * len(self.none_over)

    def share(self, y: float) -> None:
        self.n += 1
        if not y:
            self.clean += 1
            return
        self.k += y
        self.sums = [total + value for total, value in zip(self.sums, bet_sums(y, self.p0), strict=True)]

    def count(self) -> AlarmCount:
        bets = tuple(total + self.clean * value for total, value in zip(self.sums, self.none_over, strict=True))
        return AlarmCount(n=self.n, k=self.k, bets=bets)


class AlarmCounter:
    """Counts the requests of one series against the limits of a stage's alarms."""

    __slots__ = ("_errors", "_gaps", "_timed", "gap_limits")

    def __init__(self, alarms: Sequence[AlarmSpec]) -> None:
        self._timed = tuple((_TIMED.index(spec.metric), _Tally(spec)) for spec in alarms if spec.metric in _TIMED)
        self._gaps = tuple(_Tally(spec) for spec in alarms if spec.metric == ITL)
        self._errors = tuple(_Tally(spec) for spec in alarms if spec.metric == ERROR_RATE)
        self.gap_limits: tuple[tuple[str, float], ...] = tuple((tally.name, tally.limit_s) for tally in self._gaps)

    def request(
        self,
        ttft_s: float | None = None,
        queue_s: float | None = None,
        kv_transfer_s: float | None = None,
        e2e_s: float | None = None,
        gaps_over: Mapping[str, int] | None = None,
        gaps_n: int = 0,
        error: bool = False,
    ) -> None:
        """Count one request that has ended, well or not. None is a latency that it has not got, and counts nowhere.

        `gaps_over` holds, by alarm name, how many of its `gaps_n` gaps between tokens were over `gap_limits`.
        """
        values = (ttft_s, queue_s, kv_transfer_s, e2e_s)
        for place, tally in self._timed:
            value = values[place]
            if value is not None:
                tally.n += 1
                if value > tally.limit_s:
                    tally.k += 1
        if gaps_n:
            for tally in self._gaps:
                tally.share(gaps_over.get(tally.name, 0) / gaps_n if gaps_over else 0.0)
        for tally in self._errors:
            tally.n += 1
            tally.k += error

    def take(self) -> dict[str, AlarmCount]:
        """Everything since the last take, by alarm name, and start again; alarms without a request are left out."""
        taken: dict[str, AlarmCount] = {}
        for tally in (*(tally for _, tally in self._timed), *self._gaps, *self._errors):
            if tally.n:
                taken[tally.name] = tally.count()
                tally.clear()
        return taken
