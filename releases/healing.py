"""Healing between rollouts: which stages are not as they should be, seen all at once, and the repair of one under its lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from denvweb.failpoints import reach
from fleets import selectors as fleets
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.types import UnitSpec
from fleets.domain.views import RoutersView, UnitView
from releases.domain.rollout_heal import Healing, Steady, clear, heal
from releases.domain.rollout_leave import give_up_leaving
from releases.domain.rollout_types import RequestProbe
from releases.domain.scaling import Counts
from releases.domain.spec_types import StageSpec
from releases.models import Rollout, Stage
from releases.selectors.releases import release_unit, stage_spec, units_wanted
from releases.selectors.rollouts import Views, fleets_once, placer
from releases.selectors.scales import counts_of
from releases.services.decisions import effects_apply, event_write

HEAL_STEPS_A_LOOK = 20


@dataclass(frozen=True, slots=True)
class _Seen:
    """A stage, and what was read of it."""

    row: Stage
    units: tuple[UnitView, ...]
    routers: RoutersView
    warm_until: datetime | None
    views: Views


@dataclass(frozen=True, slots=True)
class _Found:
    """What is to be repaired, and what the stage should be."""

    spec: StageSpec
    stable: UnitSpec
    healing: Healing
    marked: dict[str, str]  # unit -> since when nothing new is routed to it, as the row keeps it


def stages_unwell(now: datetime) -> list[int]:
    """The stages without a rollout that a repair would change, in a number of queries that does not grow with theirs. No lock is taken."""
    busy = _rollouts_under_way().filter(stage=OuterRef("pk"))
    return [seen.row.pk for seen in _look(_rows().exclude(Exists(busy)), now) if _unwell(seen, now)]


def stage_heal(stage_id: int, now: datetime | None) -> int:
    """Repair one stage; the number of steps it took."""
    steps = 0
    while steps < HEAL_STEPS_A_LOOK and _heal_once(stage_id, now or timezone.now()):
        reach("heal.after-commit")
        steps += 1
    return steps


def _rows() -> QuerySet[Stage]:
    return Stage.objects.select_related("model", "release__model", "scale")


def _look(stages: QuerySet[Stage], now: datetime) -> list[_Seen]:
    rows = list(stages)
    keys, views = [str(row) for row in rows], fleets_once()
    units, routers, warm = fleets.units_views(stages=keys, now=now), fleets.routers_views(stages=keys, now=now), _warm_until(rows)
    return [_Seen(row, units[key], routers[key], warm.get(row.pk), views) for row, key in zip(rows, keys, strict=True)]


def _unwell(seen: _Seen, now: datetime) -> bool:
    if seen.row.release is None:
        return bool(clear(units=seen.units))
    found = _find(seen, now)
    return bool(found.healing.effects or found.healing.events) or found.marked != seen.row.draining


def _find(seen: _Seen, now: datetime) -> _Found:
    """Compare the stage with what it should be; it has a release."""
    row, release = seen.row, seen.row.release
    assert release is not None
    spec, wanted = stage_spec(release, row.name), _wanted(row)
    stable, replicas = release_unit(release, row.name, wanted=wanted), units_wanted(release, row.name, wanted)
    units = _drained(seen.units, stable, replicas, spec, seen.views)
    want = Steady(str(row), stable, replicas, seen.warm_until)
    draining = {unit: datetime.fromisoformat(at) for unit, at in row.draining.items()}
    place = placer(lambda _: spec.fleets, seen.views)
    found = heal(want, units=units, routers=seen.routers, place=place, draining=draining, now=now)
    return _Found(spec, stable, found, {unit: at.isoformat() for unit, at in found.draining.items()})


def _wanted(row: Stage) -> Counts:
    return counts_of(row.scale.wanted) if hasattr(row, "scale") else {}


def _heal_once(stage_id: int, now: datetime) -> bool:
    with transaction.atomic():
        locked = _rows().select_for_update(of=("self",), no_key=True, skip_locked=True).filter(pk=stage_id)
        seen = next(iter(_look(locked, now)), None)
        if seen is None or _rollouts_under_way().filter(stage=stage_id).exists():
            return False
        row = seen.row
        if row.release is None:
            left = clear(units=seen.units)
            effects_apply(stage=row, effects=left, alarms=(), conditional=ConditionalPolicy())
            return bool(left)
        found = _find(seen, now)
        if found.marked != row.draining:
            Stage.objects.filter(pk=row.pk).update(draining=found.marked)
        effects_apply(stage=row, effects=found.healing.effects, alarms=found.spec.alarm_specs, conditional=found.spec.topology.conditional)
        for event in found.healing.events:
            event_write(event=event, stage=str(row), release=found.stable.release)
        reach("heal.before-commit")
        return any(not isinstance(effect, RequestProbe) for effect in found.healing.effects)


def _drained(units: tuple[UnitView, ...], stable: UnitSpec, replicas: int, spec: StageSpec, views: Views) -> tuple[UnitView, ...]:
    """Units on nodes that are being drained count as failed as soon as they can be replaced."""
    if not any(unit.leaving for unit in units):
        return units
    return give_up_leaving(units, stable=stable, replicas=replicas, fleets=views(spec.fleets))


def _rollouts_under_way() -> QuerySet[Rollout]:
    """Those that have their stage's units in hand; one that waits for its turn has not, unless it leaves a superseded one."""
    leaves = Q(data__left__release__isnull=False)
    return Rollout.objects.exclude(state__in=Rollout.ENDED).filter(~Q(state=Rollout.State.PENDING) | leaves)


def _warm_until(stages: Sequence[Stage]) -> dict[int, datetime]:
    """Until when another release's unit may stay warm: some time after the last rollout of its stage ended. One query."""
    ended = Rollout.objects.filter(stage__in=stages, ended_at__isnull=False).order_by("stage_id", "-ended_at").distinct("stage_id")
    rows = ended.values_list("stage_id", "ended_at", "data__policy__keep_warm_s")
    return {stage: at + timedelta(seconds=float(kept_s)) for stage, at, kept_s in rows if at is not None and kept_s is not None}
