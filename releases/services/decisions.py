"""A decision becomes rows: the rollout's state by compare-and-swap, its effects on fleets, its lines in the journal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from denvweb.core import wire
from denvweb.core.errors import ConflictError, NotFoundError
from denvweb.failpoints import reach
from denvweb.wake import wake
from fleets import selectors as fleet_selectors
from fleets import services as fleets
from fleets.domain.protocol import ConditionalPolicy, Synthetic
from metrics.domain.types import AlarmSpec
from metrics.domain.views import AlarmVerdict
from metrics.services import event_append
from releases.domain.gates import GUARD
from releases.domain.rollout_types import (
    ENDED,
    CreateUnit,
    Decision,
    Effect,
    Event,
    HoldRelease,
    RequestProbe,
    RetargetUnit,
    RolloutState,
    SetRoutable,
    SetStable,
    SetWeights,
    StopUnit,
)
from releases.domain.synthetic import synthetic_of
from releases.models import Release, Rollout, Stage, StageScale
from releases.selectors.releases import stage_spec
from releases.selectors.scales import conditional_now

log = logging.getLogger(__name__)


def decision_write(
    *, row: Rollout, decision: Decision, verdicts: Sequence[AlarmVerdict] | None = None, now: datetime, via: str = "system"
) -> bool:
    """Write a decision within the caller's transaction, which holds the row's lock. True when another look may find more to do."""
    before, state = wire.from_plain(row.data, RolloutState), decision.state
    moved = has_moved(before, state)
    fields: dict[str, Any] = {}
    if moved:
        fields |= {
            "state": state.phase.value,
            "reason": state.reason[:40],
            "generation": row.generation + 1,
            "data": wire.to_plain(state),
            "ended_at": now if state.phase in ENDED else None,
        }
    if state.why != row.why:
        fields["why"] = state.why
    if verdicts and (plain := wire.to_plain(tuple(verdicts))) != row.verdicts:
        fields["verdicts"] = plain
    if fields and not Rollout.objects.filter(pk=row.pk, generation=row.generation).update(**fields):
        raise ConflictError(f"Rollout {row.pk} was decided on elsewhere.", code="stale-generation")
    effects_apply(stage=row.stage, effects=decision.effects, alarms=state.alarms, conditional=state.conditional)
    if (synthetic := synthetic_of(state)) != synthetic_of(before):
        fleets.synthetic_set(stage=state.stage, synthetic=_with_prompts(row.stage, synthetic))
    for event in decision.events:
        event_write(event=event, stage=state.stage, rollout=row.pk, release=state.new.release, via=via)
    if moved and state.phase in ENDED:
        wake("releases.reconcile")  # the next stage, and healing
    return moved or any(not isinstance(effect, RequestProbe) for effect in decision.effects)


def has_moved(before: RolloutState, after: RolloutState) -> bool:
    """Whether a decision changed more than the sentence that says what is waited for."""
    return replace(after, why="", table_generation=0) != replace(before, why="", table_generation=0)


def event_write(*, event: Event, stage: str, rollout: str = "", release: str = "", via: str = "system") -> None:
    """One line in the journal."""
    event_append(
        kind=event.kind,
        sentence=event.sentence,
        actor=event.actor,
        via=event.via or via,
        level=event.level,
        stage=stage,
        rollout=rollout,
        release=release,
        evidence=event.evidence,
    )


def effects_apply(*, stage: Stage, effects: Iterable[Effect], alarms: Sequence[AlarmSpec], conditional: ConditionalPolicy) -> None:
    """Apply effects in their order. One that lost a race (a GPU taken, a unit gone) is passed over: the next look asks anew."""
    for effect in effects:
        reach(f"before.{type(effect).__name__}")
        if isinstance(effect, SetWeights):
            _routing_set(stage, effect.weights, conditional, alarms)
        elif isinstance(effect, SetStable):
            _set_stable(stage, effect.release)
        elif isinstance(effect, HoldRelease):
            _hold_release(stage, effect)
        else:
            _apply_to_unit(effect)
        reach(f"after.{type(effect).__name__}")


def _routing_set(stage: Stage, weights: Mapping[str, int], conditional: ConditionalPolicy, alarms: Sequence[AlarmSpec]) -> None:
    conditional = conditional_now(stage, conditional)
    fleets.routing_set(stage=_key(stage), model=stage.model.name, weights=weights, conditional=conditional, alarms=(*alarms, GUARD))


def _apply_to_unit(effect: CreateUnit | RetargetUnit | StopUnit | SetRoutable | RequestProbe) -> None:
    try:
        with transaction.atomic():
            _UNIT_EFFECTS[type(effect)](effect)
    except (ConflictError, NotFoundError) as error:
        log.info("%s was not done, the next look decides anew: %s", type(effect).__name__, error)


_UNIT_EFFECTS: Mapping[type, Callable[[Any], object]] = {
    CreateUnit: lambda effect: fleets.unit_create(spec=effect.spec, placement=effect.placement, slot=effect.slot),
    RetargetUnit: lambda effect: fleets.unit_retarget(unit=effect.unit, spec=effect.spec),
    StopUnit: lambda effect: fleets.unit_stop(unit=effect.unit),
    SetRoutable: lambda effect: fleets.unit_set_routable(unit=effect.unit, routable=effect.routable),
    RequestProbe: lambda effect: fleets.unit_request_probe(unit=effect.unit),
}


def _key(stage: Stage) -> str:
    return f"{stage.model.name}/{stage.name}"


def _with_prompts(stage: Stage, synthetic: Synthetic | None) -> Synthetic | None:
    """The prompts are the new release's own."""
    if synthetic is None:
        return None
    probe = stage_spec(release_named(stage, synthetic.releases[0]), stage.name).rollout.probe
    return replace(synthetic, prompts=probe.prompts) if probe is not None else None


def release_named(stage: Stage, key: str) -> Release:
    """The row of `ds-flash@7`."""
    return Release.objects.select_related("model").get(model=stage.model, number=int(key.rpartition("@")[2]))


def _set_stable(stage: Stage, key: str) -> None:
    """The stage stands on this release; its settings are that release's, and the way back leads to the last good one before it."""
    if not key:
        Stage.objects.filter(pk=stage.pk).update(release=None, previous=None)
        return
    release = release_named(stage, key)
    row = Stage.objects.select_for_update(no_key=True).get(pk=stage.pk)
    row.previous = previous_for(row, release)
    row.release = release
    spec = stage_spec(release, stage.name)
    row.settings, row.draining = wire.to_plain(spec), {}
    row.save(update_fields=["previous", "release", "settings", "draining"])
    if spec.is_ranged:
        StageScale.objects.get_or_create(stage=row)  # from here on its traffic is looked at
    weights = fleet_selectors.routers_view(stage=_key(stage), now=timezone.now()).weights
    _routing_set(stage, weights, spec.topology.conditional, spec.alarm_specs)


def previous_for(stage: Stage, release: Release) -> Release | None:
    """Where a rollback from `release` leads: the newest release before it that served this stage and that no one holds."""
    served = Rollout.objects.filter(stage=stage, state=Rollout.State.SUCCEEDED).values_list("to_release_id", flat=True)
    good = Q(pk__in=list(served)) | Q(pk=stage.release_id)
    earlier = Release.objects.filter(good, model=stage.model_id, number__lt=release.number, held_reason="")
    return earlier.order_by("-number").first()


def _hold_release(stage: Stage, effect: HoldRelease) -> None:
    row = release_named(stage, effect.release)
    if not row.held_reason:
        Release.objects.filter(pk=row.pk).update(held_reason=effect.reason[:200])
