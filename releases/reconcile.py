"""The reconciler of releases: one look at every rollout under way, then at every stage without one.

It runs on beat and on wake, in as many processes as there are, and needs nothing but PostgreSQL. All are looked at at once; each
that has something to decide or to repair is then locked and looked at anew, and who finds it locked passes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from django.utils import timezone

from releases.healing import stage_heal, stages_unwell
from releases.models import Rollout, Stage
from releases.services.autoscale import stage_look, stages_due
from releases.services.drive import drive
from releases.services.steady import steady_look
from releases.services.sweep import rollouts_sweep

log = logging.getLogger(__name__)


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
    for stage_id in _unwell(look, now or timezone.now()):
        look.healings += _guarded(look, f"stage {stage_id}", partial(stage_heal, stage_id, now))
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


def _unwell(look: Look, now: datetime) -> list[int]:
    """The stages that need a repair; all of them should the look at all of them fail."""
    try:
        return stages_unwell(now)
    except Exception:
        look.failures += 1
        log.exception("the look at all stages at once failed; they are looked at one by one")
        return list(Stage.objects.values_list("pk", flat=True))


def _guarded(look: Look, what: str, do: Callable[[], int]) -> int:
    try:
        return do()
    except Exception:
        look.failures += 1
        log.exception("%s could not be reconciled; the next look tries again", what)
        return 0
