"""Agents' reports, straight from the socket: every node sends one every few seconds, so they go around Django's request handling.

Reports that come together are taken together, in a few statements for all of them. One that changes more than figures is taken alone,
so that no lock which it waits for holds up the heartbeats of others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import psycopg
from django.db import DatabaseError, close_old_connections

from denvweb.api import error_body, error_headers
from denvweb.auth import bearer
from denvweb.core import wire
from denvweb.core.errors import BrokenError, DenvError, InvalidError, MethodError, UnavailableError
from denvweb.core.ids import random_id
from denvweb.logs import request_id
from fleets.domain.protocol import AgentReport, NodeSnapshot
from fleets.services import report_take, reports_take

log = logging.getLogger(__name__)

PATH = "/agent/v1/sync"
_GATHER_S = 0.02  # reports that come within it are one batch
_BATCH_MAX = 256
_BODY_MAX_BYTES = 4 * 2**20
_ALONE_AT_ONCE = 4  # each may wait for a lock

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")


@dataclass(slots=True)
class _Waiting:
    """A report whose agent waits."""

    credential: str
    report: AgentReport
    answer: asyncio.Future[NodeSnapshot]

    def settle(self, answer: NodeSnapshot | DenvError) -> None:
        """Answer it, unless the agent has gone."""
        if self.answer.done():
            return
        if isinstance(answer, DenvError):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class SyncApp:
    """The ASGI application behind `POST /agent/v1/sync`."""

    def __init__(self) -> None:
        self.failures_total = 0  # errors that only the guard caught
        self._waiting: list[_Waiting] = []
        self._gathering = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._batches = ThreadPoolExecutor(1, "sync")
        self._alone = ThreadPoolExecutor(_ALONE_AT_ONCE, "sync-alone")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            if scope["method"] != "POST":
                raise MethodError("POST")
            body = await _body(receive)
            snapshot = await self.take(_credential(scope), wire.decode(body, AgentReport))
        except DenvError as error:
            request_id.set(random_id("req"))
            await _answer(send, error.http_status, wire.encode(error_body(error)), error_headers(error))
        else:
            await _answer(send, 200, wire.encode(snapshot))

    async def take(self, credential: str, report: AgentReport) -> NodeSnapshot:
        """What the node should run; raises what `report_take` does, and UnavailableError while the database does not answer."""
        waiting = _Waiting(credential, report, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if not self._gathering:
            self._gathering = True
            self._start(self._gather())
        return await waiting.answer

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _gather(self) -> None:
        """Take what waits, and what has come while that was taken, until nothing waits any more."""
        try:
            while self._waiting:
                await asyncio.sleep(_GATHER_S)
                batch, self._waiting = self._waiting[:_BATCH_MAX], self._waiting[_BATCH_MAX:]
                await self._take(batch)
        finally:
            self._gathering = False

    async def _take(self, batch: list[_Waiting]) -> None:
        reports = [(one.credential, one.report) for one in batch]
        answers = await self._try(self._batches, lambda: reports_take(reports=reports))
        if isinstance(answers, DenvError):
            answers = [answers] * len(batch)
        for one, answer in zip(batch, answers, strict=True):
            if answer is None:
                self._start(self._take_alone(one))
            else:
                one.settle(answer)

    async def _take_alone(self, one: _Waiting) -> None:
        one.settle(await self._try(self._alone, lambda: report_take(credential=one.credential, report=one.report)))

    async def _try(self, pool: ThreadPoolExecutor, function: Callable[[], T]) -> T | DenvError:
        """Whatever it gives, or why it could not: nobody may wait for ever, and the next batch must be taken."""
        try:
            return await _in_thread(pool, function)
        except DenvError as error:
            return error
        except (DatabaseError, psycopg.Error) as error:
            log.warning("reports were not taken: %s", error)
            return UnavailableError("The database does not answer; the agent reports again.")
        except Exception:  # the top of the loop
            self.failures_total += 1
            log.exception("reports were not taken (%d such failures)", self.failures_total)
            return BrokenError("denv could not take this report; its log says why.")


async def _in_thread(pool: ThreadPoolExecutor, function: Callable[[], T]) -> T:
    def run() -> T:
        try:
            return function()
        finally:
            close_old_connections()  # back to the pool

    return await asyncio.get_running_loop().run_in_executor(pool, run)


def _credential(scope: Scope) -> str:
    return next((bearer(value.decode("latin-1")) for name, value in scope["headers"] if name == b"authorization"), "")


async def _body(receive: Receive) -> bytes:
    parts, length = [], 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise InvalidError("The report was cut off.", code="bad-message")
        part = event.get("body", b"")
        parts.append(part)
        length += len(part)
        if length > _BODY_MAX_BYTES:
            raise InvalidError(f"A report may have at most {_BODY_MAX_BYTES} bytes.", code="bad-message")
        if not event.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, status: int, body: bytes, more: Mapping[str, str] = MappingProxyType({})) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(name.lower().encode(), value.encode()) for name, value in more.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
