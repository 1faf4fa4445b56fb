"""GET /stream: the journal as server-sent events, from where the client left off."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.views.decorators.csrf import csrf_exempt

from denvweb import wake
from denvweb.access import Person, Seen, seen_by
from denvweb.api import refusal
from denvweb.auth import caller_of, caller_still
from denvweb.core import wire
from denvweb.core.errors import InvalidError, MethodError, NobodyError
from denvweb.throttle import refusal_of
from metrics.domain.views import EventView
from metrics.selectors import events_after, latest_seq

_LOOK_AGAIN_S = 2.0
_HEARTBEAT_S = 15.0
_CHECK_AGAIN_S = 10.0  # whether the caller may still listen
_BATCH = 200
_RETRY_MS = 2000


@csrf_exempt  # it changes nothing: what is no GET is told so
async def stream(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Events after `Last-Event-ID` (a header, or `?after=` for a first connection), else from now on; `?stage=` keeps one stage's."""
    if request.method != "GET":
        return refusal(MethodError("GET"))
    user = await caller_of(request)
    seq, seen = await sync_to_async(_begin)(user) if user else (0, Seen(None))
    # Django gives a request's connection back when its response ends, and this one lasts for hours: a few streams would
    # take the whole pool.
    await sync_to_async(close_old_connections)()
    if not user:
        return refusal(NobodyError("Log in, or send a bearer token."))
    if refused := refusal_of(user.pk):
        return refusal(refused)
    text = request.headers.get("Last-Event-ID") or request.GET.get("after", "")
    if text and not (text.isdecimal() and len(text) < 19):
        return refusal(InvalidError(f"`{text}` is no number of an event", fields={"Last-Event-ID": ["not a number"]}))
    seq = int(text) if text else seq
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # or a proxy holds the lines back
    return StreamingHttpResponse(
        _lines(seq, request.GET.get("stage", ""), seen, request), content_type="text/event-stream", headers=headers
    )


def _begin(user: Person) -> tuple[int, Seen]:
    """Where a stream without a number begins, and what this person may see: as it is now; it is looked up again while the stream lasts."""
    return latest_seq(), seen_by(user)


def _still(request: HttpRequest) -> Seen | None:
    """What the caller may see by now; None once the token was revoked, the session ended, or the account closed."""
    try:
        user = caller_still(request)
        return seen_by(user) if user else None
    finally:
        close_old_connections()


async def _lines(seq: int, stage: str, seen: Seen, request: HttpRequest) -> AsyncIterator[bytes]:
    """Ends when the client leaves: Django then closes this generator, and with it the waiter; or when it may no longer listen."""
    yield f"retry: {_RETRY_MS}\n: from {seq}\n\n".encode()
    sent_mono_s = checked_mono_s = time.monotonic()
    async with wake.Waiter("events") as waiter:
        while True:
            if time.monotonic() - checked_mono_s >= _CHECK_AGAIN_S:
                now_seen = await sync_to_async(_still, thread_sensitive=False)(request)
                if now_seen is None:
                    return
                seen, checked_mono_s = now_seen, time.monotonic()
            events = await _read(seq)
            for event in events:
                seq = event.seq
                if stage in ("", event.stage) and event.model in seen:
                    yield _frame(event)
                    sent_mono_s = time.monotonic()
            if time.monotonic() - sent_mono_s >= _HEARTBEAT_S:
                # With its number and no data: nothing happens at the client, but it connects again from here, and what was none of
                # its business is not read once more.
                yield f"id: {seq}\n: alive, at {seq}\n\n".encode()
                sent_mono_s = time.monotonic()
            if events:
                continue
            await waiter.wait(_LOOK_AGAIN_S)


def _frame(event: EventView) -> bytes:
    return b"id: %d\nevent: journal\ndata: %s\n\n" % (event.seq, wire.encode(event))


def _read_now(seq: int) -> tuple[EventView, ...]:
    try:
        return events_after(seq=seq, limit=_BATCH)
    finally:
        close_old_connections()


async def _read(seq: int) -> tuple[EventView, ...]:
    """In any thread: one kept for each stream would cost more than the reading."""
    return await sync_to_async(_read_now, thread_sensitive=False)(seq)
