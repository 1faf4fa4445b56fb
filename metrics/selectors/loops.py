"""How the periodic tasks and the outbox get along: what shows that something of the control plane itself stands still."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min, Q

from metrics.models import Channel, LoopPass, Outbox


@dataclass(frozen=True, slots=True)
class LoopView:
    """The last pass of a task that came to its end, and how many did."""

    loop: str
    ended_at: datetime
    took_s: float
    passes: int
    failures: int


@dataclass(frozen=True, slots=True)
class BacklogView:
    """The notices for one kind of channel: `slack` or `webhook`."""

    kind: str
    pending: int
    oldest_at: datetime | None  # of the event of the oldest that is pending
    dead: int  # given up within the month that they are kept


def loops_view() -> tuple[LoopView, ...]:
    """Every task that has come to its end once."""
    rows = LoopPass.objects.order_by("pk")
    return tuple(LoopView(row.loop, row.ended_at, row.took_s, row.passes, row.failures) for row in rows)


def backlogs_view() -> tuple[BacklogView, ...]:
    """The outbox by kind of channel: one query. Notices for channels that are switched off wait and are not counted."""
    waits, dead = Q(state=Outbox.State.PENDING, channel__enabled=True), Q(state=Outbox.State.DEAD)
    rows = Outbox.objects.exclude(state=Outbox.State.SENT).values_list("channel__kind").order_by()
    counts = rows.annotate(pending=Count("pk", filter=waits), oldest_at=Min("event__at", filter=waits), gone=Count("pk", filter=dead))
    found = {kind: BacklogView(kind, pending, oldest_at, gone) for kind, pending, oldest_at, gone in counts}
    return tuple(found.get(kind, BacklogView(kind, 0, None, 0)) for kind in Channel.Kind.values)
