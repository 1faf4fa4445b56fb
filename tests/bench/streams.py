"""Streams of requests for the benchmark of the alarms: how many arrive, and how many of them are over which limit. All of it seeded."""

from __future__ import annotations

import csv
import json
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p
from pathlib import Path

from metrics.domain.alarm import BET_GRID, bet_sums
from metrics.domain.types import AlarmCount, AlarmSpec

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
ALARMS = (AlarmSpec("ttft-p99", "ttft", 0.01, 1.5), AlarmSpec("itl-p99", "itl", 0.01, 0.04), AlarmSpec("error-rate", "error-rate", 0.01))
HEALTHY = 0.006  # true exceedance, at limits of 1%

BURST_S, BURST_EVERY_S = 120.0, 600.0
BURST_SHARE = 0.026  # of both arms while a burst lasts; the rest of the time little, so that the mean is HEALTHY
CALM_SHARE = (HEALTHY - BURST_SHARE * BURST_S / BURST_EVERY_S) / (1 - BURST_S / BURST_EVERY_S)
_GAPS_OVER = 0.4  # of a request that has slow gaps at all, up to this share are slow


def binomial(rng: random.Random, n: int, p: float) -> int:
    """How many of n happen: by the distances between them, so that it costs as many steps as there are."""
    if p <= 0 or n <= 0:
        return 0
    if p >= 1:
        return n
    found, at, miss = 0, -1, log1p(-p)
    while True:
        at += 1 + int(log(1.0 - rng.random()) / miss)
        if at >= n:
            return found
        found += 1


def poisson(rng: random.Random, mean: float) -> int:
    """Arrivals; a normal stands in where there are many."""
    if mean > 60:
        return max(0, round(rng.gauss(mean, mean**0.5)))
    found, at = 0, rng.expovariate(1.0)
    while at < mean:
        found, at = found + 1, at + rng.expovariate(1.0)
    return found


Arrivals = Callable[[random.Random, float, float], int]  # (rng, from second, to second) -> requests


def steady(per_s: float) -> Arrivals:
    """Poisson arrivals."""
    return lambda rng, from_s, to_s: poisson(rng, per_s * (to_s - from_s))


def replayed(times: Sequence[float]) -> Arrivals:
    """The arrivals of a trace, over and over."""
    span_s = times[-1] + 1.0

    def between(from_s: float, to_s: float) -> int:
        whole = int(to_s // span_s) - int(from_s // span_s)
        return bisect_left(times, to_s % span_s) - bisect_left(times, from_s % span_s) + whole * len(times)

    return lambda rng, from_s, to_s: between(from_s, to_s)


def traces() -> dict[str, list[float]]:
    """Arrival times in seconds by the trace's name; empty where the traces are not at hand."""
    found: dict[str, list[float]] = {}
    for path in sorted(TRACES.glob("*")) if TRACES.is_dir() else []:
        if path.name.startswith("mooncake") and path.suffix == ".jsonl":
            found[path.stem] = sorted(json.loads(line)["timestamp"] / 1000 for line in path.read_text().splitlines() if line.strip())
        elif path.name.startswith(("azure", "servegen")) and path.suffix == ".csv":
            with path.open() as rows:
                found[path.stem] = sorted(float(row["arrival_s"]) for row in csv.DictReader(rows))
    return {name: [at - times[0] for at in times] for name, times in found.items()}


@dataclass(frozen=True, slots=True)
class Truth:
    """The true share over each limit: HEALTHY for everybody, in bursts if asked for, and `bad` on the canary's TTFT from a time on."""

    bursts: bool = False
    first_burst_s: float = 0.0
    bad: float | None = None
    bad_from_s: float = 0.0

    def share(self, alarm: str, canary: bool, at_s: float) -> float:
        """Of requests that end about now."""
        if canary and self.bad is not None and alarm == "ttft-p99" and at_s >= self.bad_from_s:
            return self.bad
        if not self.bursts:
            return HEALTHY
        return BURST_SHARE if (at_s - self.first_burst_s) % BURST_EVERY_S < BURST_S else CALM_SHARE


_MEAN_SHARE = _GAPS_OVER / 2
_CLEAN = {spec.p0: bet_sums(0.0, spec.p0) for spec in ALARMS}


def counts(rng: random.Random, n: int, truth: Truth, *, canary: bool, at_s: float) -> dict[str, AlarmCount]:
    """What routers count of n requests, as they count it."""
    return {spec.name: _count(rng, spec, n, truth.share(spec.name, canary, at_s)) for spec in ALARMS}


def _count(rng: random.Random, spec: AlarmSpec, n: int, share: float) -> AlarmCount:
    if spec.metric != "itl":
        return AlarmCount(n=n, k=binomial(rng, n, share))
    slow = [rng.uniform(0, _GAPS_OVER) for _ in range(binomial(rng, n, share / _MEAN_SHARE))]
    sums = [(n - len(slow)) * value for value in _CLEAN[spec.p0]]
    for y in slow:
        sums = [total + value for total, value in zip(sums, bet_sums(y, spec.p0), strict=True)]
    assert len(sums) == len(BET_GRID)
    return AlarmCount(n=n, k=sum(slow), bets=tuple(sums))


def over(found: Mapping[str, AlarmCount]) -> dict[str, tuple[int, float]]:
    """(n, k) by alarm."""
    return {name: (count.n, count.k) for name, count in found.items()}
