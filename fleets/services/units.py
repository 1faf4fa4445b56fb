"""What rollouts ask of serving units. Every call locks the unit's stage first, and runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from django.db import transaction
from django.utils import timezone

from denvweb.core import wire
from denvweb.core.errors import ConflictError, NotFoundError
from denvweb.core.ids import derived_id
from denvweb.wake import wake
from fleets.domain.types import RankDesired, Role, UnitPlacement, UnitSpec
from fleets.models import Rank, Replica, Unit, generation_next
from fleets.selectors.rows import spec_of
from fleets.services.launch import Launch, nodes_touch, replicas_end, replicas_launch
from fleets.services.routing import stage_lock, table_refresh


@transaction.atomic
def unit_create(*, spec: UnitSpec, placement: UnitPlacement, slot: int) -> str:
    """Make a unit where it was placed; its agents take it up from here. Returns its id.

    Raises ConflictError `gpu-taken` when another unit has claimed one of its GPUs since the placement was made.
    """
    stage_lock(stage=spec.stage, model=spec.model)
    now, revision = timezone.now(), generation_next()
    unit = Unit.objects.create(
        id=derived_id("u", spec.stage, spec.release, slot, revision, length=8),
        stage=spec.stage,
        model=spec.model,
        slot=slot,
        release=spec.release,
        spec=wire.to_plain(spec),
        fleet_id=placement.fleet,
        domain=placement.domain,
        desired_at=now,
        revision=revision,
        created_at=now,
    )
    pools = {pool.role: pool for pool in spec.pools}
    replicas_launch(unit=unit, launches=[Launch(pools[replica.role], replica) for replica in placement.replicas], now=now)
    wake("fleets.reconcile")
    return unit.id


def _lock_if_there(unit_id: str) -> Unit | None:
    """Lock the unit's stage, then the unit; None when it is gone."""
    stage = Unit.objects.filter(id=unit_id).values_list("stage", flat=True).first()
    if stage is None:
        return None
    stage_lock(stage=stage)
    return Unit.objects.select_for_update().filter(id=unit_id).first()


def _lock(unit_id: str) -> Unit:
    """As above; NotFoundError `unit-gone` when it is gone."""
    unit = _lock_if_there(unit_id)
    if unit is None:
        raise NotFoundError(f"There is no unit {unit_id}.", code="unit-gone")
    return unit


@transaction.atomic
def unit_retarget(*, unit: str, spec: UnitSpec) -> None:
    """Change a unit in place to another spec of its stage.

    Replicas whose pool's generation stays keep running and are relabelled, and those that are too many drain; the others stop,
    and their GPUs are kept for the replicas that follow them. A drained unit runs again. Raises ConflictError `unit-stopping`
    when it was told to stop.
    """
    row = _lock(unit)
    if row.desired in (Unit.Desired.STOP, Unit.Desired.GONE):
        raise ConflictError(f"Unit {unit} is stopping and cannot be changed.", code="unit-stopping")
    now = timezone.now()
    row.spec, row.release = wire.to_plain(spec), spec.release
    row.desired, row.desired_at = Unit.Desired.RUN, now
    row.revision, row.failed, row.probe_detail = generation_next(), "", ""
    row.save()
    pools = {pool.role.value: pool for pool in spec.pools}
    ends = []
    for replica in Replica.objects.filter(unit=row, retired=False):
        pool = pools.get(replica.role)
        if pool is None or pool.generation != replica.generation:
            ends.append(replica)
            continue
        replica.release = pool.release
        if replica.desired == RankDesired.DRAIN:
            replica.desired, replica.desired_at = RankDesired.RUN, now
        replica.save(update_fields=["release", "desired", "desired_at"])
    replicas_end(replicas=ends, now=now, retire=True)
    nodes_touch(Rank.objects.filter(replica__unit=row).values_list("node_id", flat=True))
    table_refresh(stage=row.stage)
    wake("fleets.reconcile")


@transaction.atomic
def unit_scale(*, unit: str, replicas: Mapping[Role, int]) -> bool:
    """Have a unit with other numbers of replicas, all of them from the same instant; its running replicas go on as they are.

    The reconciler of fleets makes the new ones inside the unit's domain, and drains those that are too many before it ends them.
    False when the unit has these numbers already, or is on its way out. A role that the unit has not is passed over.
    """
    row = _lock_if_there(unit)
    if row is None or row.desired != Unit.Desired.RUN:
        return False
    spec = spec_of(row)
    scaled = replace(spec, pools=tuple(replace(pool, replicas=max(1, replicas.get(pool.role, pool.replicas))) for pool in spec.pools))
    if scaled == spec:
        return False
    row.spec = wire.to_plain(scaled)
    row.save(update_fields=["spec"])
    wake("fleets.reconcile")
    return True


@transaction.atomic
def unit_drain(*, unit: str) -> None:
    """Have a unit take nothing new and finish what it has; at the drain's deadline it is stopped. One that ends is left alone."""
    row = _lock_if_there(unit)
    if row is None or row.desired != Unit.Desired.RUN:
        return
    now = timezone.now()
    row.desired, row.desired_at, row.routable, row.probe_wanted = Unit.Desired.DRAIN, now, False, False
    row.save()
    held = Replica.objects.filter(unit=row, desired=RankDesired.HOLD)
    replicas_end(replicas=held, now=now, retire=False)  # what has not started has nothing to finish
    Replica.objects.filter(unit=row, desired=RankDesired.RUN).update(desired=RankDesired.DRAIN, desired_at=now)
    nodes_touch(Rank.objects.filter(replica__unit=row).values_list("node_id", flat=True))
    table_refresh(stage=row.stage)


@transaction.atomic
def unit_stop(*, unit: str) -> None:
    """End a unit. Its claims go as its agents report its ranks stopped, its row goes with the last of them; once gone it stays so."""
    row = _lock_if_there(unit)
    if row is None or row.desired in (Unit.Desired.STOP, Unit.Desired.GONE):
        return
    now = timezone.now()
    if row.desired == Unit.Desired.DRAIN:
        row.drained_s = max(0.0, (now - row.desired_at).total_seconds())
    row.desired, row.desired_at, row.routable, row.probe_wanted = Unit.Desired.STOP, now, False, False
    row.save()
    row.claims.filter(rank=None).delete()
    replicas_end(replicas=Replica.objects.filter(unit=row), now=now, retire=False)
    table_refresh(stage=row.stage)
    wake("fleets.reconcile")


@transaction.atomic
def unit_set_routable(*, unit: str, routable: bool) -> None:
    """Whether users' requests may go to the unit."""
    row = _lock(unit)
    if row.routable == routable:
        return
    if routable and row.desired != Unit.Desired.RUN:
        raise ConflictError(f"Unit {unit} is on its way out and takes no traffic.", code="unit-stopping")
    row.routable = routable
    row.save(update_fields=["routable"])
    table_refresh(stage=row.stage)


@transaction.atomic
def unit_request_probe(*, unit: str) -> None:
    """Have the routers send the unit a real request, and again after each change of it, until one succeeds."""
    row = _lock(unit)
    if row.probe_wanted or row.desired != Unit.Desired.RUN:
        return
    row.probe_wanted = True
    row.save(update_fields=["probe_wanted"])
    table_refresh(stage=row.stage)
