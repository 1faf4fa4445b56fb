"""The alarms against the baseline by simulation: how often `over-baseline: 25%` is wrong, and how soon it sees what is slower by more.

Latencies are log-normal and change together in bursts. The baseline's quantile is taken from an hour before, so in "busier than before"
it is far off: the test must not mind. Counts are made as routers make them, and judged by the product's own code.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import exp, log
from statistics import NormalDist

from metrics.domain.types import AlarmCount, AlarmSpec
from metrics.domain.verdict import Arms, JudgeState, state_begin_anew, state_look, verdict_of
from tests.bench.streams import BURST_EVERY_S, BURST_S, binomial, poisson

OVER = 1.25
SIGMA = 0.5  # of the logarithm: the p99 is 3.2 times the median
LOOK_S = 5.0
STEPS = ((0.1, 600.0), (0.5, 600.0))  # weight and seconds: the holds of the default policy that have a baseline
ALPHA = 0.01 / 5  # three limits, one comparison, and the guard
RATES_PER_S = (5, 20, 100)
TIMES = (1.5, 2.0, 3.0)  # the baseline's latencies
_START = datetime(2026, 11, 30, tzinfo=UTC)
_Z99 = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True, slots=True)
class World:
    """How the latencies of both releases move together: a factor in bursts, and one against the hour before."""

    name: str
    burst: float = 1.0
    since: float = 1.0

    def factor(self, at_s: float) -> float:
        return self.since * (self.burst if at_s % BURST_EVERY_S < BURST_S else 1.0)


WORLDS = (World("calm"), World("2-minute bursts, twice as slow", burst=2.0), World("busier than before, 1.5 times as slow", since=1.5))


def _share(limit_s: float, factor: float) -> float:
    """P(X > limit) of latencies whose median is `factor` seconds."""
    return 1 - NormalDist().cdf((log(limit_s) - log(factor)) / SIGMA)


def first_trip(rng: random.Random, per_s: float, times: float, world: World) -> tuple[int, float] | None:
    """Requests of the canary and seconds until the comparison sends it back; None when the two holds pass without."""
    base_s = exp(SIGMA * _Z99) * rng.uniform(0.9, 1.1)  # as found in an hour of requests, and rounded to a bucket
    spec = AlarmSpec("itl-p99-over-baseline", "ttft", 0.01, over=OVER, base_s=base_s)
    state, at_s, requests = JudgeState(), rng.uniform(0, BURST_EVERY_S), 0
    began_s = at_s
    for weight, hold_s in STEPS:
        state = state_begin_anew(spec, state)
        canary, baseline, end_s = AlarmCount(), AlarmCount(), at_s + hold_s
        while at_s < end_s:
            at_s += LOOK_S
            factor = world.factor(at_s)
            m, n = poisson(rng, per_s * weight * LOOK_S), poisson(rng, per_s * (1 - weight) * LOOK_S)
            requests += m
            canary = AlarmCount(canary.n + m, canary.k + binomial(rng, m, _share(OVER * base_s, factor * times)))
            baseline = AlarmCount(baseline.n + n, base_k=baseline.base_k + binomial(rng, n, _share(base_s, factor)))
            arms = Arms(canary, baseline)
            state = state_look(spec, state, arms, _START + timedelta(seconds=at_s))
            if state.relative.logs and verdict_of(spec, state, arms, alpha=ALPHA, fresh=True).tripped:
                return requests, at_s - began_s
    return None


def compared(*, runs: int, few: int, seed: int) -> float:
    """Print both tables; the worst ratio of false rollbacks among releases that are as fast as the baseline."""
    print("\n`over-baseline: 25%` on a p99: rollouts sent back for nothing\n")
    print("| requests | as fast as the baseline | exactly 25% slower |\n| --- | --- | --- |")
    worst, at_edge, cells = 0.0, 0.0, len(WORLDS) * len(RATES_PER_S)
    for world in WORLDS:
        for per_s in RATES_PER_S:
            rng = random.Random(f"{seed} {world.name} {per_s}")
            wrong = [sum(first_trip(rng, per_s, times, world) is not None for _ in range(runs)) / runs for times in (1.0, OVER)]
            worst, at_edge = max(worst, wrong[0]), at_edge + wrong[1] / cells
            print(f"| {per_s}/s, {world.name} | {wrong[0]:.1%} of {runs} | {wrong[1]:.1%} of {runs} |")
    print(f"\nexactly 25% slower: {at_edge:.2%} of {cells * runs}; the alarm's part of the budget is {ALPHA:.2%}")
    print("\nand how soon slower releases are: requests of the canary and minutes, median (share found within the two holds)\n")
    print(f"| requests | {' | '.join(f'{times:g} times as slow' for times in TIMES)} |\n|{' --- |' * (1 + len(TIMES))}")
    for world in WORLDS:
        for per_s in RATES_PER_S:
            rng = random.Random(f"{seed} {world.name} {per_s} slow")
            found = [_found([first_trip(rng, per_s, times, world) for _ in range(few)]) for times in TIMES]
            print(f"| {per_s}/s, {world.name} | {' | '.join(found)} |")
    return worst


def _found(trips: list[tuple[int, float] | None]) -> str:
    seen = sorted(trip for trip in trips if trip is not None)
    if len(seen) * 2 <= len(trips):
        return f"({len(seen) / len(trips):.0%})"
    requests, at_s = seen[(len(trips) - 1) // 2]
    return f"{requests:,}, {at_s / 60:.1f} min ({len(seen) / len(trips):.0%})"
