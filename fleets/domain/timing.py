"""How long a model takes on given GPUs, and whether it fits them: a calibrated roofline.

A step reads weights and KV from memory, computes, and exchanges activations; the parts are added, because they overlap
badly in practice. Constants come from published measurements (the tests hold the ones they must reproduce):

- 4.5 ms a step and 1.2 times the memory time: least squares over 258 measured rows of aiconfigurator's silicon sample;
- 27% of the 8-bit peak in prefill, 60% of it in decode, 40 us for each doubling of a collective beyond 8 GPUs: DeepSeek-V3 on
  H100 and GB200 as published by LMSYS and by DeepSeek's open-infra profile;
- 52% of the peak in prefill of a dense model, and two all-reduces a layer over its GPUs: InferenceX's TTFT of Llama 3.1 70B alone on
  one to eight H200, which is 47 to 54% of the peak on one GPU and 26% on eight.

Expect a quarter off either way; what it must get right is which of two shapes is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from fleets.domain.hardware import GpuKind
from fleets.domain.types import ModelShape, Role

STEP_OVERHEAD_S = 4.5e-3  # scheduling, launches, sampling and collectives inside one node
MEMORY_FACTOR = 1.2  # measured over ideal memory time
PREFILL_COMPUTE_RATIO = 0.27  # of the peak that large mixtures of experts reach in prefill
DENSE_PREFILL_COMPUTE_RATIO = 0.52  # that a dense model reaches on one GPU
DECODE_COMPUTE_RATIO = 0.6
COLLECTIVE_DOUBLING_S = 40e-6  # per all-to-all and per doubling of the group beyond 8 GPUs
COLLECTIVES_PER_LAYER = 2  # dispatch and combine; of a dense model one behind attention and one behind the linear layers
EXPERTS_PER_TOKEN = 8  # copies of an activation that travel
TRAVEL_BYTES_PER_ELEMENT = 3  # 8 bits out, 16 bits back
REDUCE_BYTES_PER_ELEMENT = 2  # activations are added up in 16 bits
LINK_RATIO = 0.7  # of a link's peak that a KV transfer or an all-reduce reaches
TRANSFER_OVERHEAD_S = 4e-3  # handshake, descriptors, notification
MEMORY_USE_RATIO = 0.9  # vLLM's gpu_memory_utilization
RESERVED_BYTES = 3.5e9  # contexts, graphs and workspace of one GPU


@dataclass(frozen=True, slots=True)
class Calibration:
    """The constants of the roofline, to be replaced by those fitted to one engine on one machine. `scale` stretches every step."""

    overhead_s: float = STEP_OVERHEAD_S
    memory_factor: float = MEMORY_FACTOR
    prefill_compute_ratio: float | None = None  # None: the built-in one for a dense model or for a mixture of experts
    decode_compute_ratio: float = DECODE_COMPUTE_RATIO
    scale: float = 1.0


UNCALIBRATED = Calibration()


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """How a model sits in the memory of one replica. Bytes are per GPU; `kv_tokens` is for the whole replica."""

    fits: bool
    weights_bytes: float
    usable_bytes: float
    kv_bytes: float  # what is left for KV; negative when the weights alone are too large
    kv_tokens: int
    wanted_kv_tokens: int
    gpus_needed: int  # the smallest count that would fit


def memory_fit(
    shape: ModelShape, gpu: GpuKind, gpus: int, *, role: Role = Role.AGGREGATED, wanted_kv_tokens: int | None = None
) -> MemoryFit:
    """Whether the weights and at least one sequence of full length fit on `gpus` of a kind, spread evenly."""
    wanted = shape.context_tokens if wanted_kv_tokens is None else wanted_kv_tokens
    weights = shape.weight_bytes * (shape.prefill_weight_ratio if role is Role.PREFILL else 1.0)
    usable = gpu.memory_bytes * MEMORY_USE_RATIO - RESERVED_BYTES
    left = usable - weights / gpus
    kv_tokens = max(0, int(left * gpus / shape.kv_bytes_per_token))
    return MemoryFit(
        fits=kv_tokens >= wanted,
        weights_bytes=weights / gpus,
        usable_bytes=usable,
        kv_bytes=left,
        kv_tokens=kv_tokens,
        wanted_kv_tokens=wanted,
        gpus_needed=max(1, ceil((weights + wanted * shape.kv_bytes_per_token) / usable)),
    )


def compute_flops(shape: ModelShape, gpu: GpuKind) -> float:
    """Peak of one GPU at the width the model computes in: 8 bits for weights of up to 8 bits, else 16.

    Four-bit weights count as eight: measured prefill of NVFP4 models stays near a quarter of the 8-bit peak.
    """
    return gpu.fp8_flops if shape.weight_bytes / shape.total_params <= 1.25 else gpu.bf16_flops


def prefill_s(shape: ModelShape, gpu: GpuKind, tp: int, new_tokens: int, context_tokens: int) -> float:
    """Seconds of one prefill step of `new_tokens`, after `context_tokens` that are in the cache; `tp` GPUs share the work."""
    return STEP_OVERHEAD_S + _collective_s(shape, tp) + prefill_compute_s(shape, gpu, tp, new_tokens, context_tokens)


def prefill_compute_s(shape: ModelShape, gpu: GpuKind, tp: int, new_tokens: int, context_tokens: int) -> float:
    """The part of a prefill step that grows with its tokens: linear layers and attention."""
    attended = context_tokens + new_tokens / 2
    if shape.attended_tokens:
        attended = min(attended, shape.attended_tokens)
    flops = new_tokens * (2 * shape.prefill_active_params + 4 * shape.layers * shape.hidden * attended)
    return flops / (tp * compute_flops(shape, gpu) * prefill_compute_ratio(shape)) + new_tokens * _reduce_s(shape, gpu, tp)


def prefill_compute_ratio(shape: ModelShape) -> float:
    """Of the peak that a model reaches in prefill. Experts get small matrices each, and their tokens travel."""
    return DENSE_PREFILL_COMPUTE_RATIO if is_dense(shape) else PREFILL_COMPUTE_RATIO


def decode_step_s(shape: ModelShape, gpu: GpuKind, tp: int, batch: int, context_tokens_total: int) -> float:
    """Seconds of one decode step: `batch` sequences that hold `context_tokens_total` together, on `tp` GPUs."""
    active_ratio = min(1.0, shape.decode_active_params / shape.total_params)
    touched = 1.0 - (1.0 - active_ratio) ** batch if active_ratio < 1.0 else 1.0  # experts that some token of the batch needs
    read_bytes = shape.weight_bytes * touched + shape.kv_bytes_per_token * context_tokens_total
    memory_s = MEMORY_FACTOR * read_bytes / (tp * gpu.memory_bytes_per_s)
    compute_s = 2 * shape.decode_active_params * batch / (tp * compute_flops(shape, gpu) * DECODE_COMPUTE_RATIO)
    return STEP_OVERHEAD_S + memory_s + compute_s + _exchange_s(shape, gpu, tp, batch) + _collective_s(shape, tp)


def mixed_step_s(
    shape: ModelShape, gpu: GpuKind, tp: int, batch: int, context_tokens_total: int, new_tokens: int, prefill_context_tokens: int
) -> float:
    """Seconds of a step that decodes `batch` sequences and prefills `new_tokens`: they share its overhead and add their work.

    This is how prefill and decode disturb each other on one replica.
    """
    if not batch:
        return prefill_s(shape, gpu, tp, new_tokens, prefill_context_tokens)
    decode_s = decode_step_s(shape, gpu, tp, batch, context_tokens_total)
    return decode_s + prefill_compute_s(shape, gpu, tp, new_tokens, prefill_context_tokens) if new_tokens else decode_s


def kv_transfer_s(transfer_bytes: float, gpu: GpuKind, same_domain: bool) -> float:
    """Seconds until `transfer_bytes` of KV have moved from one prefill GPU group to decode, over one GPU's link."""
    link = gpu.domain_bytes_per_s if same_domain else gpu.network_bytes_per_s
    return TRANSFER_OVERHEAD_S + transfer_bytes / (link * LINK_RATIO)


