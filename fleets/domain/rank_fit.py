"""Whether one rank's share of a checkpoint fits its GPU, with the arithmetic in words."""

from __future__ import annotations

from dataclasses import dataclass

from denvweb.core.units import format_bytes
from fleets.domain.safetensors import Checkpoint
from fleets.domain.timing import MEMORY_USE_RATIO, RESERVED_BYTES
from fleets.domain.types import EngineSpec

# The option of a recipe that bounds a sequence: vLLM's, SGLang's, TensorRT-LLM's.
_CONTEXT_OPTIONS = ("max-model-len", "context-length", "max-seq-len", "max_seq_len")


@dataclass(frozen=True, slots=True)
class RankFit:
    """One rank of `gpus` on one GPU. Bytes are of that GPU."""

    memory_bytes: float
    usable_bytes: float  # without what contexts, graphs and activations take
    weight_bytes: float
    kv_bytes: float  # of the sequence that was asked for
    context_tokens: int
    arithmetic: str

    @property
    def fits(self) -> bool:
        """Whether weights and that sequence are within what is usable."""
        return self.weight_bytes + self.kv_bytes <= self.usable_bytes

    @property
    def hopeless(self) -> bool:
        """Whether the weights alone are more than the whole memory: no setting of an engine helps."""
        return self.weight_bytes > self.memory_bytes


def context_tokens(engine: EngineSpec) -> int:
    """The longest sequence that an engine is asked to take: its option, else the model's own."""
    given = next((engine.options[name] for name in _CONTEXT_OPTIONS if engine.options.get(name, "").isdigit()), "")
    return int(given) if given else engine.shape.context_tokens


def rank_fit(model: Checkpoint, *, memory_bytes: float, gpus: int, tensor_parallel: int, context: int, kv_value_bytes: float) -> RankFit:
    """`gpus` ranks in groups of `tensor_parallel`: matrices are divided over all (experts or columns), KV inside a group.

    KV heads that are fewer than the group are repeated, and a latent cache is whole on every rank.
    """
    usable = memory_bytes * MEMORY_USE_RATIO - RESERVED_BYTES
    weights = model.split_bytes / gpus + model.whole_bytes
    parts = 1 if model.latent else min(tensor_parallel, model.kv_heads)
    kv = context * model.kv_values_per_token * kv_value_bytes / parts
    how = "whole on each" if parts == 1 else f"over {parts}"
    arithmetic = (
        f"{format_bytes(model.split_bytes)} of matrices over {gpus} GPU{'' if gpus == 1 else 's'} + {format_bytes(model.whole_bytes)} of "
        f"vectors = {format_bytes(weights)} a rank; KV of {context:,} tokens, {how}, = {format_bytes(kv)}; together "
        f"{format_bytes(weights + kv)}; {format_bytes(memory_bytes)} x {MEMORY_USE_RATIO:g} - {format_bytes(RESERVED_BYTES)} for contexts, "
        f"graphs and activations = {format_bytes(usable)}"
    )
    return RankFit(memory_bytes, usable, weights, kv, context, arithmetic)
