"""What the engines of all releases in force serve, as one list: the stage's own model, and what engines offer beside it (LoRA adapters)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleets.router.offers import Offer
from fleets.router.policy import ReplicaState, Stage


def merged(stage: Stage, *, created_at: int) -> list[dict[str, Any]]:
    """The list for clients: a context is what every engine has that offers the model, for a request may come to any of them."""
    table = stage.table
    if table is None:
        return []
    serving = list(_serving(stage))
    names = {name for replica in serving for name in replica.offers} - {table.model}
    told = {name: [replica.offers[name] for replica in serving if name in replica.offers] for name in (table.model, *sorted(names))}
    return [_card(name, offers, created_at) for name, offers in told.items()]


def _card(name: str, offers: list[Offer], created_at: int) -> dict[str, Any]:
    contexts = [offer.context_tokens for offer in offers if offer.context_tokens is not None]
    card: dict[str, Any] = {"id": name, "object": "model", "created": created_at, "owned_by": "denv"}
    card |= {"max_model_len": min(contexts)} if contexts else {}
    parent = next((offer.parent for offer in offers if offer.parent), "")
    return card | ({"parent": parent} if parent else {})


def without(stage: Stage, model: str) -> frozenset[str] | None:
    """The replicas that a request for this model must keep away from; None when nobody that takes requests offers it."""
    if not any(model in replica.offers for replica in _serving(stage)):
        return None
    return frozenset(replica.name for replica in stage.replicas.values() if model not in replica.offers)


def _serving(stage: Stage) -> Iterable[ReplicaState]:
    """Replicas that answer clients now."""
    for unit in stage.units.values():
        if unit.spec.routable and stage.weights.get(unit.spec.release):
            yield from unit.decodes
