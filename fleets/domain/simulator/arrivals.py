"""Requests for a simulation: out of a trace, or drawn from a process fitted to figures or to a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log, sqrt

from fleets.domain.simulator.types import Arrival, Draws


@dataclass(frozen=True, slots=True)
class Process:
    """Arrivals with independent gaps and lengths. A spread is the coefficient of variation: standard deviation over mean.

    Gaps are gamma distributed (spread 1: a Poisson process; over 1: bursts), lengths log-normal (spread 0: all alike).
    `prefix_hit` of each prompt is a prefix that replicas hold.
    """

    rate_per_s: float
    input_tokens: float
    output_tokens: float
    prefix_hit: float = 0.0
    gap_spread: float = 1.0
    input_spread: float = 0.0
    output_spread: float = 0.0
    most_tokens: int = 1_000_000


def drawn(process: Process, count: int, draws: Draws) -> Iterator[Arrival]:
    """`count` requests of a process."""
    gap = _gaps(process, draws)
    input_of = _lengths(process.input_tokens, process.input_spread, process.most_tokens, draws)
    output_of = _lengths(process.output_tokens, process.output_spread, process.most_tokens, draws)
    at_s, hit = 0.0, process.prefix_hit
    for _ in range(count):
        at_s += next(gap)
        tokens = next(input_of)
        yield Arrival(at_s, tokens, next(output_of), (), int(hit * tokens))


def _gaps(process: Process, draws: Draws) -> Iterator[float]:
    spread, rate = process.gap_spread, process.rate_per_s
    if abs(spread - 1.0) < 1e-9:
        while True:
            yield draws.expovariate(rate)
    alpha = 1.0 / max(spread, 0.01) ** 2
    while True:
        yield draws.gammavariate(alpha, 1.0 / (alpha * rate))


def _lengths(mean: float, spread: float, most: int, draws: Draws) -> Iterator[int]:
    if spread < 0.01:
        while True:
            yield max(1, round(mean))
    sigma = sqrt(log(1 + spread * spread))
    mu = log(mean) - sigma * sigma / 2
    while True:
        yield max(1, min(most, round(draws.lognormvariate(mu, sigma))))


def fitted(arrivals: Sequence[Arrival], *, prefix_hit: float = 0.0) -> Process:
    """The process with a trace's rate, mean lengths and spreads."""
    span_s = arrivals[-1].at_s - arrivals[0].at_s
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(arrivals)]
    return Process(
        rate_per_s=(len(arrivals) - 1) / span_s if span_s > 0 else float(len(arrivals)),
        input_tokens=_mean([arrival.input_tokens for arrival in arrivals]),
        output_tokens=_mean([arrival.output_tokens for arrival in arrivals]),
        prefix_hit=prefix_hit,
        gap_spread=_spread(gaps) if span_s > 0 else 1.0,
        input_spread=_spread([arrival.input_tokens for arrival in arrivals]),
        output_spread=_spread([arrival.output_tokens for arrival in arrivals]),
        most_tokens=max(max(arrival.input_tokens, arrival.output_tokens) for arrival in arrivals),
    )


def at_rate(arrivals: Sequence[Arrival], rate_per_s: float) -> list[Arrival]:
    """The same requests in the same order, with all gaps stretched so that they come at `rate_per_s` on average."""
    span_s = arrivals[-1].at_s - arrivals[0].at_s
    factor = (len(arrivals) - 1) / span_s / rate_per_s if span_s > 0 else 0.0
    first_s = arrivals[0].at_s
    return [Arrival((a.at_s - first_s) * factor, a.input_tokens, a.output_tokens, a.blocks, a.shared_tokens) for a in arrivals]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return sqrt(_mean([(value - mean) ** 2 for value in values])) / mean if mean > 0 else 0.0


def hit_ratio(arrivals: Sequence[Arrival]) -> float:
    """Share of the prompt tokens that some earlier prompt of the trace began with: what an endless cache would spare."""
    seen: set[int] = set()
    total = hit = 0
    for arrival in arrivals:
        total += arrival.input_tokens
        count = 0
        for block in arrival.blocks:
            if block not in seen:
                break
            count += 1
        per_block = arrival.input_tokens / len(arrival.blocks) if arrival.blocks else 0.0
        hit += int(count * per_block)
        seen.update(arrival.blocks)
    return hit / total if total else 0.0
