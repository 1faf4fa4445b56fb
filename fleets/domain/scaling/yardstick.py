"""What one replica is thought to carry before that has been seen: from the timing model that sizing and the simulated engine use."""

from __future__ import annotations

from dataclasses import dataclass

from fleets.domain.hardware import GpuKind
from fleets.domain.timing import UNCALIBRATED, Calibration, StepTimes, memory_fit
from fleets.domain.types import ModelShape, Role

_CROWD = 0.9  # of the ITL limit that a mean batch may use: its p99 is longer
_MOST_SEQUENCES = 8192
_KV_RATIO = 0.8
_PROMPT_TOKENS = 4096  # a long one: prefill is nearly linear up to there


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a request is like, on average; before any came, something ordinary."""

    prompt_tokens: float = 2000.0  # uncached
    context_tokens: float = 2000.0  # that a sequence holds while it is decoded


def prefill_tokens_per_s(model: ModelShape, gpu: GpuKind, gpus: int, traffic: Traffic, calibration: Calibration = UNCALIBRATED) -> float:
    """Prompt tokens that one replica computes, prompt after prompt."""
    tokens = max(1, round(traffic.prompt_tokens))
    return tokens / StepTimes(model, gpu, gpus, calibration).prefill_s(tokens)


def decode_sequences(
    model: ModelShape, gpu: GpuKind, gpus: int, itl_limit_s: float | None, traffic: Traffic, calibration: Calibration = UNCALIBRATED
) -> float:
    """Sequences at once whose step stays inside the limit and whose KV fits; at least one. By bisection: steps grow with the batch."""
    steps = StepTimes(model, gpu, gpus, calibration)
    kv_tokens = memory_fit(model, gpu, gpus, role=Role.DECODE).kv_tokens
    fits = max(1, min(_MOST_SEQUENCES, int(_KV_RATIO * kv_tokens / max(1.0, traffic.context_tokens))))
    if itl_limit_s is None or steps.decode_s(fits, fits * traffic.context_tokens) <= _CROWD * itl_limit_s:
        return float(fits)
    low, high = 1, fits
    while high - low > 1:
        middle = (low + high) // 2
        kept = steps.decode_s(middle, middle * traffic.context_tokens) <= _CROWD * itl_limit_s
        low, high = (middle, high) if kept else (low, middle)
    return float(low)


def local_prefill_most(
    model: ModelShape, gpu: GpuKind, gpus: int, itl_limit_s: float | None, traffic: Traffic, calibration: Calibration = UNCALIBRATED
) -> int:
    """Uncached tokens whose prefill makes one step of a decode replica as long as the ITL limit; all others on it wait that long."""
    if itl_limit_s is None:
        return _MOST_SEQUENCES
    steps = StepTimes(model, gpu, gpus, calibration)
    spare_s = itl_limit_s - steps.decode_s(1, traffic.context_tokens)
    return max(0, min(_MOST_SEQUENCES, int(spare_s * _PROMPT_TOKENS / steps.prefill_part_s(_PROMPT_TOKENS, 0.0))))
