"""Nodes are taken out of use and brought back; they keep their names, their credentials and their place."""

from __future__ import annotations

from django.db import transaction

from denvweb.core.errors import NotFoundError
from denvweb.wake import wake
from fleets.models import Node
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


def _lock(node: str) -> Node:
    row = Node.objects.select_for_update(no_key=True, of=("self",)).filter(name=node).select_related("domain").first()
    if row is None:
        raise NotFoundError(f"There is no node {node}; `denv nodes` lists them.", code="node-unknown")
    return row


def _said(row: Node, kind: str, what: str, actor: str, via: str, reason: str) -> None:
    told = f" ({reason})" if reason else ""
    event_append(kind=kind, sentence=f"node {row.name} {what}{told}", actor=actor, via=via, fleet=row.domain.fleet_id)
