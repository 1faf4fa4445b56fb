"""Reading the journal: pages of it, and following it without ever missing a row.

Numbers are given out when a row is written, but rows appear when their transaction commits, so row 6 may be there before
row 5. A follower that went on from 6 would never see 5. So following stops at a gap while anybody is writing to the journal
(they share a lock until they commit); once nobody is, what is still missing was rolled back and never comes.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db import connection

from metrics.domain.views import EventView
from metrics.models import JOURNAL_LOCK, Event


def event_view(event: Event) -> EventView:
    """A row as others see it."""
    return EventView(
        seq=event.seq,
        at=event.at,
        kind=event.kind,
        level=event.level,
        sentence=event.sentence,
        actor=event.actor,
        via=event.via,
        model=event.model,
        stage=event.stage,
        fleet=event.fleet,
        rollout=event.rollout,
        release=event.release,
        evidence=event.evidence,
    )


def events_view(
    *,
    stage: str = "",
    model: str = "",
    fleet: str = "",
    rollout: str = "",
    before: int | None = None,
    limit: int = 50,
    models: Collection[str] | None = None,
    kind: str = "",
    actor: str = "",
    via: str = "",
    level: str = "",
    text: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[EventView, ...]:
    """The newest events, newest first; `before` is the number of the last one of the page before, `models` those that may be seen.

    With `kind` only those whose kind begins so, such as `scale.`; with `text` those whose sentence has it, in whatever case; from
    `since` on, and up to `until` without it.
    """
    same = {"stage": stage, "model": model, "fleet": fleet, "rollout": rollout, "actor": actor, "via": via, "level": level}
    words = {name: value for name, value in {**same, "kind__startswith": kind, "sentence__icontains": text}.items() if value}
    if any("\0" in value for value in words.values()):  # the database refuses even to look for it
        return ()
    bounds = {"seq__lt": before, "at__gte": since, "at__lt": until, "model__in": models}
    wanted = {**words, **{name: bound for name, bound in bounds.items() if bound is not None}}
    return tuple(event_view(event) for event in Event.objects.filter(**wanted).order_by("-seq")[:limit])


def events_after(*, seq: int, limit: int = 200) -> tuple[EventView, ...]:
    """What came after row `seq`, oldest first, as far as nothing can still come in between."""
    events = list(Event.objects.filter(seq__gt=seq).order_by("seq")[:limit])
    whole = _length_without_gap(seq, [event.seq for event in events])
    if whole < len(events):
        if _somebody_writes():
            events = events[:whole]
        else:
            # Whoever had taken a number under the last one has ended by now, and may have committed since we read.
            events = list(Event.objects.filter(seq__gt=seq, seq__lte=events[-1].seq).order_by("seq")[:limit])
    return tuple(event_view(event) for event in events)


def latest_seq() -> int:
    """Where a new follower begins: the newest row that nothing can still come in before; 0 for an empty journal."""
    newest = list(Event.objects.order_by("-seq").values_list("seq", flat=True)[:50])[::-1]
    if not newest:
        return 0
    whole = _length_without_gap(newest[0] - 1, newest)
    return newest[-1] if whole == len(newest) or not _somebody_writes() else newest[whole - 1]


def _length_without_gap(seq: int, numbers: list[int]) -> int:
    """How many of the rising numbers follow `seq` one by one."""
    return next((i for i, number in enumerate(numbers) if number != seq + 1 + i), len(numbers))


def _somebody_writes() -> bool:
    """Whether another session has written to the journal and not ended yet. What this one wrote it can see."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = %s AND objsubid = 1 "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid())",
            [JOURNAL_LOCK],
        )
        return bool(cursor.fetchone()[0])
