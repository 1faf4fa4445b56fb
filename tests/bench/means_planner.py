"""A planner that goes by means, as Dynamo's does, for comparison: `components/planner` of ai-dynamo 1.6, in its throughput mode.

Every interval it takes the mean rate and lengths of the last one for the next (its `constant` predictor), divides by what a profiled
replica carries, corrects that by the mean TTFT and ITL seen over those expected, and rounds up. It has no percentiles, no peaks and
no cool-down; prefill is corrected downwards only, as there: `min(1, correction)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from fleets.domain.scaling.types import Knob, Plant, Signals
from fleets.domain.simulator.elastic import Means, Wish


@dataclass
class MeansPlanner:
    """`expected_ttft_s(tokens)` and `expected_itl_s(sequences)` are the profile of one replica."""

    plant: Plant
    interval_s: float
    expected_ttft_s: Callable[[float], float]
    expected_itl_s: Callable[[float], float]
    asked_s: float = field(default=0.0)
    prefill_correction: float = field(default=1.0)
    decode_correction: float = field(default=1.0)

    def __call__(self, signals: Signals, means: Means) -> Wish | None:
        """None between two intervals, and while nothing has come."""
        if signals.at_s - self.asked_s < self.interval_s - 1e-9:
            return None
        self.asked_s = signals.at_s
        if means.requests_per_s <= 0:
            return Wish({role: self.plant.bounds[role].least for role in self.plant.roles})
        if means.ttft_s is not None:
            self.prefill_correction = means.ttft_s / self.expected_ttft_s(means.input_tokens)
        if means.itl_s is not None and signals.sequences is not None:
            batch = signals.sequences / max(1, signals.ready[Knob.DECODE])
            self.decode_correction = means.itl_s / self.expected_itl_s(batch)
        return self._fitted(self._prefill(means), self._decode(means))

    def _prefill(self, means: Means) -> int:
        load = means.requests_per_s * means.input_tokens * min(1.0, self.prefill_correction)
        return ceil(load / self.plant.prefill_tokens_per_s)

    def _decode(self, means: Means) -> int:
        """Its throughput at the batch that would keep the corrected ITL limit."""
        limit_s = (self.plant.itl_limit_s or 1.0) / max(1e-6, self.decode_correction)
        batch = 1.0
        while batch < self.plant.decode_sequences and self.expected_itl_s(batch + 1) <= limit_s:
            batch += 1
        return ceil(means.requests_per_s * means.output_tokens / (batch / self.expected_itl_s(batch)))

    def _fitted(self, prefill: int, decode: int) -> Wish:
        """Inside the ranges, and scaled down together to the budget, as it does."""
        counts = {Knob.PREFILL: self.plant.bounds[Knob.PREFILL].clamp(prefill), Knob.DECODE: self.plant.bounds[Knob.DECODE].clamp(decode)}
        gpus = self.plant.gpus
        while sum(gpus[role] * count for role, count in counts.items()) > self.plant.budget:
            largest = max(counts, key=lambda role: counts[role] - self.plant.bounds[role].least)
            counts[largest] -= 1
        return Wish(counts)