class StepTimes:
    """Step times of one replica, linear in what changes between steps: for those who ask a million times.

    A decode step takes `base_s(batch) + context_s * context_tokens_total`. A step that also prefills adds `prefill_part_s`.
    The same model as the functions above, which the tests hold it to.
    """

    __slots__ = ("_bases", "_calibration", "_gpu", "_shape", "_tp", "alone_s", "attended_tokens", "context_s", "pair_s", "token_s")

    def __init__(self, shape: ModelShape, gpu: GpuKind, tp: int, calibration: Calibration = UNCALIBRATED) -> None:
        self._shape, self._gpu, self._tp, self._calibration = shape, gpu, tp, calibration
        scale = calibration.scale
        rate = tp * compute_flops(shape, gpu) * (calibration.prefill_compute_ratio or prefill_compute_ratio(shape)) / scale
        self.token_s = 2 * shape.prefill_active_params / rate + _reduce_s(shape, gpu, tp) * scale  # of one prefilled token
        self.pair_s = 4 * shape.layers * shape.hidden / rate  # of one prefilled token looking at one other
        self.attended_tokens = float(shape.attended_tokens or 1e18)
        self.alone_s = (calibration.overhead_s + _collective_s(shape, tp)) * scale
        self.context_s = scale * calibration.memory_factor * shape.kv_bytes_per_token / (tp * gpu.memory_bytes_per_s)
        self._bases = [0.0]

    def base_s(self, batch: int) -> float:
        """Seconds of a decode step of `batch` sequences without what they hold."""
        while len(self._bases) <= batch:
            self._bases.append(self._base_s(len(self._bases)))
        return self._bases[batch]

    def _base_s(self, batch: int) -> float:
        shape, calibration = self._shape, self._calibration
        active_ratio = min(1.0, shape.decode_active_params / shape.total_params)
        touched = 1.0 - (1.0 - active_ratio) ** batch if active_ratio < 1.0 else 1.0
        memory_s = calibration.memory_factor * shape.weight_bytes * touched / (self._tp * self._gpu.memory_bytes_per_s)
        rate = self._tp * compute_flops(shape, self._gpu) * calibration.decode_compute_ratio
        compute_s = 2 * shape.decode_active_params * batch / rate
        return self.alone_s + (memory_s + compute_s + _exchange_s(shape, self._gpu, self._tp, batch)) * calibration.scale

    def decode_s(self, batch: int, context_tokens_total: float) -> float:
        """Seconds of one decode step."""
        return self.base_s(batch) + self.context_s * context_tokens_total

    def prefill_part_s(self, new_tokens: float, context_tokens: float) -> float:
        """What prefilling `new_tokens` behind `context_tokens` adds to a step."""
        return new_tokens * (self.token_s + self.pair_s * min(context_tokens + new_tokens / 2, self.attended_tokens))

    def prefill_s(self, tokens: int, cached_tokens: int = 0, budget_tokens: int = 8192) -> float:
        """Seconds to prefill a prompt alone on the replica, in steps of at most `budget_tokens`."""
        new = max(1, tokens - cached_tokens)
        return ceil(new / budget_tokens) * self.alone_s + self.prefill_part_s(new, cached_tokens)


