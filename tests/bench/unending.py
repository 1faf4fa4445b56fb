"""Alarms between rollouts by simulation: how often they page for nothing in a month, and how soon they page for a reason."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from metrics.domain.steady import BLOCK_S, LATE_S, SteadyState, steady_look
from metrics.domain.types import AlarmCount, AlarmSpec
from tests.bench.streams import BURST_EVERY_S, BURST_S, BURST_SHARE, CALM_SHARE, HEALTHY, binomial, poisson

SPEC = AlarmSpec("ttft-p99", "ttft", 0.01, 1.5)
ALARMS = 4  # three and the guard, which share the promise
RATES_PER_S = (5, 20, 100)
TIMES_THE_LIMIT = (3, 10)
_DAY_BLOCKS = 86_400 // BLOCK_S
_START = datetime(2026, 11, 30, tzinfo=UTC)
_AT_LIMIT = 0.01


def _burst(at_s: float) -> float:
    return BURST_SHARE if at_s % BURST_EVERY_S < BURST_S else CALM_SHARE


def false_pages(rng: random.Random, per_s: float, share: float | None, days: int) -> int:
    """Pages in so many days of a service whose share is as given, or in bursts."""
    state, pages = SteadyState(), 0
    for block in range(days * _DAY_BLOCKS):
        at_s = float(block * BLOCK_S)
        n = poisson(rng, per_s * BLOCK_S)
        k = binomial(rng, n, _burst(at_s) if share is None else share)
        after = steady_look(SPEC, state, AlarmCount(n, k), _START + timedelta(seconds=at_s), alarms=ALARMS)
        pages += state.breached_at is None and after.breached_at is not None
        state = after
    return pages


def minutes_to_page(rng: random.Random, per_s: float, share: float) -> float | None:
    """After a day of health: minutes from the first bad request until people are told; None after two hours without."""
    state, bad_from = SteadyState(), _DAY_BLOCKS // 24
    for block in range(bad_from + 240):
        n = poisson(rng, per_s * BLOCK_S)
        k = binomial(rng, n, HEALTHY if block < bad_from else share)
        at = _START + timedelta(seconds=block * BLOCK_S)
        state = steady_look(SPEC, state, AlarmCount(n, k), at, alarms=ALARMS)
        if state.breached_at is not None and block >= bad_from:
            return ((block - bad_from + 1) * BLOCK_S + LATE_S) / 60
    return None


def unending(*, days: int, few: int, seed: int) -> int:
    """Print both tables; the false pages of services that are as they should be."""
    print(f"\nbetween rollouts: pages of one alarm for nothing, in {days} days\n")
    print("| requests | 0.6% over, calm | 0.6% over, in 2-minute bursts | exactly at the limit |\n| --- | --- | --- | --- |")
    fine = at_limit = 0
    for per_s in RATES_PER_S:
        rng = random.Random(f"{seed} between {per_s}")
        calm, bursts, edge = (false_pages(rng, per_s, share, days) for share in (HEALTHY, None, _AT_LIMIT))
        fine, at_limit = fine + calm + bursts, at_limit + edge
        print(f"| {per_s}/s | {calm} | {bursts} | {edge} |")
    print(f"\nexactly at the limit: {at_limit} in {days * len(RATES_PER_S)} days; promised: at most one in {30 * ALARMS} for each alarm")
    print("\nand minutes until people are told of a breach, median (p90)\n")
    print(f"| requests | {' | '.join(f'{times} times the limit' for times in TIMES_THE_LIMIT)} |\n| --- | --- | --- |")
    for per_s in RATES_PER_S:
        rng = random.Random(f"{seed} told {per_s}")
        cells = []
        for times in TIMES_THE_LIMIT:
            found = sorted(minutes for _ in range(few) if (minutes := minutes_to_page(rng, per_s, times * 0.01)) is not None)
            whole = f"{found[len(found) // 2]:.1f} ({found[int(0.9 * (len(found) - 1))]:.1f})" if found else "never"
            cells.append(whole if len(found) == few else f"{whole}, {len(found)} of {few}")
        print(f"| {per_s}/s | {' | '.join(cells)} |")
    return fine
