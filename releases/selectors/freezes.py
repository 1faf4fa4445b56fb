"""Reading freeze windows: all of them for people, and what they say of one stage."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from releases.domain.freezes import FreezeWindow as Window
from releases.domain.freezes import Frozen, freeze_sentence, frozen, next_begin
from releases.domain.views import FreezeWindowView
from releases.models import FreezeWindow


def freeze_windows() -> tuple[Window, ...]:
    """All windows as values: one query."""
    return tuple(window_of(row) for row in FreezeWindow.objects.all())


def window_of(row: FreezeWindow) -> Window:
    """The value of a row."""
    return Window(
        row.id, row.reason, row.zone, row.model, row.stage, tuple(row.days), row.start, row.end, row.begins_at, row.ends_at
    )  # fmt: skip


def freeze_windows_view() -> tuple[FreezeWindowView, ...]:
    """All windows, oldest first; those that are over included, until somebody removes them."""
    now = timezone.now()
    return tuple(_view(row, now) for row in FreezeWindow.objects.all())


def freeze_window_view(*, id: str) -> FreezeWindowView:
    """One window."""
    return _view(FreezeWindow.objects.get(pk=id), timezone.now())


def frozen_until(*, stage: str, now: datetime | None = None) -> Frozen | None:
    """Whether the stage of this key is frozen, and until when: one query."""
    model, _, name = stage.partition("/")
    return frozen(freeze_windows(), model=model, stage=name, now=now or timezone.now())


def _view(row: FreezeWindow, now: datetime) -> FreezeWindowView:
    window = window_of(row)
    on = frozen((window,), model=row.model, stage=row.stage, now=now)
    return FreezeWindowView(
        id=row.id,
        model=row.model,
        stage=row.stage,
        zone=row.zone,
        days=window.days,
        start=f"{row.start:%H:%M}" if row.start else "",
        end=f"{row.end:%H:%M}" if row.end else "",
        begins_at=row.begins_at,
        ends_at=row.ends_at,
        reason=row.reason,
        created_by=row.created_by,
        created_at=row.created_at,
        sentence=freeze_sentence(window),
        on=on is not None,
        begins=next_begin(window, now),
        ends=on.until if on else None,
    )
