"""Setting and removing freeze windows."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from denvweb.core.errors import NotFoundError
from denvweb.core.ids import random_id
from denvweb.wake import wake
from metrics.services import event_append
from releases.domain.freeze_reader import FreezeRequest, read_freeze
from releases.domain.freezes import freeze_sentence
from releases.models import FreezeWindow, Model
from releases.selectors.freezes import window_of


def freeze_window_create(*, asked: FreezeRequest, actor: str, via: str) -> FreezeWindow:
    """Set a window; it is in force from the next look on. InvalidError `freeze-invalid`, NotFoundError for an unknown model."""
    window = read_freeze(asked, id=random_id("fw", 8), now=timezone.now())
    if window.model and not Model.objects.filter(name=window.model).exists():
        raise NotFoundError(f"There is no model {window.model}.")
    with transaction.atomic():
        row = FreezeWindow.objects.create(
            id=window.id,
            model=window.model,
            stage=window.stage,
            zone=window.zone,
            days=list(window.days),
            start=window.start,
            end=window.end,
            begins_at=window.begins_at,
            ends_at=window.ends_at,
            reason=window.reason,
            created_by=actor,
        )
        _journal("freeze.created", f"{actor} set a freeze for {freeze_sentence(window)}: {window.reason}", row, actor, via)
    return row


def freeze_window_delete(*, id: str, actor: str, via: str) -> None:
    """Remove a window; what it held goes on at the next look."""
    with transaction.atomic():
        row = FreezeWindow.objects.select_for_update().filter(pk=id).first()
        if row is None:
            raise NotFoundError(f"There is no freeze window {id}.")
        _journal("freeze.deleted", f"{actor} removed the freeze for {freeze_sentence(window_of(row))}: {row.reason}", row, actor, via)
        row.delete()
    wake("releases.reconcile")


def _journal(kind: str, sentence: str, row: FreezeWindow, actor: str, via: str) -> None:
    stage = f"{row.model}/{row.stage}" if row.stage else ""
    event_append(kind=kind, sentence=sentence, actor=actor, via=via, level="warn", model=row.model, stage=stage)
