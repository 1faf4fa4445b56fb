"""A stage and its recipe as the sizing and the simulator take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleets.domain.hardware import GPUS, GpuKind
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.simulator.arrivals import Process
from fleets.domain.simulator.types import Limits, PoolShape, StageShape
from fleets.domain.sizing.types import RoleBounds, Serving
from fleets.domain.types import FleetView, PlacementRule, PoolSpec, Role
from releases.domain.recipes import Parallelism, Recipe
from releases.domain.spec_types import ReleaseSpec, StageSpec
from releases.domain.units import ROUTED_PROTOCOLS, unit_spec

TTFT_DEFAULT_S, ITL_DEFAULT_S = 2.0, 0.05  # limits of a stage without alarms
LENGTH_SPREAD = 1.0  # of prompts and answers when only their means are known: recorded traffic has 0.9 to 1.5
MOST_GPUS = 4096  # of one replica
_P99 = 0.01  # the share over a limit that a p99 alarm allows


def serving_of(recipe: Recipe, gpu: GpuKind, *, domain_gpus: int | None = None, simulated: bool = False) -> Serving:
    """What a recipe allows on a GPU kind."""
    roles = {}
    for role, rules in recipe.roles.items():
        most = MOST_GPUS if recipe.parallelism is Parallelism.EXPERT else rules.max_tensor_parallel or MOST_GPUS
        roles[role] = RoleBounds(rules.min_gpus, most, int(rules.options.get("max-num-batched-tokens", 8192)))
    return Serving(
        model=recipe.model_shape(),
        gpu=gpu,
        roles=roles,
        cannot_disaggregate=_cannot(recipe, simulated),
        hetero_tensor_parallel=recipe.hetero_tensor_parallel,
        conditional=ConditionalPolicy(),
        domain_gpus=domain_gpus or 0,
    )


def _cannot(recipe: Recipe, simulated: bool) -> str:
    if not recipe.can_disaggregate:
        return f"recipe {recipe.name} has no prefill and decode roles"
    if recipe.protocol not in ROUTED_PROTOCOLS and not simulated:
        return f"{recipe.engine} hands KV over by {recipe.protocol}, which the router does not speak"
    return ""


def serving_on(recipe: Recipe, stage: StageSpec, fleets: Sequence[FleetView]) -> Serving | None:
    """The same on the first of the stage's fleets; None when that is not there or of an unknown kind."""
    known = {fleet.name: fleet for fleet in fleets}
    fleet = known.get(stage.fleets[0]) if stage.fleets else None
    if fleet is None or fleet.gpu_kind not in GPUS:
        return None
    largest = max((domain.size for domain in fleet.domains), default=0)
    return serving_of(recipe, GPUS[fleet.gpu_kind], domain_gpus=largest, simulated=fleet.simulated)


def shape_of(
    release: ReleaseSpec,
    stage: StageSpec,
    recipe: Recipe,
    gpu: GpuKind,
    *,
    units: int | None = None,
    conditional: ConditionalPolicy | None = None,
    replicas: Mapping[Role, int] | None = None,
) -> StageShape:
    """What a release has on a stage; `units`, `conditional` and `replicas` of a role in place of the file's own."""
    spec = unit_spec(release, stage, recipe, f"{release.model}@0")
    counts = replicas or {}
    pools = tuple(_pool_shape(pool, counts.get(pool.role, pool.replicas)) for pool in spec.pools)
    return StageShape(
        model=spec.pools[0].engine.shape,
        gpu=gpu,
        units=units or stage.replicas,
        pools=pools,
        conditional=conditional or stage.topology.conditional,
        same_domain=stage.topology.placement is PlacementRule.SAME_DOMAIN,
    )


def _pool_shape(pool: PoolSpec, replicas: int) -> PoolShape:
    options = pool.engine.options
    sequences, budget = int(options.get("max-num-seqs", 1024)), int(options.get("max-num-batched-tokens", 8192))
    return PoolShape(pool.role, replicas, pool.gpus, sequences, budget, block_tokens=pool.engine.block_tokens)


def limits_of(stage: StageSpec) -> Limits:
    """Its own p99 alarms, and the usual limits where it has none."""
    found = {
        alarm.metric: alarm.limit_s for alarm in stage.alarm_specs if alarm.limit_s and alarm.over is None and abs(alarm.p0 - _P99) < 1e-9
    }
    return Limits(found.get("ttft", TTFT_DEFAULT_S), found.get("itl", ITL_DEFAULT_S))


def process_of(rate_per_s: float, input_tokens: float, output_tokens: float, hit_ratio: float | None) -> Process:
    """Arrivals of so many requests of such mean lengths; their spreads are not measured."""
    hit = min(0.99, hit_ratio or 0.0)
    return Process(rate_per_s, input_tokens, output_tokens, hit, input_spread=LENGTH_SPREAD, output_spread=LENGTH_SPREAD)
