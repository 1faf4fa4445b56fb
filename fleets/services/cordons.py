"""Nodes are taken out of use and brought back; they keep their names, their credentials and their place."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from denvweb.core.errors import ConflictError, InvalidError, NotFoundError
from denvweb.wake import wake
from fleets.models import Fleet, Node
from metrics.services import event_append

REASON_LENGTH_MAX = 200


@transaction.atomic
def node_cordon(*, node: str, cordoned: bool, actor: str, via: str, reason: str = "") -> None:
    """Have a node take no new ranks, or take them again; what runs there goes on. Taking them again ends a drain."""
    row = _lock(node)
    reason = reason[:REASON_LENGTH_MAX]
    if row.cordoned == cordoned and (not cordoned or row.cordon_reason == reason):
        return
    if cordoned:
        Node.objects.filter(name=node).update(cordoned=True, cordon_reason=reason)
        _said(row, "node.cordoned", "is cordoned: it takes nothing new", actor, via, reason)
        return
    Node.objects.filter(name=node).update(cordoned=False, cordon_reason="", draining=False, drained_at=None)
    _said(row, "node.uncordoned", "takes new ranks again", actor, via, reason)
    wake("releases.reconcile")  # somebody may wait for this room


@transaction.atomic
def node_drain(*, node: str, actor: str, via: str, reason: str = "") -> None:
    """Cordon a node, and have the units with ranks on it replaced elsewhere, each as soon as there is room for that."""
    row = _lock(node)
    if row.draining:
        return
    Node.objects.filter(name=node).update(
        cordoned=True, draining=True, drained_at=None, cordon_reason=reason[:REASON_LENGTH_MAX] or row.cordon_reason
    )
    _said(row, "node.draining", "is drained: its units are replaced elsewhere", actor, via, reason)
    wake("fleets.reconcile")
    wake("releases.reconcile")


THAWED_S = 900.0


@transaction.atomic
def fleet_thaw(*, fleet: str, actor: str, via: str, reason: str, now: datetime | None = None) -> None:
    """Have silence in a frozen fleet acted on for a quarter of an hour, however many nodes are silent: somebody knows that they are dead.

    ConflictError `fleet-not-frozen` when nothing is held back there.
    """
    reason = reason.strip()[:REASON_LENGTH_MAX]
    if not reason:
        raise InvalidError("Say how you know that these nodes are dead.", code="reason-missing", fields={"reason": ["is missing"]})
    row = Fleet.objects.select_for_update(no_key=True).filter(name=fleet).first()
    if row is None:
        raise NotFoundError(f"There is no fleet {fleet}; `denv fleets` lists them.", code="fleet-unknown")
    if not row.frozen:
        raise ConflictError(f"Fleet {fleet} is not frozen: healing goes on there.", code="fleet-not-frozen")
    until = (now or timezone.now()) + timedelta(seconds=THAWED_S)
    Fleet.objects.filter(name=fleet).update(frozen="", thawed_until=until)
    sentence = f"fleet {fleet}: its silent nodes are taken for dead until {until:%H:%M} UTC, and replaced ({reason})"
    event_append(kind="fleet.thawed", sentence=sentence, level="warn", actor=actor, via=via, fleet=fleet)
    wake("fleets.reconcile")


def _lock(node: str) -> Node:
    row = Node.objects.select_for_update(no_key=True, of=("self",)).filter(name=node).select_related("domain").first()
    if row is None:
        raise NotFoundError(f"There is no node {node}; `denv nodes` lists them.", code="node-unknown")
    return row


def _said(row: Node, kind: str, what: str, actor: str, via: str, reason: str) -> None:
    told = f" ({reason})" if reason else ""
    event_append(kind=kind, sentence=f"node {row.name} {what}{told}", actor=actor, via=via, fleet=row.domain.fleet_id)
