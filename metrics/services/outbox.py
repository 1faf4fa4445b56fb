"""Notices on their way out: claimed by one sender at a time, and marked when they have arrived.

At least once: who sends, marks afterwards, and may die in between. Who gets them can tell a second one by the event's number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from denvweb.core.backoff import Backoff
from metrics.domain.views import EventView
from metrics.models import Channel, Outbox
from metrics.selectors.journal import event_view
from metrics.services.journal import event_append

MOST_TRIES = 12  # with the waits below, for most of an hour
_BACKOFF = Backoff(first_s=2, cap_s=600)
_SENDING = timedelta(seconds=60)  # over every time limit of a sender: after it, whoever claimed it is taken for dead
_WAIT_MAX_S = 3600.0
KEPT = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice that this process has claimed."""

    id: int
    tries: int  # with the one to come
    event: EventView
    channel: str
    kind: str
    address: str
    secret: str  # encrypted
    allow_private: bool


def outbox_claim(*, now: datetime) -> Notice | None:
    """The next notice to send, counted as tried before it is; None when none is due.

    Within a channel they go out one after the other, in the order of the events: the first message of a rollout begins
    the thread that the later ones go into.
    """
    pending = Outbox.objects.filter(state=Outbox.State.PENDING)
    for channel in Channel.objects.filter(enabled=True, pk__in=pending.filter(next_at__lte=now).values("channel")).order_by("pk"):
        with transaction.atomic():
            if not Channel.objects.select_for_update(skip_locked=True, no_key=True).filter(pk=channel.pk):
                continue
            row = pending.filter(channel=channel).select_related("event").order_by("event").first()
            if row is None or row.next_at > now:
                continue
            row.tries, row.next_at = row.tries + 1, now + _SENDING
            row.save(update_fields=["tries", "next_at"])
        return Notice(
            row.pk, row.tries, event_view(row.event), channel.pk, channel.kind, channel.address, channel.secret, channel.allow_private
        )
    return None


def outbox_sent(notice: Notice) -> None:
    """It has arrived."""
    _claimed(notice).update(state=Outbox.State.SENT, sent_at=timezone.now(), error="")


def outbox_failed(notice: Notice, *, error: str, retry_after_s: float | None = None, hopeless: bool = False) -> None:
    """It has not: again later, or never when it was tried often enough or is `hopeless`; the journal then says so."""
    if not hopeless and notice.tries < MOST_TRIES:
        wait_s = min(_WAIT_MAX_S, retry_after_s if retry_after_s is not None else _BACKOFF.delay_s(notice.tries, random.random))
        _claimed(notice).update(error=error[:300], next_at=timezone.now() + timedelta(seconds=wait_s))
        return
    with transaction.atomic():
        if _claimed(notice).update(state=Outbox.State.DEAD, error=error[:300]):
            name = Channel.objects.values_list("name", flat=True).get(pk=notice.channel)
            sentence = f"notice of event {notice.event.seq} did not reach {notice.kind} {name} after {notice.tries} tries: {error}"
            event_append(kind="notice.dead", sentence=sentence[:1000], level="warn", stage=notice.event.stage, rollout=notice.event.rollout)


def outbox_prune(*, now: datetime) -> None:
    """Drop what was sent or given up a month ago."""
    Outbox.objects.exclude(state=Outbox.State.PENDING).filter(next_at__lt=now - KEPT).delete()


def _claimed(notice: Notice) -> QuerySet[Outbox]:
    """The row, if nobody has claimed it since."""
    return Outbox.objects.filter(pk=notice.id, state=Outbox.State.PENDING, tries=notice.tries)