def is_dense(shape: ModelShape) -> bool:
    """Whether every parameter is at work for every token; otherwise it is a mixture of experts."""
    return shape.decode_active_params >= shape.total_params


def _exchange_s(shape: ModelShape, gpu: GpuKind, tp: int, batch: int) -> float:
    """Time on the wire of a decode step: the experts' all-to-all, or the all-reduces of a dense model."""
    if tp == 1:
        return 0.0
    if is_dense(shape):
        return batch * _reduce_s(shape, gpu, tp)
    link = gpu.domain_bytes_per_s if tp <= gpu.domain_gpus else gpu.network_bytes_per_s
    return batch / tp * shape.hidden * EXPERTS_PER_TOKEN * TRAVEL_BYTES_PER_ELEMENT * shape.layers / link


def _reduce_s(shape: ModelShape, gpu: GpuKind, tp: int) -> float:
    """Time on the wire of one token's all-reduces in a dense model: a ring sends 2 (n-1)/n of it (Patarasuk and Yuan, 2009)."""
    if tp == 1 or not is_dense(shape):
        return 0.0
    link = gpu.domain_bytes_per_s if tp <= gpu.domain_gpus else gpu.network_bytes_per_s
    sent_bytes = 2 * (tp - 1) / tp * shape.hidden * REDUCE_BYTES_PER_ELEMENT
    return shape.layers * COLLECTIVES_PER_LAYER * sent_bytes / (link * LINK_RATIO)


def _collective_s(shape: ModelShape, tp: int) -> float:
    """Latency of the collectives of one step; what they cost within 8 GPUs is in the fixed overhead."""
    return shape.layers * COLLECTIVES_PER_LAYER * COLLECTIVE_DOUBLING_S * log2(tp / 8) if tp > 8 else 0.0
