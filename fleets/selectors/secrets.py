"""Stored secrets: for people without their values, for the snapshots of nodes with them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping

from denvweb.core.errors import UnavailableError
from denvweb.secrets import unseal
from fleets.domain.views import SecretView
from fleets.models import Replica, StoredSecret

log = logging.getLogger(__name__)


def secrets_view() -> tuple[SecretView, ...]:
    """All of them by name: two queries."""
    users: dict[str, set[str]] = defaultdict(set)
    for engine, stage in (
        Replica.objects.filter(engine__has_key="secrets").exclude(engine__secrets={}).values_list("engine", "unit__stage").distinct()
    ):
        for name in engine["secrets"].values():
            users[name].add(stage)
    rows = StoredSecret.objects.order_by("name")
    return tuple(SecretView(row.name, row.model, row.version, row.set_by, row.set_at, tuple(sorted(users[row.name]))) for row in rows)


def secret_names() -> Mapping[str, str]:
    """Whose each is, a model or `*`, by name."""
    return dict(StoredSecret.objects.values_list("name", "model"))


def secret_values(*, names: Collection[str]) -> dict[str, str]:
    """Values by name, for the nodes that run what names them; no query without names."""
    if not names:
        return {}
    found = {}
    for row in StoredSecret.objects.filter(name__in=names):
        try:
            found[row.name] = unseal(row.sealed)
        except UnavailableError as error:  # the node's other ranks must have their orders all the same
            log.error("secret %s: %s", row.name, error)
    return found
