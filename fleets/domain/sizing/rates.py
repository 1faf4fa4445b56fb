"""What one replica can carry within the limits, in closed form. The simulator has the last word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from fleets.domain.simulator.types import Limits
from fleets.domain.sizing.load import Load, nearly_longest, prefill_times
from fleets.domain.sizing.queueing import wait_quantile_s
from fleets.domain.sizing.types import Serving
from fleets.domain.timing import StepTimes, kv_transfer_s, memory_fit
from fleets.domain.types import Role

_CROWD = 2.33  # standard deviations of a Poisson number up to its 99th percentile
_KV_USE_MAX = 0.9
_BATCH_MAX = 8192
_TTFT_MARGIN = 0.9  # of the limit that the proposal uses: steps that a request just misses are not in the formulas


@dataclass(frozen=True, slots=True)
class DecodeRate:
    """What a replica that decodes carries at its bound."""

    gpus: int
    per_s: float  # requests
    batch: float
    step_s: float
    bound: str  # `itl`, `kv`, `batch` or `ttft`: what would break first


def fits(serving: Serving, role: Role, gpus: int, load: Load) -> bool:
    """Whether the weights and some sequences fit. A decode replica should hold a few at once."""
    few = 1 if role is Role.PREFILL else 4
    wanted = int(few * (load.context_tokens + load.output_tokens))
    return memory_fit(serving.model, serving.gpu, gpus, role=role, wanted_kv_tokens=wanted).fits


def replica_sizes(serving: Serving, role: Role, load: Load) -> list[int]:
    """GPU counts that a replica can have: powers of two from the recipe's least on, while they stay inside a domain."""
    bounds = serving.roles[role]
    sizes, gpus = [], 1
    while gpus <= min(bounds.max_gpus, serving.domain):
        if gpus >= bounds.min_gpus and fits(serving, role, gpus, load):
            sizes.append(gpus)
        gpus *= 2
    return sizes


def steps_of(serving: Serving, gpus: int) -> StepTimes:
    """Step times of a replica."""
    return StepTimes(serving.model, serving.gpu, gpus, serving.calibration)


def first_token_s(serving: Serving, load: Load, prefill_gpus: int, decode_step_s: float) -> float:
    """TTFT of a long remote prompt that waits for nobody: prefill, KV, and up to two steps of decode."""
    prompt, held = nearly_longest(load.remote)
    budget = serving.roles[Role.PREFILL].max_batched_tokens
    prefill_s = steps_of(serving, prefill_gpus).prefill_s(prompt, held, budget)
    moved_s = kv_transfer_s((prompt - held) * serving.model.kv_bytes_per_token, serving.gpu, True)
    return prefill_s + moved_s + 2 * decode_step_s


def decode_rate(serving: Serving, load: Load, gpus: int, limits: Limits) -> DecodeRate | None:
    """The most that a decode replica carries, its own local prefills included; None when not even one sequence is within the limit."""
    steps = steps_of(serving, gpus)
    budget = serving.roles[Role.DECODE].max_batched_tokens
    local_s, _ = prefill_times(load.local, steps, budget)
    local_s *= 1.0 - load.remote_ratio
    stall_s = 0.0
    if load.local:
        prompt, held = nearly_longest(load.local)
        stall_s = steps.prefill_part_s(max(1, prompt - held), held)
    kv_tokens = memory_fit(serving.model, serving.gpu, gpus, role=Role.DECODE).kv_tokens

    def state(batch: float) -> tuple[float, float, str]:
        """(step, requests/s, what is broken at this batch)."""
        step_s = _pure_s(steps, load, batch) + local_s * batch / load.output_tokens
        rate = batch / (load.output_tokens * step_s)
        crowd = batch + _CROWD * sqrt(batch)
        worst_s = _pure_s(steps, load, crowd)
        if load.local and rate * (1.0 - load.remote_ratio) * step_s > 0.005:  # enough steps with a prefill to be in the p99
            worst_s += stall_s
        return step_s, rate, _broken(worst_s, limits.itl_s, crowd * load.context_tokens, kv_tokens)

    return _most(gpus, state)


def aggregated_rate(serving: Serving, load: Load, gpus: int, budget: int, limits: Limits) -> DecodeRate | None:
    """The most that an aggregated replica carries with chunks of `budget` tokens; None when it cannot keep the limits at all."""
    steps = steps_of(serving, gpus)
    prefill_s, spread = prefill_times(load.pairs, steps, budget)
    prompt, held = nearly_longest(load.pairs)
    new = max(1, prompt - held)
    chunk_s = steps.prefill_part_s(min(new, budget), prompt - min(new, budget))
    kv_tokens = memory_fit(serving.model, serving.gpu, gpus).kv_tokens

    def state(batch: float) -> tuple[float, float, str]:
        pure_s = _pure_s(steps, load, batch)
        step_s = pure_s + prefill_s * batch / load.output_tokens
        rate = batch / (load.output_tokens * step_s)
        crowd = batch + _CROWD * sqrt(batch)
        mixed_ratio = rate * step_s * max(1.0, load.uncached_tokens / budget)
        worst_s = _pure_s(steps, load, crowd) + (chunk_s if mixed_ratio > 0.005 else 0.0)
        service_s = prefill_s + load.uncached_tokens / budget * pure_s
        wait_s = wait_quantile_s(1, rate, service_s, q=0.99, gap_spread=load.gap_spread, service_spread=spread)
        long_s = steps.prefill_part_s(new, held) + (new / budget + 1) * pure_s
        if limits.ttft_s is not None and wait_s + long_s > limits.ttft_s * _TTFT_MARGIN:
            return step_s, rate, "ttft"
        return step_s, rate, _broken(worst_s, limits.itl_s, crowd * load.context_tokens, kv_tokens)

    return _most(gpus, state)


def _pure_s(steps: StepTimes, load: Load, batch: float) -> float:
    low = int(batch)
    base_s = steps.base_s(low) + (batch - low) * (steps.base_s(low + 1) - steps.base_s(low)) if low else steps.base_s(1)
    return base_s + steps.context_s * batch * load.context_tokens


def _broken(step_s: float, limit_s: float | None, kv_wanted: float, kv_tokens: int) -> str:
    if limit_s is not None and step_s > limit_s:
        return "itl"
    return "kv" if kv_wanted > _KV_USE_MAX * kv_tokens else ""


def _most(gpus: int, state: Callable[[float], tuple[float, float, str]]) -> DecodeRate | None:
    """The largest batch at which nothing is broken yet, by bisection."""
    low, high = 0.05, float(_BATCH_MAX)
    if state(low)[2]:
        return None
    bound = "batch"
    if state(high)[2]:
        for _ in range(40):
            middle = (low + high) / 2
            broken = state(middle)[2]
            if broken:
                high, bound = middle, broken
            else:
                low = middle
    else:
        low = high
    step_s, rate, _ = state(low)
    return DecodeRate(gpus, rate, low, step_s, bound)
