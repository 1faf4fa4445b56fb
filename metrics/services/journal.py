"""The journal: every change that a person may ask about later, in one sentence, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from denvweb import wake
from denvweb.core import wire
from metrics.models import JOURNAL_LOCK, Event


def event_append(
    *,
    kind: str,
    sentence: str,
    actor: str = "system",
    via: str = "system",
    level: str = "info",
    stage: str = "",
    model: str = "",
    fleet: str = "",
    rollout: str = "",
    release: str = "",
    evidence: Mapping[str, Any] | None = None,
) -> int:
    """Append one row within the caller's transaction, so that it is there exactly when the change itself is; returns its number.

    Level is `info`, `warn` or `bad`. Without a model, it is the stage's.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            # Before the row takes its number: by it a reader knows that a missing number may still appear.
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [JOURNAL_LOCK])
        event = Event.objects.create(
            at=timezone.now(),
            kind=kind,
            level=level,
            sentence=sentence,
            actor=actor,
            via=via,
            stage=stage,
            model=model or stage.partition("/")[0],
            fleet=fleet,
            rollout=rollout,
            release=release,
            evidence=wire.to_plain(dict(evidence or {})),
        )
        wake.poke("events")
    return event.seq
