"""What a checkpoint says of itself: the headers of its safetensors and its `config.json`. Pure: bytes and values in, figures out.

Format: https://huggingface.co/docs/safetensors/index (eight bytes of length, then JSON; the tensors themselves are never read).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec

from denvweb.core.errors import InvalidError

HEADER_MAX_BYTES = 100 * 10**6  # the format's own bound
_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16, "F4": 4}
_BITS_ELSE = 8  # 8-bit floats and integers, booleans, scales


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """As it is stored."""
        return -(-prod(self.shape) * _BITS.get(self.dtype, _BITS_ELSE) // 8)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The figures of a model that its memory depends on."""

    split_bytes: int  # of matrices, which tensor and expert parallelism divide
    whole_bytes: int  # of vectors, which every rank has: norms, biases, scales
    params: int
    layers: int
    kv_heads: int  # 1 for a latent cache, which is not divided
    kv_values_per_token: int  # of all layers and heads
    context_tokens: int
    latent: bool = False  # multi-head latent attention: each rank keeps the whole cache

    @property
    def weight_bytes(self) -> int:
        """All of them, once."""
        return self.split_bytes + self.whole_bytes


def header_length(first: bytes) -> int:
    """Bytes of the header, from the first eight of a file; InvalidError when it cannot be one."""
    length = int.from_bytes(first[:8], "little")
    if len(first) < 8 or not 2 <= length <= HEADER_MAX_BYTES:
        raise InvalidError("this is no safetensors file: its first eight bytes are not the length of a header", code="not-safetensors")
    return length


def read_header(header: bytes) -> tuple[Tensor, ...]:
    """The tensors that a header lists."""
    try:
        entries = msgspec.json.decode(header, type=dict[str, dict[str, Any]])
        return tuple(
            Tensor(name, str(entry["dtype"]), tuple(int(size) for size in entry["shape"]))
            for name, entry in entries.items()
            if name != "__metadata__"
        )
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise InvalidError(f"the header of this safetensors file cannot be read: {error}", code="not-safetensors") from error


def checkpoint(config: Mapping[str, Any], tensors: Iterable[Tensor]) -> Checkpoint:
    """A whole model. InvalidError names what `config.json` lacks; parts of a composite model stand under `text_config`."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, Mapping)
    layers, heads = _whole(text, "num_hidden_layers"), _whole(text, "num_attention_heads")
    every = list(tensors)
    split = sum(tensor.bytes for tensor in every if len(tensor.shape) > 1)
    latent_rank = text.get("kv_lora_rank")
    if isinstance(latent_rank, int):  # DeepSeek's: one latent vector and one rotated key a token and layer, for all heads
        kv_heads, values = 1, layers * (latent_rank + int(text.get("qk_rope_head_dim") or 0))
    else:
        kv_heads = int(text.get("num_key_value_heads") or heads)
        width = int(text.get("head_dim") or _whole(text, "hidden_size") // heads)
        values = 2 * layers * kv_heads * width
    return Checkpoint(
        split_bytes=split,
        whole_bytes=sum(tensor.bytes for tensor in every) - split,
        params=sum(prod(tensor.shape) for tensor in every),
        layers=layers,
        kv_heads=kv_heads,
        kv_values_per_token=values,
        context_tokens=int(text.get("max_position_embeddings") or 0),
        latent=isinstance(latent_rank, int),
    )


def _whole(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise InvalidError(f"config.json has no {key}", code="config-incomplete")
    return value
