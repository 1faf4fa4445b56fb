"""The journal: every change that a person may ask about later, in one sentence, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from denvweb import logs, wake
from denvweb.core import wire
from metrics.domain.chain import digest_of
from metrics.models import JOURNAL_LOCK, Event
from metrics.selectors.chain import event_content
from metrics.services.notices import outbox_add


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

    Level is `info`, `warn` or `bad`. Without a model, it is the stage's. The row is sealed into the chain when the transaction
    commits; the notices that it causes are written with it.
    """
    event = Event(
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
        proof=logs.proof.get() if actor != "system" else "",
        request_id=logs.request_id.get(),
    )
    event.digest = digest_of(at=event.at, content=event_content(event))
    with transaction.atomic():
        with connection.cursor() as cursor:
            # Before the row takes its number: by it a reader knows that a missing number may still appear.
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [JOURNAL_LOCK])
        event.save(force_insert=True)
        outbox_add(event)
        wake.poke("events")
    return event.seq


def refusal_append(
    *, what: str, code: str, detail: str, actor: str, via: str, stage: str = "", model: str = "", fleet: str = "", rollout: str = ""
) -> int:
    """One row for something that was asked for and refused; `what` is the action, such as `POST /api/v1/releases`."""
    return event_append(
        kind="change.refused",
        sentence=f"{actor} was refused {what}: {detail}"[:1000],
        actor=actor,
        via=via,
        level="warn",
        stage=stage,
        model=model,
        fleet=fleet,
        rollout=rollout,
        evidence={"action": what, "code": code},
    )
