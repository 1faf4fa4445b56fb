"""A plan in words."""

from __future__ import annotations

from collections.abc import Sequence

from denvweb.core.units import format_duration
from fleets.domain.types import UnitSpec
from fleets.domain.views import UnitView


def number(release: str) -> int:
    """8 of `ds-flash@8`."""
    return int(release.rpartition("@")[2])


def percent(weight_bp: int) -> str:
    """`10%` of 1,000 basis points."""
    return f"{weight_bp / 100:g}%"


def count(how_many: int, noun: str) -> str:
    """`1 unit`, `2 units`."""
    return f"{how_many} {noun}{'' if how_many == 1 else 's'}"


def about(seconds: float | None) -> str:
    """`, about 20 s`, or nothing when nobody knows."""
    return f", about {format_duration(seconds)}" if seconds is not None else ""


def hold(seconds: float, approve: bool) -> str:
    """What a step waits for."""
    return f"hold {format_duration(seconds)} and proof of health" + (", then a person approves" if approve else "")


def bake(seconds: float) -> str:
    """What the last watch is."""
    return f"{format_duration(seconds)}, alarms armed"


def changed(old: UnitSpec | None, new: UnitSpec) -> str:
    """Which pools are touched: `decode only`, `prefill and decode`, `nothing but numbers of replicas`."""
    if old is None:
        return "first deployment"
    kept = {(pool.role, pool.generation) for pool in old.pools}
    touched = [pool.role.value for pool in new.pools if (pool.role, pool.generation) not in kept]
    if old.compat != new.compat:
        return "everything: what the KV cache looks like differs"
    if not touched:
        return "nothing but numbers of replicas"
    return f"{touched[0]} only" if len(touched) == 1 and len(new.pools) > 1 else " and ".join(touched)


def replaced(old: UnitSpec, new: UnitSpec, *, in_place: bool) -> str:
    """`drain, replace decode (64 GPUs), keep prefill, probe`."""
    if not in_place:
        return f"drain, replace the whole unit ({new.gpus} GPUs), probe"
    kept = {(pool.role, pool.generation) for pool in old.pools}
    fresh = [f"{pool.role.value} ({pool.gpus * pool.replicas} GPUs)" for pool in new.pools if (pool.role, pool.generation) not in kept]
    stays = [pool.role.value for pool in new.pools if (pool.role, pool.generation) in kept]
    return f"drain, replace {' and '.join(fresh)}, keep {' and '.join(stays)}, probe"


def way_back(
    old: UnitSpec, warm: Sequence[UnitView], cold_step: int | None, replicas: int, bring_up_s: float | None, keep_warm_s: float
) -> str:
    """How a rollback would go, before and after the point where no old unit is left."""
    took = format_duration(bring_up_s) if bring_up_s is not None else "as long as a unit takes to come up"
    if cold_step == 1:
        return f"cold from step 1 on: about {took} without capacity"
    if cold_step is not None:
        return f"instant until step {cold_step}, then about {took} at {max(0, replicas - 1) / replicas:.0%} of capacity"
    where = " and ".join(str(unit.slot) for unit in warm)
    kept = format_duration(keep_warm_s)
    return f"instant: release {number(old.release)} stays warm on unit {where} for {kept} after success, while its GPUs are not needed"
