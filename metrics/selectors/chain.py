"""Checking the journal against its chain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Exists, Min, OuterRef, Q

from metrics.domain.chain import ChainCheck, Link, chain_check, digest_of
from metrics.models import Event, EventSeal

_CONTENT = (
    "kind", "level", "sentence", "actor", "via", "model", "stage", "fleet", "rollout", "release", "evidence", "proof", "request_id",
)  # fmt: skip
_BATCH = 2000


def event_content(event: Event) -> dict[str, Any]:
    """What of a row is hashed, beside its time."""
    return {name: getattr(event, name) for name in _CONTENT}


def chain_view(*, head: str = "") -> ChainCheck:
    """Check all links; with `head`, a hash noted down earlier, also that the chain still has it. Reads in batches, locks nothing."""
    if head and not EventSeal.objects.filter(hash=head).exists():
        return ChainCheck(0, "", f"no link has the hash {head[:64]}: the chain was cut, or written anew")
    found = chain_check(_links())
    if found.problem:
        return found
    row = _loose()
    return ChainCheck(found.checked, found.head, f"event {row.seq} is in no link of the chain") if row else found


def _loose() -> Event | None:
    """The first event without a link, of those that came after the chain began."""
    first = EventSeal.objects.aggregate(seq=Min("event_seq"))["seq"]
    newer = ~Q(digest="") if first is None else ~Q(digest="") | Q(seq__gte=first)
    return Event.objects.filter(newer, ~Exists(EventSeal.objects.filter(event_seq=OuterRef("seq")))).order_by("seq").first()


def _links() -> Iterator[Link]:
    after = 0
    while seals := list(EventSeal.objects.filter(pk__gt=after).order_by("pk")[:_BATCH]):
        events = Event.objects.in_bulk([seal.event_seq for seal in seals])
        for seal in seals:
            event = events.get(seal.event_seq)
            yield Link(
                number=seal.pk,
                seq=seal.event_seq,
                prev_hash=seal.prev_hash,
                hash=seal.hash,
                digest=event.digest if event else "",
                recomputed=digest_of(at=event.at, content=event_content(event)) if event else None,
            )
        after = seals[-1].pk
