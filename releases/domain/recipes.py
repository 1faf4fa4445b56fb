"""Recipes: versioned know-how for one model on one engine. The catalogue's files are read elsewhere; here they become values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from denvweb.core import wire
from denvweb.core.errors import InvalidError
from denvweb.core.words import did_you_mean
from fleets.domain.tokenizer import tokenizer_source
from fleets.domain.types import ModelShape, Role


class Parallelism(StrEnum):
    """What the GPUs of a replica split among them."""

    TENSOR = "tensor"  # every matrix, by attention heads
    EXPERT = "expert"  # the experts; attention is data-parallel where it is not split


@dataclass(frozen=True, slots=True)
class RoleRules:
    """What one role of a recipe needs. `options` are the engine's flags with the recipe's values; a release may change any of them."""

    min_gpus: int = 1
    max_tensor_parallel: int | None = None  # None: all GPUs of a replica form one group
    options: dict[str, str] = field(default_factory=dict)

    def tensor_parallel(self, gpus: int) -> int:
        """Width of the groups of a replica with so many GPUs."""
        return min(gpus, self.max_tensor_parallel or gpus)


@dataclass(frozen=True, slots=True)
class RecipeShape:
    """The model's figures, KV aside; `experts` is 0 for a dense model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    total_params: float
    prefill_active_params: float
    decode_active_params: float
    weight_bytes: float
    vocab: int
    context_tokens: int
    experts: int = 0
    attended_tokens: int = 0
    prefill_weight_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class KvDefaults:
    """The KV cache as the recipe has it. `bytes_per_token` lists every data type that the engine can keep it in."""

    dtype: str
    bytes_per_token: dict[str, float]
    block_size: int
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe. `compat_options` names the flags that touch the layout or meaning of KV."""

    name: str  # `deepseek-v4.1-flash/deepinfer@3`
    summary: str
    engine: str
    engine_version: str
    protocol: str  # how prefill hands over to decode
    gpu_kinds: tuple[str, ...]
    parallelism: Parallelism
    hetero_tensor_parallel: bool  # prefill and decode may differ in tensor parallelism
    shape: RecipeShape
    kv_cache: KvDefaults
    roles: dict[Role, RoleRules]
    compat_options: tuple[str, ...] = ()
    redundant_experts: bool = False  # busy experts are replicated, so the GPUs of a replica need not divide them
    tokenizer: str = ""  # by which routers count prompts: `hf://org/name@revision` or `file:///path/tokenizer.json`; empty: they estimate

    @property
    def can_disaggregate(self) -> bool:
        """Whether the engine has both halves."""
        return Role.PREFILL in self.roles and Role.DECODE in self.roles

    def model_shape(self, kv_dtype: str | None = None) -> ModelShape:
        """The figures that memory and time depend on, with KV in `kv_dtype` (the recipe's own when None or unknown)."""
        bytes_per_token = self.kv_cache.bytes_per_token
        per_token = bytes_per_token.get(kv_dtype or self.kv_cache.dtype, bytes_per_token[self.kv_cache.dtype])
        shape = self.shape
        return ModelShape(
            layers=shape.layers,
            hidden=shape.hidden,
            kv_heads=shape.kv_heads,
            total_params=shape.total_params,
            prefill_active_params=shape.prefill_active_params,
            decode_active_params=shape.decode_active_params,
            weight_bytes=shape.weight_bytes,
            kv_bytes_per_token=per_token,
            vocab=shape.vocab,
            context_tokens=shape.context_tokens,
            attended_tokens=shape.attended_tokens,
            prefill_weight_ratio=shape.prefill_weight_ratio,
        )


Catalog = Mapping[str, Recipe]

_OPEN_KEYS = frozenset({"options", "bytes-per-token"})  # their keys are the engine's words, not ours


def recipe_from(name: str, data: object) -> Recipe:
    """A recipe of a catalogue file's plain data; InvalidError names the file and what is wrong."""
    try:
        recipe = wire.from_plain({**_snake(data), "name": name}, Recipe)
        tokenizer_source(recipe.tokenizer)
    except InvalidError as error:
        raise InvalidError(f"recipe {name}: {error.detail}", code="recipe-invalid") from error
    if recipe.kv_cache.dtype not in recipe.kv_cache.bytes_per_token:
        raise InvalidError(f"recipe {name}: kv-cache.bytes-per-token lacks its own dtype {recipe.kv_cache.dtype}", code="recipe-invalid")
    return recipe


def _snake(data: object) -> dict[str, object]:
    """Keys with underscores, as the fields have them; engine flags keep theirs, and their values become texts."""
    if not isinstance(data, dict):
        raise InvalidError("must be a mapping", code="recipe-invalid")
    plain: dict[str, object] = {}
    for key, value in data.items():
        name = str(key)
        if name in _OPEN_KEYS:
            plain[name.replace("-", "_")] = _open(value, as_text=name == "options")
        else:
            plain[name.replace("-", "_")] = _snake(value) if isinstance(value, dict) else value
    return plain


def _open(value: object, as_text: bool) -> object:
    if not isinstance(value, dict):
        return value
    return {str(key): _text(item) if as_text else item for key, item in value.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def recipe_unknown(name: str, catalog: Catalog) -> str:
    """The sentence about a recipe that the catalogue lacks."""
    family = sorted(known for known in catalog if known.split("@")[0] == name.split("@")[0])
    if family:
        return f"recipe {name} is not in the catalogue; of this one it has {', '.join(family)}"
    return f"recipe {name} is not in the catalogue{did_you_mean(name, catalog) or '; `denv recipes` lists what there is'}"
