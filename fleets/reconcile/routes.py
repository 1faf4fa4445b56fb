"""Tables are what they should be, whoever forgot to say so; and the engines' own figures are kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from fleets.domain.types import Role
from fleets.models import Replica, Router, RouteState, Unit
from fleets.selectors.rows import leader_of, units_with_ranks
from fleets.services.routing import table_refresh, table_stale
from metrics.services import gauges_record

_ROUTER_KEPT_S = 3600.0  # after its last report; it is live for seconds only, but people ask where it went
_SUMS = ("running", "waiting")  # of a pool's replicas; other gauges are ratios, and averaged


def routes_look(now: datetime) -> None:
    """Give a new generation to each stage's table that is not what its routers were last given."""
    Router.objects.filter(last_seen_at__lt=now - timedelta(seconds=_ROUTER_KEPT_S)).delete()
    states = list(RouteState.objects.order_by("stage"))  # before the units, as everywhere
    units: dict[str, list[Unit]] = defaultdict(list)
    for unit in units_with_ranks(Unit.objects.filter(desired__in=[Unit.Desired.RUN, Unit.Desired.DRAIN])):
        units[unit.stage].append(unit)
    for state in states:
        if table_stale(state, units[state.stage]):
            table_refresh(stage=state.stage)
    for each in units.values():
        _gauges_keep(each, now)


def _gauges_keep(units: Sequence[Unit], now: datetime) -> None:
    """Keep what the engines of each unit say of themselves (those that decode, as that is where KV and batches are), and its GPUs."""
    for unit in units:
        values = _values([replica for replica in unit.replicas.all() if not replica.retired and replica.role != Role.PREFILL])
        values["gpus"] = sum(len(rank.gpus) for replica in unit.replicas.all() for rank in replica.ranks.all())
        gauges_record(at=now, stage=unit.stage, unit=unit.id, values=values, source="engines", received_at=now)


def _values(replicas: Sequence[Replica]) -> dict[str, float]:
    said: dict[str, list[float]] = defaultdict(list)
    for replica in replicas:
        for name, value in leader_of(replica).gauges.items():
            said[name].append(float(value))
    return {name: sum(values) / (1 if name in _SUMS else len(values)) for name, values in said.items()}
