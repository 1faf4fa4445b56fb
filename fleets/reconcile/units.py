"""Units heal: gangs start, the lost and the failed are replaced within their unit's place, the finished are cleared away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from django.db import transaction

from denvweb.core.errors import ConflictError
from denvweb.wake import wake
from fleets.domain.placement import Refusal, place_unit
from fleets.domain.types import (
    FleetView,
    PlacementRule,
    PoolSpec,
    RankDesired,
    RankPlacement,
    ReplicaPlacement,
    UnitPlacement,
    UnitSpec,
)
from fleets.models import GpuClaim, Rank, Replica, Unit, generation_next
from fleets.reconcile.look import Needs, look_at
from fleets.selectors.fleets import fleet_views
from fleets.selectors.routing import routers_view
from fleets.selectors.rows import spec_of, units_with_ranks
from fleets.services.burial import replica_bury, unit_bury
from fleets.services.launch import Launch, gang_start, nodes_touch, replicas_end, replicas_launch
from fleets.services.routing import stage_lock, table_refresh
from fleets.services.units import unit_stop
from metrics.services import event_append


def units_look(now: datetime) -> None:
    """Look at all units without a lock, and take those that need something one by one under their stage's lock."""
    keeping = set(GpuClaim.objects.filter(rank=None).values_list("unit_id", flat=True))
    for unit in units_with_ranks(Unit.objects.all()):
        if look_at(unit, spec_of(unit), now).anything(unit.failed) or unit.id in keeping:
            with transaction.atomic():
                _tend(unit.id, unit.stage, now)


def _tend(unit_id: str, stage: str, now: datetime) -> None:
    stage_lock(stage=stage)
    found = units_with_ranks(Unit.objects.filter(id=unit_id))
    if not found:
        return
    unit, spec = found[0], spec_of(found[0])
    needs = look_at(unit, spec, now)
    if needs.stop:
        _event(unit, "unit.drained", f"unit {unit.slot} of {unit.stage} drained for too long and is stopped", "warn")
        unit_stop(unit=unit.id)
        return
    if needs.bury:
        gone = [replica_bury(replica=replica) for replica in unit.replicas.all()]
        if unit_bury(unit=unit) or any(gone):
            wake("releases.reconcile")
        if unit.desired != Unit.Desired.RUN:
            return
    for replica in needs.start:
        gang_start(replica=replica, now=now)
    _recall(unit, needs, now)
    _drain(unit, needs, now)
    _end(unit, needs, now)
    _fill(unit, spec, needs, now)
    _say_failed(unit, needs.failed)
    table_refresh(stage=stage)


def _event(unit: Unit, kind: str, sentence: str, level: str = "info") -> None:
    event_append(kind=kind, sentence=sentence, level=level, stage=unit.stage, model=unit.model, fleet=unit.fleet_id, release=unit.release)


def _end(unit: Unit, needs: Needs, now: datetime) -> None:
    """Have replicas stop that are to be replaced, or are too many; their places are filled from the next pass on."""
    ends = [replica for replica, _ in needs.replace] + needs.surplus
    if not ends:
        return
    replicas_end(replicas=ends, now=now, retire=True)
    _changed(unit)
    for _, reason in needs.replace:
        _event(unit, "replica.replaced", f"unit {unit.slot} of {unit.stage}: {reason}; it is replaced", "warn")
    wake("fleets.reconcile")


def _recall(unit: Unit, needs: Needs, now: datetime) -> None:
    """Have replicas serve again that were on their way out."""
    _desire(needs.recall, RankDesired.RUN, now)
    for replica in needs.recall:
        _event(unit, "replica.recalled", f"{_name(unit, replica)} is wanted after all and serves on")


def _drain(unit: Unit, needs: Needs, now: datetime) -> None:
    """Have replicas that are too many take nothing new; those whose drain is over, as they and the routers say, end."""
    _desire(needs.drain, RankDesired.DRAIN, now)
    for replica in needs.drain:
        _event(unit, "replica.draining", f"{_name(unit, replica)} is one too many; it finishes what it has")
    if not needs.idle:
        return
    routers = routers_view(stage=unit.stage, now=now)
    if routers.live and routers.confirmed >= routers.generation:
        needs.surplus += needs.idle
        for replica in needs.idle:
            _event(unit, "replica.drained", f"{_name(unit, replica)} has finished and is stopped")


