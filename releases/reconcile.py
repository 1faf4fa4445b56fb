"""The reconciler of releases: one look at every rollout under way, then at every stage without one.

It runs on beat and on wake, in as many processes as there are, and needs nothing but PostgreSQL. Each rollout and each stage is
locked while it is looked at; who finds it locked passes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from denvweb.failpoints import reach
from fleets import selectors as fleets
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.types import UnitSpec
from fleets.domain.views import UnitView
from releases.domain.rollout_heal import Steady, clear, heal
from releases.domain.rollout_leave import give_up_leaving
from releases.domain.rollout_types import RequestProbe
from releases.domain.spec_types import StageSpec
from releases.models import Rollout, Stage
from releases.selectors.releases import release_unit, stage_spec, units_wanted
from releases.selectors.rollouts import placer
from releases.services.autoscale import stage_look, stages_due
from releases.services.decisions import effects_apply, event_write
from releases.services.drive import drive
from releases.services.steady import steady_look
from releases.services.sweep import rollouts_sweep

log = logging.getLogger(__name__)

HEAL_STEPS_A_LOOK = 20


@dataclass(slots=True)
class Look:
    """What one look did. `failures` are rollouts or stages that raised; each is logged with its traceback."""

    decisions: int = 0
    healings: int = 0
    scalings: int = 0
    alarms: int = 0  # breaches between rollouts that began or ended
    failures: int = 0


def reconcile(now: datetime | None = None) -> Look:
    """Take every rollout and every stage as far as it gets now. One that fails does not keep the others waiting."""
    look = Look()
    for rollout_id in _busy(look, now or timezone.now()):
        look.decisions += _guarded(look, f"rollout {rollout_id}", partial(drive, rollout_id=rollout_id, now=now))
    busy = _rollouts_under_way().filter(stage=OuterRef("pk"))
    for stage_id in list(Stage.objects.exclude(Exists(busy)).values_list("pk", flat=True)):
        look.healings += _guarded(look, f"stage {stage_id}", partial(_heal, stage_id, now))
    for stage_id in stages_due(now or timezone.now()):
        look.scalings += _guarded(look, f"scale of stage {stage_id}", partial(stage_look, stage_id=stage_id, now=now))
    look.alarms += _guarded(look, "alarms between rollouts", partial(steady_look, now=now))
    return look


def _busy(look: Look, now: datetime) -> list[str]:
    """The rollouts that have something to decide; all of them should the look at all of them fail."""
    try:
        return rollouts_sweep(now)
    except Exception:
        look.failures += 1
        log.exception("the look at all rollouts at once failed; they are looked at one by one")
        return list(Rollout.objects.exclude(state__in=Rollout.ENDED).order_by("created_at").values_list("pk", flat=True))


def _guarded(look: Look, what: str, do: Callable[[], int]) -> int:
    try:
        return do()
    except Exception:
        look.failures += 1
        log.exception("%s could not be reconciled; the next look tries again", what)
        return 0


def _heal(stage_id: int, now: datetime | None) -> int:
    """Repair one stage; the number of steps it took."""
    steps = 0
    while steps < HEAL_STEPS_A_LOOK and _heal_once(stage_id, now or timezone.now()):
        reach("heal.after-commit")
        steps += 1
    return steps


def _heal_once(stage_id: int, now: datetime) -> bool:
    with transaction.atomic():
        rows = Stage.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
        row = rows.select_related("model", "release__model").filter(pk=stage_id).first()
        if row is None or _under_way(row):
            return False
        key = str(row)
        units, routers = fleets.units_view(stage=key, now=now), fleets.routers_view(stage=key, now=now)
        if row.release is None:
            left = clear(units=units)
            effects_apply(stage=row, effects=left, alarms=(), conditional=ConditionalPolicy())
            return bool(left)
        spec = stage_spec(row.release, row.name)
        stable, replicas = release_unit(row.release, row.name), units_wanted(row.release, row.name)
        units = _drained(units, stable, replicas, spec)
        want = Steady(key, stable, replicas, _warm_until(row))
        draining = {unit: datetime.fromisoformat(at) for unit, at in row.draining.items()}
        found = heal(want, units=units, routers=routers, place=placer(lambda _: spec.fleets), draining=draining, now=now)
        marked = {unit: at.isoformat() for unit, at in found.draining.items()}
        if marked != row.draining:
            Stage.objects.filter(pk=row.pk).update(draining=marked)
        effects_apply(stage=row, effects=found.effects, alarms=spec.alarm_specs, conditional=spec.topology.conditional)
        for event in found.events:
            event_write(event=event, stage=key, release=want.stable.release)
        reach("heal.before-commit")
        return any(not isinstance(effect, RequestProbe) for effect in found.effects)


def _drained(units: tuple[UnitView, ...], stable: UnitSpec, replicas: int, spec: StageSpec) -> tuple[UnitView, ...]:
    """Units on nodes that are being drained count as failed as soon as they can be replaced."""
    if not any(unit.leaving for unit in units):
        return units
    return give_up_leaving(units, stable=stable, replicas=replicas, fleets=fleets.fleet_views(names=spec.fleets))


def _under_way(row: Stage) -> bool:
    """Whether a rollout has the stage's units in hand; one that waits for its turn has not, unless it leaves a superseded one."""
    return _rollouts_under_way().filter(stage=row).exists()


def _rollouts_under_way() -> QuerySet[Rollout]:
    leaves = Q(data__left__release__isnull=False)
    return Rollout.objects.exclude(state__in=Rollout.ENDED).filter(~Q(state=Rollout.State.PENDING) | leaves)


def _warm_until(row: Stage) -> datetime | None:
    """Until when another release's unit may stay warm: some time after the last rollout ended."""
    ended = row.rollouts.filter(ended_at__isnull=False).order_by("-ended_at").values_list("ended_at", "data__policy__keep_warm_s").first()
    if ended is None or ended[0] is None or ended[1] is None:
        return None
    return ended[0] + timedelta(seconds=float(ended[1]))
