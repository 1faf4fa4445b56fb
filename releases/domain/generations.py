"""Hashes that say what a change touches: one a pool, and one for whatever prefill and decode must agree on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from fleets.domain.types import EngineSpec, PoolSpec, Role
from releases.domain.recipes import Recipe

_DIGITS = 12


def pool_generation(role: Role, gpus: int, engine: EngineSpec, recipe: Recipe) -> str:
    """The hash of all that makes a replica what it is. The replica count is not in it: adding a replica restarts none."""
    told = msgspec.to_builtins(engine)
    if not engine.secrets:  # releases from before there were any keep their hashes, and their engines run on
        del told["secrets"]
    return _hash({"role": role, "gpus": gpus, "engine": told, "version": recipe.engine_version})


def compat_hash(pools: Sequence[tuple[Role, EngineSpec]], recipe: Recipe) -> str:
    """The hash of whatever touches the layout or the meaning of KV; replicas pair only if theirs are equal.

    As vLLM's NIXL handshake: engine and version, weights, data type, block size, attention backend; and the tensor parallelism of
    both sides, which decides how KV is split over ranks.
    """
    first = pools[0][1]
    layout = {
        "engine": recipe.engine,
        "version": recipe.engine_version,
        "protocol": first.protocol,
        "weights": first.weights,
        "shape": [first.shape.layers, first.shape.kv_heads, first.shape.kv_bytes_per_token],
        "dtype": first.kv_dtype,
        "block": first.block_tokens,
        "roles": {role.value: [engine.tensor_parallel, _touching(engine.options, recipe)] for role, engine in pools},
    }
    return _hash(layout)


def generations(pools: Sequence[PoolSpec], compat: str) -> dict[str, str]:
    """By role, and `compat`: what a release keeps, to be compared with another's."""
    return {**{pool.role.value: pool.generation for pool in pools}, "compat": compat}


def _touching(options: Mapping[str, str], recipe: Recipe) -> dict[str, str]:
    return {key: value for key, value in options.items() if key in recipe.compat_options}


def _hash(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:_DIGITS]
