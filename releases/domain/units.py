"""A release's serving unit as the fleets app takes it: pure data, with everything that the recipe adds already in it."""

from __future__ import annotations

from dataclasses import replace

from fleets.domain.types import EngineSpec, Faults, PoolSpec, Role, UnitSpec
from releases.domain.generations import compat_hash, pool_generation
from releases.domain.recipes import Recipe, RoleRules
from releases.domain.spec_types import KvCacheSpec, PoolTopology, ReleaseSpec, StageSpec

NO_PROTOCOL = "none"  # of an aggregated pool, which hands nothing over
# The handovers that the router can drive.
ROUTED_PROTOCOLS = ("vllm-nixl", "vllm-nixl-push", "vllm-mooncake", "sglang-bootstrap", "trtllm-context-first")
SIMULATED_PROTOCOLS = ("vllm-nixl", "sglang-bootstrap")  # those that the simulated engine speaks


def unit_spec(
    release: ReleaseSpec, stage: StageSpec, recipe: Recipe, release_key: str, keep: UnitSpec | None = None, *, simulated: bool = False
) -> UnitSpec:
    """One unit of `stage` on `release` (`ds-flash@7`); `simulated` when its fleets are.

    Pools whose generation is the same in `keep`, the unit as it runs, stay labelled with the release they came with.
    """
    if simulated and recipe.protocol not in SIMULATED_PROTOCOLS:
        recipe = replace(recipe, protocol=SIMULATED_PROTOCOLS[0])
    pools = tuple(_pool(release, recipe, release_key, role, topology) for role, topology in stage.topology.pools)
    if keep is not None:
        running = {pool.generation: pool.release for pool in keep.pools}
        pools = tuple(replace(pool, release=running.get(pool.generation, release_key)) for pool in pools)
    return UnitSpec(
        stage=stage_key(release, stage),
        model=release.model,
        release=release_key,
        compat=compat_hash([(pool.role, pool.engine) for pool in pools], recipe),
        placement=stage.topology.placement,
        pools=pools,
        fleets=stage.fleets,
        tokenizer="" if simulated else recipe.tokenizer,  # the simulated engine has tokens of its own
    )


def stage_key(release: ReleaseSpec, stage: StageSpec) -> str:
    """`ds-flash/prod-us`."""
    return f"{release.model}/{stage.name}"


def engine_spec(release: ReleaseSpec, recipe: Recipe, role: Role, gpus: int) -> EngineSpec:
    """How one pool's engine is started: the recipe's flags with the release's changes on top."""
    kv, rules = release.kv_cache, recipe.roles.get(role, RoleRules())
    dtype = kv.dtype or recipe.kv_cache.dtype
    return EngineSpec(
        engine=recipe.engine,
        recipe=recipe.name,
        model=release.model,
        weights=release.weights,
        protocol=NO_PROTOCOL if role is Role.AGGREGATED else recipe.protocol,
        shape=recipe.model_shape(dtype),
        tensor_parallel=rules.tensor_parallel(gpus),
        block_tokens=kv.block_tokens or recipe.kv_cache.block_size,
        kv_dtype=dtype,
        prefix_caching=recipe.kv_cache.prefix_caching if kv.prefix_caching is None else kv.prefix_caching,
        options={**rules.options, **_kv_options(kv), **release.engine_options.get(role, {})},
        faults=release.faults.get(role, Faults()),
        secrets=dict(release.secrets),
    )


def _kv_options(kv: KvCacheSpec) -> dict[str, str]:
    """What the `kv-cache` section asks for beyond the fields that every engine has."""
    options = {}
    if kv.offload_bytes is not None:
        options["kv-offload-bytes"] = str(kv.offload_bytes)
    if kv.events is not None:
        options["kv-events"] = str(kv.events).lower()
    return options


def _pool(release: ReleaseSpec, recipe: Recipe, release_key: str, role: Role, topology: PoolTopology) -> PoolSpec:
    engine = engine_spec(release, recipe, role, topology.gpus)
    return PoolSpec(
        role=role,
        gpus=topology.gpus,
        replicas=topology.replicas,
        release=release_key,
        generation=pool_generation(role, topology.gpus, engine, recipe),
        engine=engine,
        min_gpus=recipe.roles.get(role, RoleRules()).min_gpus,
        least=topology.min_replicas if topology.max_replicas > topology.min_replicas else None,
    )
