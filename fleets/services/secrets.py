"""Secrets that engines need: set, set anew and removed. What they are is encrypted here, and never read by a person again."""

from __future__ import annotations

import re

from django.db import transaction
from django.utils import timezone

from denvweb.core.errors import ConflictError, InvalidError, NotFoundError
from denvweb.secrets import seal
from fleets.models import Rank, StoredSecret
from fleets.selectors.secrets import secrets_view
from fleets.services.launch import nodes_touch
from metrics.services import event_append

VALUE_MAX = 16_384
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@transaction.atomic
def secret_set(*, name: str, value: str, model: str, actor: str, via: str = "system") -> bool:
    """Store a secret, or a new value of one; True when it is new. Nodes that run it have it at once, engines with their next start."""
    if not _NAME.fullmatch(name):
        problem = "must be 1 to 63 of a-z, 0-9 and -, and begin and end with a letter or a digit"
        raise InvalidError(f"`{name[:80]}` is no name for a secret: it {problem}.", code="bad-secret-name", fields={"name": [problem]})
    if not value or len(value) > VALUE_MAX or "\0" in value:
        problem = f"must be 1 to {VALUE_MAX:,} characters without NUL"
        raise InvalidError(f"The value {problem}.", code="bad-secret-value", fields={"value": [problem]})
    known = StoredSecret.objects.select_for_update().filter(name=name).first()
    if known is not None and known.model != model:
        raise ConflictError(f"Secret {name} is for {_whose(known.model)}; remove it first, or choose another name.", code="secret-of-other")
    now = timezone.now()
    if known is None:
        StoredSecret.objects.create(name=name, model=model, sealed=seal(value), set_by=actor, set_at=now)
    else:
        known.sealed, known.set_by, known.set_at = seal(value), actor, now
        known.version += 1
        known.save()
        nodes_touch(_nodes(name))
    did = "stored" if known is None else f"set version {known.version} of"
    _said("secret.set", f"{actor} {did} secret {name} for {_whose(model)}", model, actor, via)
    return known is None


def _nodes(name: str) -> set[str]:
    """Those with a rank that names it."""
    rows = (
        Rank.objects.filter(replica__engine__has_key="secrets")
        .exclude(replica__engine__secrets={})
        .values_list("node_id", "replica__engine")
    )
    return {node for node, engine in rows if name in engine["secrets"].values()}


@transaction.atomic
def secret_remove(*, name: str, actor: str, via: str = "system") -> None:
    """Remove a secret that nothing uses; ConflictError `secret-in-use` names the stages that do."""
    row = StoredSecret.objects.select_for_update().filter(name=name).first()
    if row is None:
        raise NotFoundError(f"There is no secret {name}; `denv secret list` shows them.", code="secret-unknown")
    used_by = next(view.used_by for view in secrets_view() if view.name == name)
    if used_by:
        raise ConflictError(f"Secret {name} is used by {', '.join(used_by)}; release without it first.", code="secret-in-use")
    row.delete()
    _said("secret.removed", f"{actor} removed secret {name}", row.model, actor, via)


def _whose(model: str) -> str:
    return "every model" if model == "*" else model


def _said(kind: str, sentence: str, model: str, actor: str, via: str) -> None:
    event_append(kind=kind, sentence=sentence, actor=actor, via=via, model="" if model == "*" else model)
