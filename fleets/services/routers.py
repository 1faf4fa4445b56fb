"""What routers report, every second."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import transaction
from django.utils import timezone

from denvweb.core import wire
from denvweb.wake import wake
from fleets.domain.protocol import ProbeResult, RouterReport, UnitGauge
from fleets.domain.views import ReplicaState
from fleets.models import Router, Unit
from fleets.selectors.rows import leader_of, state_of, units_with_ranks
from fleets.services.hangs import engines_hung
from fleets.services.routing import stage_lock, table_refresh
from metrics.services import gauges_record, series_ingest

_PLAINLY_OVER = 0.2


@transaction.atomic
def router_report_take(*, report: RouterReport, now: datetime | None = None) -> bool:
    """Take one second of a router; False when it was taken before.

    Its row, its figures and its probes are written in one transaction, so a report that is sent again counts once.
    """
    now = now or timezone.now()
    hung = {engine: why for gauge in report.gauges for engine, why in gauge.hung.items()}
    if report.probes or hung:  # before any other lock: the stage's comes first everywhere
        stage_lock(stage=report.stage)
    at = datetime.fromtimestamp(report.at, UTC)
    source = f"{report.router}/{report.boot}"
    if not series_ingest(source=source, seq=report.seq, at=at, series=report.series, stage=report.stage, received_at=now):
        return False
    _router_write(report, now)
    if _plainly_over(report):
        wake("releases.reconcile")  # a release that is this bad should not wait for the clock
    for gauge in sorted(report.gauges, key=lambda gauge: gauge.unit):  # one order, so that two routers do not wait for each other
        gauges_record(at=at, stage=report.stage, unit=gauge.unit, values=_values(gauge), source=report.router, received_at=now)
    if hung:
        engines_hung(stage=report.stage, hung=hung, said_by=f"router {report.router}")
    if report.probes:
        _probes_take(report.stage, report.probes, now)
    return True


def _plainly_over(report: RouterReport) -> bool:
    """Whether far more of this second's requests were over some limit than any alarm allows."""
    counts = (count for delta in report.series if not delta.key.probe for count in delta.alarms.values())
    return any(count.k > _PLAINLY_OVER * count.n for count in counts)


def _router_write(report: RouterReport, now: datetime) -> None:
    values = {
        "stage": report.stage,
        "url": report.url,
        "boot": report.boot,
        "seq": report.seq,
        "last_seen_at": now,
        "inflight": report.inflight,
        "gauges": wire.to_plain(report.gauges),
    }
    same = Router.objects.filter(name=report.router, table_generation=report.table_generation)
    if same.update(**values):
        return
    Router.objects.update_or_create(name=report.router, defaults={**values, "table_generation": report.table_generation})
    wake("releases.reconcile")  # a rollout may wait for this confirmation


def _values(gauge: UnitGauge) -> dict[str, float]:
    values: dict[str, float] = {
        "prefill_queue": gauge.prefill_queue,
        "prefill_inflight": gauge.prefill_inflight,
        "decode_inflight": gauge.decode_inflight,
        "ejected": len(gauge.ejected),
    }
    return values if gauge.kv_use is None else {**values, "kv_use": gauge.kv_use}


def _probes_take(stage: str, probes: Sequence[ProbeResult], now: datetime) -> None:
    results = {probe.unit: probe for probe in probes}
    for unit in units_with_ranks(Unit.objects.filter(stage=stage, id__in=results)):
        probe = results[unit.id]
        if not probe.ok:
            Unit.objects.filter(id=unit.id).update(probe_detail=probe.detail[:2000])
        elif set(probe.engines) <= _engines(unit):
            Unit.objects.filter(id=unit.id).update(probed_revision=unit.revision, probed_at=now, probe_detail="")
    if table_refresh(stage=stage):
        wake("releases.reconcile")


def _engines(unit: Unit) -> set[str]:
    """Engines that make up the unit now: a probe that others answered, before the unit changed, says nothing of it."""
    return {
        leader_of(replica).engine_id for replica in unit.replicas.all() if not replica.retired and state_of(replica) is ReplicaState.READY
    }
