"""Alarms between rollouts: which stages nobody has in hand, and what they should keep."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Exists, Max, OuterRef
from django.utils import timezone

from denvweb.core import wire
from metrics.domain.types import AlarmSpec
from metrics.services import Watch, steady_alarms_look
from releases.domain.gates import GUARD
from releases.models import Rollout, Stage


def steady_look(now: datetime | None = None) -> int:
    """Look at the alarms of every stage without a rollout; how many breaches began or ended. The queries do not grow with the stages."""
    busy = Rollout.objects.exclude(state__in=[*Rollout.ENDED, Rollout.State.PENDING]).filter(stage=OuterRef("pk"))
    quiet = Stage.objects.filter(~Exists(busy), release__isnull=False)
    rows = quiet.annotate(since=Max("rollouts__ended_at")).order_by("model__name", "name")
    watches = [
        Watch(f"{model}/{name}", f"{model}@{number}", (*_limits(specs), GUARD), since)
        for model, name, number, specs, since in rows.values_list(
            "model__name", "name", "release__number", "settings__alarm_specs", "since"
        )
    ]
    return steady_alarms_look(watches=watches, now=now or timezone.now())


def _limits(plain: object) -> list[AlarmSpec]:
    return [spec for spec in wire.from_plain(plain or [], tuple[AlarmSpec, ...]) if spec.over is None]
