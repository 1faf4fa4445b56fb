"""Tables are what they should be, whoever forgot to say so; and the engines' own figures are kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from fleets.domain.types import Role
from fleets.models import Router, RouteState, Unit
from fleets.selectors.rows import leader_of, units_with_ranks
from fleets.services.routing import table_refresh, table_stale
from metrics.domain.engines import COUNTS, totals
from metrics.services import gauges_record

_ROUTER_KEPT_S = 3600.0  # after its last report; it is live for seconds only, but people ask where it went
_SUMS = ("running", "waiting")  # of the replicas that decode; other gauges are ratios, and averaged


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
    """Keep each unit's GPUs and what its engines say: gauges of those that decode, where KV and batches are, and counts of all."""
    for unit in units:
        leaders = [(replica.role, leader_of(replica)) for replica in unit.replicas.all() if not replica.retired]
        values = _means([leader.gauges for role, leader in leaders if role != Role.PREFILL])
        values |= totals([(leader.engine_id, leader.gauges) for _, leader in leaders])
        values["gpus"] = sum(len(rank.gpus) for replica in unit.replicas.all() for rank in replica.ranks.all())
        gauges_record(at=now, stage=unit.stage, unit=unit.id, values=values, source="engines", received_at=now)


def _means(gauges: Sequence[Mapping[str, float]]) -> dict[str, float]:
    said: dict[str, list[float]] = defaultdict(list)
    for each in gauges:
        for name, value in each.items():
            if name not in COUNTS:
                said[name].append(float(value))
    return {name: sum(values) / (1 if name in _SUMS else len(values)) for name, values in said.items()}
