"""Traffic that everyone who sizes should know: the product guide's three cases, and the published day of DeepSeek V3/R1."""

from __future__ import annotations

from dataclasses import dataclass

from fleets.domain.simulator.arrivals import Process

LONG_PROMPTS = Process(20.0, 8000, 200, input_spread=0.5, output_spread=0.5)  # documents: more prefill
LONG_OUTPUTS = Process(20.0, 300, 1500, input_spread=0.5, output_spread=0.5)  # writing: little prefill
SHARED_PREFIXES = Process(20.0, 8000, 200, prefix_hit=0.7, input_spread=0.5, output_spread=0.5)  # one long system prompt: fewer prefill

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Day:
    """A day's tokens, and what one node of each kind was measured to do."""

    input_tokens: float  # cached ones included, as in the rate
    output_tokens: float
    prefill_tokens_per_s: float  # of one node
    decode_tokens_per_s: float

    @property
    def prefill_nodes(self) -> float:
        """On average over the day."""
        return self.input_tokens / _DAY_S / self.prefill_tokens_per_s

    @property
    def decode_nodes(self) -> float:
        """On average over the day."""
        return self.output_tokens / _DAY_S / self.decode_tokens_per_s

    @property
    def nodes(self) -> float:
        """Both."""
        return self.prefill_nodes + self.decode_nodes

    @property
    def decode_per_prefill(self) -> float:
        """Decode nodes for each prefill node."""
        return self.decode_nodes / self.prefill_nodes


# deepseek-ai/open-infra-index, "DeepSeek-V3/R1 Inference System Overview", 24 h from 2025-02-27: 226.75 H800 nodes on average.
DEEPSEEK_DAY = Day(608e9, 168e9, 73_700, 14_800)
