"""Logs of engines on their way from agents to who reads them: asked for, taken in pieces, bounded, and gone once read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Sum
from django.db.models.functions import Length
from django.utils import timezone

from denvweb.core.errors import ConflictError, ForbiddenError, NotFoundError
from denvweb.core.ids import random_id
from denvweb.wake import poke
from fleets.domain.protocol import LogPiece, LogPieceReply
from fleets.domain.types import NodeState, Role
from fleets.domain.views import LogLines, LogSource
from fleets.models import LogAsk, LogText, Rank
from fleets.services.launch import nodes_touch
from fleets.services.nodes import node_authenticate

KEEP_S = 15.0  # how long an ask outlives the last word of its reader
FORGET_S = 60.0
WAITING_MAX_CHARS = 512 * 1024  # of one ask, until the reader takes them
_TEXT_MAX_CHARS = 256 * 1024
RANKS_MAX = 64  # of one reader
_ORDER = ("replica__unit__slot", "replica__ordinal", "replica__attempt", "index")


@dataclass(frozen=True, slots=True)
class LogWanted:
    """Which logs of a pool, and from where on."""

    role: Role
    ordinal: int | None = None  # None: of all replicas
    rank: int | None = None  # None: of all ranks
    follow: bool = False
    tail_lines: int = 200
    since_at: datetime | None = None


def log_asks_open(*, stage: str, wanted: LogWanted, now: datetime | None = None) -> tuple[str, tuple[LogSource, ...]]:
    """Ask the agents of a pool's ranks, those on their way out included, for their logs. The reader's name, and what it will hear of.

    NotFoundError `no-such-log` when the stage has no such rank.
    """
    reader = random_id("lr", 16)
    sources = log_asks_extend(reader=reader, stage=stage, wanted=wanted, now=now)
    if not sources:
        which = f" {wanted.ordinal + 1}" if wanted.ordinal is not None else ""
        raise NotFoundError(f"Nothing of {stage} runs as {wanted.role.value}{which}; `denv stages` shows what does.", code="no-such-log")
    return reader, sources


@transaction.atomic
def log_asks_extend(*, reader: str, stage: str, wanted: LogWanted, now: datetime | None = None) -> tuple[LogSource, ...]:
    """The same for ranks that the reader has no ask for yet: those that have come since, which replaced others."""
    now = now or timezone.now()
    known = LogAsk.objects.filter(reader=reader).values_list("rank", flat=True)
    found = Rank.objects.filter(replica__unit__stage=stage, replica__role=wanted.role.value).exclude(id__in=known)
    found = found if wanted.ordinal is None else found.filter(replica__ordinal=wanted.ordinal)
    found = found if wanted.rank is None else found.filter(index=wanted.rank)
    ordered = found.select_related("replica__unit", "node").order_by(*_ORDER)
    rows = list(ordered[: RANKS_MAX + 1])
    if len(rows) > RANKS_MAX:
        raise ConflictError(f"That is over {RANKS_MAX} logs at once; name one replica or one rank.", code="too-many-logs")
    asks = {row.id: _ask(reader, row, wanted, now) for row in rows}
    LogAsk.objects.bulk_create(asks.values())
    nodes_touch({row.node_id for row in rows})
    return tuple(_source(row, asks[row.id].id, now) for row in rows)


def _ask(reader: str, row: Rank, wanted: LogWanted, now: datetime) -> LogAsk:
    return LogAsk(
        id=random_id("la", 16),
        reader=reader,
        node=row.node,
        rank=row.id,
        follow=wanted.follow,
        tail_lines=wanted.tail_lines,
        since_at=wanted.since_at,
        wanted_until=now + timedelta(seconds=KEEP_S),
    )


def _source(row: Rank, ask: str, now: datetime) -> LogSource:
    late = row.node.state in (NodeState.SUSPECT, NodeState.LOST) and row.node.last_report_at is not None
    silent_s = (now - row.node.last_report_at).total_seconds() if late and row.node.last_report_at else None
    return LogSource(
        ask=ask,
        node=row.node_id,
        role=Role(row.replica.role),
        ordinal=row.replica.ordinal,
        rank=row.index,
        unit=row.replica.unit.slot,
        silent_s=silent_s,
    )


def log_asks_keep(*, reader: str, now: datetime | None = None) -> None:
    """The reader is still there."""
    LogAsk.objects.filter(reader=reader).update(wanted_until=(now or timezone.now()) + timedelta(seconds=KEEP_S))


@transaction.atomic
def log_piece_take(*, credential: str, piece: LogPiece, now: datetime | None = None) -> LogPieceReply:
    """Take a piece from an agent. One that comes twice is taken once; one that its reader has no room for comes again."""
    now = now or timezone.now()
    node = node_authenticate(credential=credential)
    ask = LogAsk.objects.select_for_update().filter(id=piece.ask).first()
    if ask is None or ask.wanted_until <= now or ask.done:
        return LogPieceReply(go_on=False)
    if ask.node_id != node.name:
        raise ForbiddenError(f"This log is not asked of {node.name}.", code="other-node")
    if ask.position is not None and piece.end <= ask.position and not piece.done:
        return LogPieceReply(go_on=True)
    waiting = LogText.objects.filter(ask=ask).aggregate(chars=Sum(Length("text")))["chars"] or 0
    if waiting > WAITING_MAX_CHARS:
        return LogPieceReply(go_on=True, taken=False)
    text = piece.text[:_TEXT_MAX_CHARS].replace("\0", "")
    if text or piece.detail:
        LogText.objects.create(ask=ask, start=piece.start, end=piece.end, text=text, detail=piece.detail[:500])
    ask.position, ask.done = piece.end, piece.done
    ask.save(update_fields=["position", "done"])
    poke(f"logs.{ask.reader}")
    return LogPieceReply(go_on=not piece.done)


@transaction.atomic
def log_texts_take(*, reader: str, sources: Sequence[LogSource], seen: dict[str, int]) -> tuple[list[LogLines], bool]:
    """What has come for a reader since, and whether nothing will follow. `seen` keeps the end of each log between calls."""
    by_ask = {source.ask: source for source in sources}
    left = LogAsk.objects.filter(reader=reader, done=False).exists()  # before the texts: what is done by now has its last text in
    rows = list(LogText.objects.filter(ask__reader=reader).order_by("id"))
    LogText.objects.filter(id__in=[row.pk for row in rows]).delete()
    lines = []
    for row in rows:
        source, before = by_ask[row.ask_id], seen.get(row.ask_id)
        note = row.detail
        if before is not None and row.start > before:
            note = f"{row.start - before:,} bytes are left out: they were written faster than they could be read"
        elif before is not None and row.start < before:
            note = "the log begins anew"
        seen[row.ask_id] = row.end
        lines.append(LogLines(source.unit, source.role, source.ordinal, source.rank, source.node, row.text, note))
    return lines, not left


def log_asks_forget(*, now: datetime) -> None:
    """Remove what nobody reads any more."""
    LogAsk.objects.filter(wanted_until__lt=now - timedelta(seconds=FORGET_S)).delete()
