"""Which stages break an alarm now, between rollouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from denvweb.core import wire
from metrics.domain.steady import SteadyState
from metrics.domain.views import BreachView
from metrics.models import StageAlarms


def breaches_view(*, stages: Collection[str] | None = None) -> dict[str, tuple[BreachView, ...]]:
    """By stage, those that break one, of all stages or of these: one query."""
    rows = StageAlarms.objects.filter(breaching=True)
    if stages is not None:
        rows = rows.filter(stage__in=stages)
    return {stage: _breaches(data) for stage, data in rows.values_list("stage", "data")}


def _breaches(data: Mapping[str, Any]) -> tuple[BreachView, ...]:
    states = {name: wire.from_plain(plain, SteadyState) for name, plain in sorted(data.items())}
    return tuple(BreachView(name, state.breached_at, state.told) for name, state in states.items() if state.breached_at is not None)
