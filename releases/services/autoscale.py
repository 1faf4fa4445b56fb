"""Scaling by what the traffic asks for: one look at a stage, decided by the pure policy, written with its figures."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from denvweb.core import wire
from denvweb.failpoints import reach
from fleets import selectors as fleet_selectors
from fleets import services as fleets
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.scaling.policy import decide
from fleets.domain.scaling.types import Decision, Knob, Memory
from metrics.services import event_append
from releases.domain.scaling import in_force
from releases.domain.spec_types import Scaling, StageSpec
from releases.models import Release, Stage, StageScale
from releases.selectors.plants import Seen, look
from releases.selectors.releases import release_key, stage_spec
from releases.selectors.scales import counts_of
from releases.services.scaling import scale_apply

LOOK_EVERY_S = 5.0


def stages_due(now: datetime) -> list[int]:
    """Stages whose numbers may change at run time and that nobody has looked at for some seconds: one query."""
    looked = StageScale.objects.filter(stage__release__isnull=False).exclude(looked_at__gt=now - timedelta(seconds=LOOK_EVERY_S))
    return list(looked.order_by("pk").values_list("pk", flat=True))


def stage_look(*, stage_id: int, now: datetime | None = None) -> int:
    """One look: decide, write what is decided, and have it; how many units changed. A stage that is being looked at is passed over.

    All of it is one transaction: killed before its end it has done nothing, and the next look does the same again.
    """
    now = now or timezone.now()
    with transaction.atomic():
        rows = Stage.objects.select_for_update(no_key=True, of=("self",), skip_locked=True).select_related("model", "release__model")
        stage = rows.filter(pk=stage_id).first()
        if stage is None or stage.release is None:
            return 0
        scale, _ = StageScale.objects.get_or_create(stage=stage)
        scale.stage = stage
        if scale.looked_at is not None and (now - scale.looked_at).total_seconds() < LOOK_EVERY_S:
            return 0  # another process has just looked
        spec = stage_spec(stage.release, stage.name)
        if spec.is_ranged and spec.scaling is not Scaling.MANUAL:
            _decide(scale, stage.release, spec, now)
        if scale.local_prefill_below is not None and (not spec.is_ranged or spec.scaling is not Scaling.AUTO):
            _restore_limit(scale, spec)
        StageScale.objects.filter(pk=scale.pk).update(looked_at=now)
        changed = scale_apply(stage=stage, now=now)
        reach("autoscale.before-commit")
    reach("autoscale.after-commit")
    return changed


def _decide(scale: StageScale, release: Release, spec: StageSpec, now: datetime) -> None:
    acts = spec.scaling is Scaling.AUTO
    counts = in_force(spec, counts_of(scale.wanted if acts else {**scale.wanted, **scale.advised}))
    held = {Knob(name): int(kept["count"]) for name, kept in scale.manual.items()}
    held = {knob: count for knob, count in in_force(spec, held).items() if knob in held}  # as far as a later release allows them
    units = fleet_selectors.units_view(stage=str(scale.stage), now=now)
    seen = look(stage=scale.stage, spec=spec, counts=counts | held, held=held, units=units, now=now)
    memory = wire.from_plain(scale.memory, Memory)
    decision = decide(seen.plant, seen.signals, memory)
    moves = decision.moves(seen.signals.counts)
    decided = {knob.value: count for knob, count in decision.counts.items() if not (seen.rollout and knob is Knob.UNITS)}
    scale.memory, scale.advised, scale.advised_why = wire.to_plain(decision.memory), decided, decision.sentence
    scale.waits = {knob.value: (now + timedelta(seconds=wait_s)).isoformat() for knob, wait_s in decision.cool_down_s.items()}
    if moves or decision.local_prefill_below != _below(memory, seen):
        _write_down(scale, release, decision, seen, acts=acts)
    if acts:
        scale.wanted = {**scale.wanted, **{knob.value: count for knob, (_, count) in moves.items()}}
        _push_threshold(scale, spec, decision)
    scale.save(update_fields=["memory", "advised", "advised_why", "waits", "wanted", "local_prefill_below"])


def _below(memory: Memory, seen: Seen) -> int:
    return seen.plant.local_prefill_below if memory.local_prefill_below is None else memory.local_prefill_below


def _push_threshold(scale: StageScale, spec: StageSpec, decision: Decision) -> None:
    """Into the stage's table, which the routers take at once. The release's own limit needs no keeping."""
    own = spec.topology.conditional
    below = decision.local_prefill_below
    scale.local_prefill_below = None if below == own.local_prefill_below else below
    fleets.conditional_set(stage=str(scale.stage), conditional=ConditionalPolicy(below, own.prefill_queue_above))


def _restore_limit(scale: StageScale, spec: StageSpec) -> None:
    """Scaling no longer moves the local-prefill limit: the release's own is in force again."""
    scale.local_prefill_below = None
    scale.save(update_fields=["local_prefill_below"])
    fleets.conditional_set(stage=str(scale.stage), conditional=spec.topology.conditional)


def _write_down(scale: StageScale, release: Release, decision: Decision, seen: Seen, *, acts: bool) -> None:
    evidence = {name: value for name, value in wire.to_plain(seen.signals).items() if value is not None}
    event_append(
        kind="scale.decided" if acts else "scale.advised",
        sentence=f"{scale.stage} {'is scaled' if acts else 'would be scaled'}: {decision.sentence}",
        stage=str(scale.stage),
        release=release_key(release),
        evidence={"signals": evidence, "budget_gpus": seen.plant.budget, "local_prefill_below": decision.local_prefill_below},
    )
