"""Nodes fall silent, and are given up; unless so many do at once that it is more likely us."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from fleets.domain.lease import LOST_AFTER_S, SUSPECT_AFTER_S, WATCH_GAP_S, guard_sentence, guard_trips, losses_now, node_state
from fleets.domain.types import NodeState
from fleets.models import Fleet, Node
from metrics.services import event_append


def nodes_look(now: datetime) -> None:
    """Move each node to what its silence says. Updates compare and swap, so two passes at once do it once."""
    suspect_before = now - timedelta(seconds=SUSPECT_AFTER_S)
    _watch(now, deaf=not Node.objects.filter(last_report_at__gt=suspect_before).exists())
    Node.objects.filter(state=NodeState.READY, last_report_at__lte=suspect_before).update(state=NodeState.SUSPECT)
    _drained(now)
    silent = Node.objects.filter(last_report_at__lte=suspect_before).exclude(state=NodeState.LOST).select_related("domain").order_by("name")
    by_fleet: dict[str, list[Node]] = {}
    for node in silent:
        by_fleet.setdefault(node.domain.fleet_id, []).append(node)
    for fleet in Fleet.objects.order_by("name"):
        if fleet.frozen or fleet.name in by_fleet:
            with transaction.atomic():
                _fleet_look(fleet, by_fleet.get(fleet.name, []), now)


def _drained(now: datetime) -> None:
    """Say once of each node that is drained that nothing is left on it."""
    for node in Node.objects.filter(draining=True, drained_at=None, claims=None).select_related("domain"):
        if Node.objects.filter(name=node.name, draining=True, drained_at=None).update(drained_at=now):
            sentence = f"node {node.name} is drained: nothing holds its GPUs; `denv nodes uncordon {node.name}` brings it back"
            event_append(kind="node.drained", sentence=sentence, fleet=node.domain.fleet_id)


def _watch(now: datetime, *, deaf: bool) -> None:
    """Note since when silence means something. After a gap between passes, or while no node at all is heard, it was us."""
    gap = Q(watched_at=None) | Q(watched_at__lt=now - timedelta(seconds=WATCH_GAP_S))
    if deaf:
        Fleet.objects.filter(gap | Q(deaf_since=None)).update(deaf_since=now)
        Fleet.objects.update(watched_since=now, watched_at=now)
    else:
        Fleet.objects.filter(gap).update(watched_since=now)
        Fleet.objects.update(deaf_since=None, watched_at=now)


def _fleet_look(fleet: Fleet, silent: Sequence[Node], now: datetime) -> None:
    told = fleet.thawed_until is not None and fleet.thawed_until > now  # an operator knows that they are dead
    watched_s = math.inf if told else _ago_s(fleet.watched_since, now) or 0.0
    lost = [node.name for node in silent if node_state(_ago_s(node.last_report_at, now), watched_s) is NodeState.LOST]
    total = Node.objects.filter(domain__fleet=fleet).count()
    trips = not told and guard_trips(silent=len(silent), nodes=total)
    deaf_s = _ago_s(fleet.deaf_since, now) or 0.0
    if trips and (lost or (silent and deaf_s >= LOST_AFTER_S - SUSPECT_AFTER_S)):
        _freeze(fleet.name, guard_sentence(fleet=fleet.name, silent=len(silent), nodes=total))
    elif not trips:
        _thaw(fleet.name)
        _give_up(fleet.name, lost, now)


def _ago_s(at: datetime | None, now: datetime) -> float | None:
    return (now - at).total_seconds() if at else None


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
    given_up = []
    for name in names:
        node = Node.objects.select_for_update(no_key=True, of=("self",)).get(name=name)
        losses = losses_now(node.losses, _ago_s(node.lost_at, now))
        still = Node.objects.filter(name=name, state=NodeState.SUSPECT, last_report_at__lte=before)
        if still.update(state=NodeState.LOST, losses=losses, lost_at=now):
            given_up.append(name)
    if given_up:
        who = f"node {given_up[0]} is" if len(given_up) == 1 else f"nodes {', '.join(given_up)} are"
        sentence = f"{who} lost: no report for {LOST_AFTER_S:.0f} s; what ran there is replaced"
        event_append(kind="node.lost", sentence=sentence, level="bad", fleet=fleet)
