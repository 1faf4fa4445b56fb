"""Nodes fall silent, and are given up; unless so many do at once that it is more likely us."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from fleets.domain.lease import LOST_AFTER_S, SUSPECT_AFTER_S, guard_sentence, guard_trips, node_state
from fleets.domain.types import NodeState
from fleets.models import Fleet, Node
from metrics.services import event_append


def nodes_look(now: datetime) -> None:
    """Move each node to what its silence says. Updates compare and swap, so two passes at once do it once."""
    suspect_before = now - timedelta(seconds=SUSPECT_AFTER_S)
    Node.objects.filter(state=NodeState.READY, last_report_at__lte=suspect_before).update(state=NodeState.SUSPECT)
    silent = Node.objects.filter(last_report_at__lte=suspect_before).exclude(state=NodeState.LOST).select_related("domain").order_by("name")
    by_fleet: dict[str, list[Node]] = {}
    for node in silent:
        by_fleet.setdefault(node.domain.fleet_id, []).append(node)
    frozen = Fleet.objects.exclude(frozen="").values_list("name", flat=True)
    for fleet in sorted({*by_fleet, *frozen}):
        with transaction.atomic():
            _fleet_look(fleet, by_fleet.get(fleet, []), now)


def _fleet_look(fleet: str, silent: Sequence[Node], now: datetime) -> None:
    lost = [node.name for node in silent if node_state(_silent_s(node, now)) is NodeState.LOST]
    total = Node.objects.filter(domain__fleet_id=fleet).count()
    trips = guard_trips(silent=len(silent), nodes=total)
    if trips and lost:
        _freeze(fleet, guard_sentence(fleet=fleet, silent=len(silent), nodes=total))
        return
    if not trips:
        _thaw(fleet)
        _give_up(fleet, lost, now)


def _silent_s(node: Node, now: datetime) -> float | None:
    return (now - node.last_report_at).total_seconds() if node.last_report_at else None


def _freeze(fleet: str, sentence: str) -> None:
    if Fleet.objects.filter(name=fleet, frozen="").update(frozen=sentence):
        event_append(kind="fleet.frozen", sentence=sentence, level="bad", fleet=fleet)
    else:
        Fleet.objects.filter(name=fleet).exclude(frozen=sentence).update(frozen=sentence)


def _thaw(fleet: str) -> None:
    if Fleet.objects.filter(name=fleet).exclude(frozen="").update(frozen=""):
        event_append(kind="fleet.thawed", sentence=f"fleet {fleet}: its nodes report again, healing goes on", fleet=fleet)


def _give_up(fleet: str, names: Sequence[str], now: datetime) -> None:
    before = now - timedelta(seconds=LOST_AFTER_S)
    # The lease is checked again in the UPDATE: a report may have come in since the look.
    given_up = [
        name
        for name in names
        if Node.objects.filter(name=name, state=NodeState.SUSPECT, last_report_at__lte=before).update(state=NodeState.LOST)
    ]
    if given_up:
        who = f"node {given_up[0]} is" if len(given_up) == 1 else f"nodes {', '.join(given_up)} are"
        sentence = f"{who} lost: no report for {LOST_AFTER_S:.0f} s; what ran there is replaced"
        event_append(kind="node.lost", sentence=sentence, level="bad", fleet=fleet)
