"""A sample of the traffic, divided as the router would divide it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.routing import decide
from fleets.domain.simulator.arrivals import drawn
from fleets.domain.simulator.types import BLOCK_TOKENS, Arrival
from fleets.domain.sizing.types import MakeDraws, Need
from fleets.domain.timing import StepTimes

_SAMPLE = 400


@dataclass(frozen=True, slots=True)
class Load:
    """What one request is like. Pairs are (prompt tokens, tokens that are held already)."""

    rate_per_s: float
    gap_spread: float
    remote: tuple[tuple[int, int], ...]
    local: tuple[tuple[int, int], ...]
    input_tokens: float
    output_tokens: float
    context_tokens: float  # that a sequence holds on average while it is decoded; long answers are there for longer

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """All of them: an aggregated replica prefills everything."""
        return self.remote + self.local

    @property
    def remote_ratio(self) -> float:
        """Share of the requests that go to prefill."""
        return len(self.remote) / (len(self.remote) + len(self.local))

    @property
    def uncached_tokens(self) -> float:
        """Prompt tokens that have to be computed, of a mean request."""
        return sum(prompt - held for prompt, held in self.pairs) / len(self.pairs)


def load_of(need: Need, conditional: ConditionalPolicy, make_draws: MakeDraws) -> Load:
    """A sample of the need's traffic; of a trace evenly over its whole length, with what an endless cache would hold."""
    if need.arrivals:
        held = held_tokens(need.arrivals)
        stride = max(1, len(need.arrivals) // (4 * _SAMPLE))
        rows = [(arrival.input_tokens, held[i], arrival.output_tokens) for i, arrival in enumerate(need.arrivals) if i % stride == 0]
    else:
        rows = [(a.input_tokens, a.shared_tokens, a.output_tokens) for a in drawn(need.process, _SAMPLE, make_draws(1))]
    remote: list[tuple[int, int]] = []
    local: list[tuple[int, int]] = []
    for prompt, held_here, _ in rows:
        decision = decide(conditional, prompt_tokens=prompt, held_tokens=held_here, prefill_queue=0, decode_kv_use=None)
        (remote if decision.remote else local).append((prompt, held_here))
    outputs = [output for _, _, output in rows]
    mean_output = sum(outputs) / len(outputs)
    mean_input = sum(prompt for prompt, _, _ in rows) / len(rows)
    weighted = sum(output * (prompt + output / 2) for prompt, _, output in rows) / sum(outputs)
    process = need.process
    return Load(process.rate_per_s, process.gap_spread, tuple(remote), tuple(local), mean_input, mean_output, weighted)


def held_tokens(arrivals: Sequence[Arrival]) -> list[int]:
    """For each prompt of a trace, how many leading tokens some earlier one had too."""
    seen: set[int] = set()
    held = []
    for arrival in arrivals:
        count = 0
        for block in arrival.blocks:
            if block not in seen:
                break
            count += 1
        seen.update(arrival.blocks)
        held.append(max(arrival.shared_tokens, min(arrival.input_tokens, count * BLOCK_TOKENS)))
    return held


def prefill_times(pairs: Sequence[tuple[int, int]], steps: StepTimes, budget_tokens: int) -> tuple[float, float]:
    """Mean and spread of the seconds that prompts take of a busy replica, which computes several in one step."""
    if not pairs:
        return 0.0, 0.0
    times = []
    for prompt, held in pairs:
        new = max(1, prompt - held)
        times.append(steps.prefill_part_s(new, held) + steps.alone_s * new / budget_tokens)
    mean = sum(times) / len(times)
    return mean, sqrt(sum((time - mean) ** 2 for time in times) / len(times)) / mean


def nearly_longest(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The pair at the 95th percentile of uncached tokens."""
    return sorted(pairs, key=lambda pair: pair[0] - pair[1])[int(0.95 * (len(pairs) - 1))]
