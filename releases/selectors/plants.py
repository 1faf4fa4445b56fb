"""A stage as the scaling policy sees it: what may be moved, and what its traffic is like now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from fleets import selectors as fleets
from fleets.domain.hardware import GPUS
from fleets.domain.scaling.types import Bounds, Knob, Plant, Signals
from fleets.domain.scaling.yardstick import Traffic, decode_sequences, local_prefill_most, prefill_tokens_per_s
from fleets.domain.types import PoolSpec, Role, UnitSpec
from fleets.domain.views import UnitView
from metrics import selectors as metrics
from metrics.domain.types import Metric
from releases.domain.plan import MoveKind
from releases.domain.rollout_types import RolloutState
from releases.domain.rollout_units import serving
from releases.domain.scaling import bounds_of
from releases.domain.spec_types import StageSpec
from releases.models import Rollout, Stage
from releases.selectors.releases import release_unit
from releases.selectors.rollouts import bring_up_s_of, state_of
from releases.selectors.scales import room_for_units

BRING_UP_S = 120.0  # until one has been watched
GPU_UNKNOWN = "H100"  # stands in for a GPU kind that is in no table


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a stage, for `decide`. With a `rollout` under way the number of units is not the policy's."""

    plant: Plant
    signals: Signals
    rollout: bool


def look(
    *, stage: Stage, spec: StageSpec, counts: Mapping[Knob, int], held: Mapping[Knob, int], units: Sequence[UnitView], now: datetime
) -> Seen:
    """What the policy decides on. `counts` are in force, `held` those that a person set."""
    assert stage.release is not None
    key, unit = str(stage), release_unit(stage.release, stage.name)
    weights = fleets.routers_view(stage=key, now=now).weights
    mine = [one for one in serving(units) if weights.get(one.release, 0) > 0]
    traffic = metrics.traffic_view(stage=key, now=now)
    load = fleets.units_load(stage=key, units=mine, now=now)
    rollout = Rollout.objects.filter(stage=stage).exclude(state__in=[*Rollout.ENDED, Rollout.State.PENDING]).first()
    if rollout is not None:
        counts = {**counts, Knob.UNITS: max(1, len(mine))}
        held = {**held, Knob.UNITS: counts[Knob.UNITS]}
    prompt = traffic.prompt_tokens or Traffic().prompt_tokens
    shape = Traffic(prompt, prompt + (traffic.output_tokens or 0.0) / 2)
    backlog = (load.prefill_queue or 0) * prompt / metrics.WINDOW_S
    signals = Signals(
        at_s=now.timestamp(),
        age_s=traffic.age_s,
        counts=counts,
        ready={Knob.UNITS: len(mine), **{Knob(role.value): count for role, count in load.ready.items()}},
        ttft_p99_s=traffic.ttft_p99_s,
        queue_p99_s=traffic.queue_p99_s,
        itl_p99_s=traffic.itl_p99_s,
        prefill_share=traffic.prefill_share,
        prompts_per_s=traffic.prompts_per_s,
        prompt_tokens_per_s=traffic.prompt_tokens_per_s,
        burst_tokens_per_s=traffic.burst_tokens_per_s + backlog,  # what waits still has not ended, and is in no figure yet
        prefilled_tokens_per_s=traffic.newest_tokens_per_s,
        prefill_queue=load.prefill_queue,
        sequences=load.sequences,
        kv_use=load.kv_use,
    )
    state = state_of(rollout) if rollout is not None else None
    plant = _plant(stage, spec, unit, held, shape, state)
    placeable = counts[Knob.UNITS] + room_for_units(spec, unit.gpus)
    return Seen(_with_most_units(plant, placeable), signals, rollout is not None)


def _with_most_units(plant: Plant, most: int) -> Plant:
    """No more units than the fleets have room for: one that cannot be placed only makes the stage look broken."""
    units = plant.bounds[Knob.UNITS]
    return replace(plant, bounds={**plant.bounds, Knob.UNITS: Bounds(units.least, max(units.least, min(units.most, most)))})


def _plant(stage: Stage, spec: StageSpec, unit: UnitSpec, held: Mapping[Knob, int], shape: Traffic, rollout: RolloutState | None) -> Plant:
    bounds = bounds_of(spec) | {knob: Bounds(count, count) for knob, count in held.items()}
    gpu = GPUS.get(_gpu_kind(spec)) or GPUS[GPU_UNKNOWN]
    pools = {pool.role: pool for pool in unit.pools}
    prefill = pools.get(Role.PREFILL) or pools[Role.AGGREGATED]
    decode = pools.get(Role.DECODE) or pools[Role.AGGREGATED]
    itl_limit_s = _limit_s(spec, Metric.ITL)
    conditional = spec.topology.conditional
    return Plant(
        bounds=bounds,
        gpus={Knob(role.value): pool.gpus for role, pool in pools.items()},
        budget=_budget(str(stage), unit, rollout),
        ttft_limit_s=_limit_s(spec, Metric.TTFT),
        itl_limit_s=itl_limit_s,
        prefill_tokens_per_s=prefill_tokens_per_s(prefill.engine.shape, gpu, prefill.gpus, shape),
        decode_sequences=decode_sequences(decode.engine.shape, gpu, decode.gpus, itl_limit_s, shape),
        bring_up_s=bring_up_s_of(stage) or BRING_UP_S,
        local_prefill_below=conditional.local_prefill_below,
        local_prefill_most=_local_most(decode, conditional.local_prefill_below, itl_limit_s, shape, gpu.name),
    )


def _local_most(decode: PoolSpec, base: int, itl_limit_s: float | None, shape: Traffic, gpu: str) -> int:
    return max(base, local_prefill_most(decode.engine.shape, GPUS[gpu], decode.gpus, itl_limit_s, shape))


def _gpu_kind(spec: StageSpec) -> str:
    found = fleets.fleet_views(names=spec.fleets)
    return found[0].gpu_kind if found else GPU_UNKNOWN


def _limit_s(spec: StageSpec, metric: Metric) -> float | None:
    """The tightest alarm on a latency's tail is the limit that is kept."""
    return min((alarm.limit_s for alarm in spec.alarm_specs if alarm.metric == metric.value and alarm.limit_s is not None), default=None)


def _budget(stage: str, unit: UnitSpec, rollout: RolloutState | None) -> int:
    """GPUs that every unit may have in its domain; what a rollout under way has planned there is not free."""
    planned: dict[str, int] = {}
    for move in rollout.moves[rollout.cursor :] if rollout is not None else ():
        if move.kind is MoveKind.BRING_UP and move.placement is not None:
            planned[move.placement.domain] = planned.get(move.placement.domain, 0) + unit.gpus
    rooms = fleets.unit_rooms(stage=stage)
    return min((max(room.held, room.budget - planned.get(room.where, 0)) for room in rooms), default=unit.gpus)
