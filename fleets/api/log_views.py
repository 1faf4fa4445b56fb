"""GET /stages/MODEL/STAGE/logs: what engines write, as server-sent events. The agents send it; the web process reaches into no node."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from denvweb import wake
from denvweb.access import Person, access_stage
from denvweb.api import refusal
from denvweb.auth import caller_of, caller_still
from denvweb.core import wire
from denvweb.core.errors import ConflictError, DenvError, InvalidError, MethodError, NobodyError
from denvweb.core.units import format_duration, parse_duration_s
from denvweb.throttle import refusal_of
from fleets.domain.types import Role
from fleets.domain.views import LogLines, LogSource
from fleets.services import LogWanted, log_asks_extend, log_asks_keep, log_asks_open, log_texts_take

LINES_MAX = 5000
_LOOK_AGAIN_S = 1.0
_KEEP_EVERY_S = 5.0
_ANSWER_S = 8.0  # a node that has not answered by then is named
_GIVE_UP_S = 20.0  # and not waited for after that, unless the log is followed

T = TypeVar("T")
Keep = Callable[[], tuple[LogSource, ...] | None]  # what has come since; None: it may not read any more


@csrf_exempt  # it changes nothing: what is no GET is told so
async def logs(request: HttpRequest, model: str, name: str) -> HttpResponse | StreamingHttpResponse:
    """`?pool=prefill` and, if wanted, `replica` (from 1), `rank` (from 0), `since` (`10m`) or `tail` (lines), `follow` (1).

    Events: `log` with lines, `note` with a sentence, `end` when nothing follows.
    """
    try:
        if request.method != "GET":
            raise MethodError("GET")
        user = await caller_of(request)
        if user is None:
            raise NobodyError("Log in, or send a bearer token.")
        if refused := refusal_of(user.pk):
            raise refused
        wanted = _read(request)
        reader, sources = await _in_thread(lambda: _open(user, f"{model}/{name}", wanted))
    except DenvError as error:
        return refusal(error)
    finally:
        await sync_to_async(close_old_connections)()  # a stream may last for hours, and keeps no connection
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    keep = partial(_keep, request, f"{model}/{name}", reader, wanted)
    return StreamingHttpResponse(_events(reader, sources, wanted.follow, keep), content_type="text/event-stream", headers=headers)


def _keep(request: HttpRequest, stage: str, reader: str, wanted: LogWanted) -> tuple[LogSource, ...] | None:
    """Say that the reader is there, if it may still read (else None); ranks that have come since are read from their first line."""
    user = caller_still(request)
    try:
        if user is None:
            return None
        access_stage(user, stage)
        log_asks_keep(reader=reader)
        return log_asks_extend(reader=reader, stage=stage, wanted=replace(wanted, tail_lines=LINES_MAX)) if wanted.follow else ()
    except ConflictError:
        return ()  # too many for one reader: those that it has go on
    except DenvError:
        return None


def _read(request: HttpRequest) -> LogWanted:
    given = request.GET
    try:
        role = Role(given.get("pool", ""))
    except ValueError:
        problem = f"`{given.get('pool', '')}` is no pool; it is one of {', '.join(Role)}"
        raise InvalidError(f"Which pool? {problem}.", fields={"pool": [problem]}) from None
    replica, rank, tail = (_number(request, key) for key in ("replica", "rank", "tail"))
    since_s = parse_duration_s(given["since"]) if given.get("since") else None
    if given.get("since") and since_s is None:
        raise InvalidError(f"since={given['since']}: write a duration, as in 10m.", fields={"since": ["is no duration"]})
    if replica == 0:
        raise InvalidError("Replicas count from 1.", fields={"replica": ["counts from 1"]})
    return LogWanted(
        role=role,
        ordinal=None if replica is None else replica - 1,
        rank=rank,
        follow=given.get("follow") == "1",
        tail_lines=200 if tail is None else min(LINES_MAX, tail),
        since_at=timezone.now() - timedelta(seconds=since_s) if since_s is not None else None,
    )


def _number(request: HttpRequest, name: str) -> int | None:
    text = request.GET.get(name, "")
    if text and not (text.isdecimal() and len(text) < 7):
        raise InvalidError(f"{name}={text}: write a whole number.", fields={name: ["is no whole number"]})
    return int(text) if text else None


def _open(user: Person, stage: str, wanted: LogWanted) -> tuple[str, tuple[LogSource, ...]]:
    access_stage(user, stage)
    return log_asks_open(stage=stage, wanted=wanted)


async def _events(reader: str, sources: tuple[LogSource, ...], follow: bool, keep: Keep) -> AsyncIterator[bytes]:
    """Until nothing follows, the client leaves (the asks then end by themselves), or it may not read any more."""
    begun_s = kept_s = time.monotonic()
    seen: dict[str, int] = {}
    named = False
    yield b"retry: 3000\n\n"
    async with wake.Waiter(f"logs.{reader}") as waiter:
        while True:
            lines, done = await _in_thread(partial(log_texts_take, reader=reader, sources=sources, seen=seen))
            for one in lines:
                yield _frame("log" if one.text else "note", one)
            now_s = time.monotonic()
            if not named and now_s - begun_s > _ANSWER_S:
                named = True
                for source in sources:
                    if source.ask not in seen:
                        yield _frame("note", _unheard(source))
            if done or (not follow and now_s - begun_s > _GIVE_UP_S):
                yield b"event: end\ndata: {}\n\n"
                return
            if now_s - kept_s > _KEEP_EVERY_S:
                kept_s = now_s
                more = await _in_thread(keep)
                if more is None:
                    return
                sources += more
                yield b": alive\n\n"
            if not lines:
                await waiter.wait(_LOOK_AGAIN_S)


def _unheard(source: LogSource) -> LogLines:
    late = f"; its last report is {format_duration(source.silent_s)} old" if source.silent_s is not None else ""
    note = f"{source.node} has sent nothing of its log in {_ANSWER_S:.0f} s{late}"
    return LogLines(source.unit, source.role, source.ordinal, source.rank, source.node, note=note)


def _frame(event: str, lines: LogLines) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event.encode(), wire.encode(lines))


async def _in_thread(function: Callable[[], T]) -> T:
    def run() -> T:
        try:
            return function()
        finally:
            close_old_connections()

    return await sync_to_async(run, thread_sensitive=False)()