def _desire(replicas: Sequence[Replica], desired: RankDesired, now: datetime) -> None:
    ids = [replica.id for replica in replicas]
    if ids:
        Replica.objects.filter(id__in=ids).update(desired=desired, desired_at=now)
        nodes_touch(Rank.objects.filter(replica_id__in=ids).values_list("node_id", flat=True))


def _name(unit: Unit, replica: Replica) -> str:
    return f"unit {unit.slot} of {unit.stage}: {replica.role} {replica.ordinal + 1}"


def _changed(unit: Unit) -> None:
    """An earlier probe says nothing of the unit any more."""
    unit.revision = generation_next()
    Unit.objects.filter(id=unit.id).update(revision=unit.revision)


def _fill(unit: Unit, spec: UnitSpec, needs: Needs, now: datetime) -> None:
    """Make missing replicas where there is room. Without any, wait for those that leave, or else say why it cannot be."""
    if not needs.missing:
        if not needs.replace:
            GpuClaim.objects.filter(unit=unit, rank=None).delete()
        return
    fleet, freed = _place_of(unit), _kept(unit)
    launches: list[Launch] = []
    for pool, ordinal in needs.missing:
        placed = _place(spec, pool, fleet, freed, [launch.placement for launch in launches])
        if isinstance(placed, Refusal):
            if not needs.leaving and not needs.replace and ordinal < pool.needed:
                needs.failed = f"no room for {pool.role.value} {ordinal + 1} in {unit.domain or unit.fleet_id}: {placed.arithmetic}"
            break
        launches.append(Launch(pool, replace(placed, ordinal=ordinal)))
    if launches:
        _launch(unit, launches, needs, now)


def _launch(unit: Unit, launches: Sequence[Launch], needs: Needs, now: datetime) -> None:
    try:
        with transaction.atomic():
            replicas_launch(unit=unit, launches=launches, now=now)
    except ConflictError as error:  # another stage's unit was quicker; the next pass plans with what is left
        needs.failed = needs.failed or error.detail
        return
    _changed(unit)


def _place_of(unit: Unit) -> FleetView:
    """The unit's fleet, cut down to its domain if it has one."""
    fleet = fleet_views(names=[unit.fleet_id])[0]
    if not unit.domain:
        return fleet
    return replace(fleet, domains=tuple(domain for domain in fleet.domains if domain.name == unit.domain))


def _kept(unit: Unit) -> UnitPlacement:
    """The GPUs that are kept for the unit, as a placement that may be given out again."""
    gpus: dict[str, list[int]] = {}
    for node, index in GpuClaim.objects.filter(unit=unit, rank=None).order_by("node_id", "gpu_index").values_list("node_id", "gpu_index"):
        gpus.setdefault(node, []).append(index)
    ranks = tuple(RankPlacement(node, tuple(indices)) for node, indices in gpus.items())
    return UnitPlacement(unit.fleet_id, unit.domain, (ReplicaPlacement(spec_of(unit).pools[0].role, 0, ranks),))


def _place(
    spec: UnitSpec, pool: PoolSpec, fleet: FleetView, kept: UnitPlacement, before: Sequence[ReplicaPlacement]
) -> ReplicaPlacement | Refusal:
    """One replica beside those placed before it in the same pass."""
    rule = PlacementRule.SAME_DOMAIN if len(fleet.domains) == 1 else spec.placement
    alone = replace(spec, pools=(replace(pool, replicas=1),), placement=rule)
    taken = UnitPlacement(fleet.name, "", tuple(before))
    placed = place_unit(alone, [fleet], freed=[kept], taken=[taken])
    return placed if isinstance(placed, Refusal) else placed.replicas[0]


def _say_failed(unit: Unit, failed: str) -> None:
    if failed == unit.failed:
        return
    Unit.objects.filter(id=unit.id).update(failed=failed)
    if failed:
        _event(unit, "unit.failed", f"unit {unit.slot} of {unit.stage}: {failed}", "bad")
    wake("releases.reconcile")
