"""Units heal: gangs start, the lost and the failed are replaced within their unit's place, the finished are cleared away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from django.db import transaction

from denvweb.core.errors import ConflictError
from denvweb.wake import wake
from fleets.domain.placement import Refusal
from fleets.domain.types import RankDesired, UnitSpec
from fleets.models import GpuClaim, Rank, Replica, Unit, generation_next
from fleets.reconcile.look import Needs, look_at
from fleets.reconcile.room import kept, place_of, place_replica
from fleets.reconcile.sick import mend_sick
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
        if look_at(unit, spec_of(unit), now).anything(unit) or unit.id in keeping:
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
    mend_sick(unit, spec, needs)
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
    fleet, freed = place_of(unit), kept(unit)
    launches: list[Launch] = []
    for pool, ordinal in needs.missing:
        placed = place_replica(spec, pool, fleet, freed, [launch.placement for launch in launches])
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


def _say_failed(unit: Unit, failed: str) -> None:
    if failed == unit.failed:
        return
    Unit.objects.filter(id=unit.id).update(failed=failed)
    if failed:
        _event(unit, "unit.failed", f"unit {unit.slot} of {unit.stage}: {failed}", "bad")
    wake("releases.reconcile")
