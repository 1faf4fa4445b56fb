"""Connections to engines: a hand-made HTTP/1.1 client on asyncio.Protocol, pooled by address, with deadlines for each leg.

Event loops set TCP_NODELAY on every connection by themselves; without it each token could wait 40 ms for the peer's delayed ACK.

No task or future is made for a leg on a kept connection: who wants the answer is called from the read that brings it. Deadlines are
looked at together a few times a second, because nearly every leg ends long before its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from fleets.router.chunks import ChunkError, Unchunker, whole_chunks
from fleets.router.heads import AnswerHead, AnswerHeads, HeadError
from fleets.router.outbox import Outbox
from fleets.router.taker import LegError, LegFailure, Taker
from fleets.router.telemetry import now

log = logging.getLogger("fleets.router.upstream")

Address = tuple[str, int]

IDLE_MAX = 1024  # kept connections for each address
STALE_WITHIN_S = 0.5  # a kept connection that ends sooner than this after a request was ending already
TICK_S = 0.05  # between two looks at the deadlines


class Connection(asyncio.Protocol):
    """One connection to an engine; one request at a time."""

    __slots__ = (
        "_body", "_data", "_first_at", "_have", "_head", "_heads", "_kept", "_length", "_pool", "_seen", "_sent_s", "_stream",
        "_taker", "_total_at", "_transport", "_unchunker", "address", "started",
    )  # fmt: skip

    def __init__(self, pool: Pool, address: Address) -> None:
        self._pool = pool
        self._heads = pool.heads
        self.address = address
        self._taker: Taker | None = None
        self._data = b""  # the request, for as long as it may have to be sent again
        self._head: AnswerHead | None = None
        self._body: list[bytes] = []  # of an answer that is taken when it is whole; before the head is there: what came of it
        self._have = 0
        self._length: int | None = None
        self._unchunker: Unchunker | None = None  # in the middle of a chunk
        self._stream = False
        self._seen = False  # a byte of the body came
        self._kept = False
        self._first_at = self._total_at = self._sent_s = 0.0
        self.started = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, data: bytes, taker: Taker, *, kept: bool, sent_s: float, first_s: float, total_s: float) -> None:
        """Send a request. Deadlines count from `sent_s`."""
        taker.leg = self
        self._taker, self._data, self._kept, self.started = taker, data, kept, False
        self._sent_s = sent_s
        self._total_at = sent_s + total_s
        self._first_at = sent_s + first_s if first_s < total_s else self._total_at
        self._pool.watch(self)
        self._pool.outbox.put(self._transport, data)

    @property
    def usable(self) -> bool:
        """Whether it can take another request."""
        return not self._transport.is_closing()

    @property
    def seen(self) -> bool:
        """Whether a byte of the answer's body has come."""
        return self._seen

    def pause(self) -> None:
        """The client is slow: read no more from the engine."""
        if self._taker is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """The client caught up."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def hang_up(self) -> None:
        """End the request in the middle; the engine sees it and stops computing."""
        self._settle()
        self._transport.abort()

    def hand_to(self, taker: Taker) -> None:
        """Another one takes the answer from here on."""
        if self._taker is not None:
            self._taker.leg = None
        self._taker = taker
        taker.leg = self

    # -- asyncio.Protocol --

    def data_received(self, data: bytes) -> None:
        taker = self._taker
        if taker is None:  # bytes that nobody asked for
            self._transport.abort()
            return
        try:
            if self._stream:
                self._more(taker, data)
            elif self._head is None:
                self._begin(taker, data)
            else:
                self._collect(taker, data)
        except (HeadError, ChunkError):
            self._fail(LegFailure.CUT, "the engine's answer is not HTTP")
        except Exception as error:  # whatever it was, the client must not wait for ever
            log.exception("a request failed in the router itself")
            self._settle()
            self._transport.abort()
            self._pool.broken(taker, error)

    def _begin(self, taker: Taker, data: bytes) -> None:
        self.started = True
        if self._body:
            data, self._body = self._body[0] + data, []
        while True:
            head = self._heads.find(data)
            if head is None:
                self._body = [data] if data else []
                return
            if head.status >= 200:
                break
            data = data[self._heads.start :]  # 1xx: the answer proper follows
        heads = self._heads
        length = heads.length
        if length is not None and not head.stream and len(data) - heads.start == length:  # all in one read
            body = data[heads.start :]
            self._finish(head.keep)
            taker.answered(head, body)
            return
        self._head, self._data, self._length, self._have = head, b"", length, 0
        rest = data[heads.start :]
        stream = taker.streamed(head, self) if head.stream else None
        if self._taker is not taker:
            return
        if stream is not None:
            self._stream = True
            self.hand_to(stream)
            if rest or length == 0:
                self._more(stream, rest)
            else:
                stream.events(b"", 0)
        else:
            self._collect(taker, rest)

    def _more(self, taker: Taker, data: bytes) -> None:
        """A read of a stream."""
        head = self._head
        if head is None:
            return
        if head.chunked:
            if self._unchunker is None:
                taken = taker.text(data)
                if taken > 0:
                    return
                self._seen = True
                if self._whole(taker, data, taken, head.keep):
                    return
            unchunker = self._unchunker
            if unchunker is None:
                unchunker = self._unchunker = Unchunker()
            content, done = unchunker.feed(data), unchunker.done
            if unchunker.between:
                self._unchunker = None
            surplus = bool(unchunker.rest)
        else:
            content, done, surplus = self._counted(data)
        self._seen = self._seen or bool(content)
        if done:
            self._finish(head.keep and not surplus)
        if content:
            taker.events(content, 0)
        if done:
            taker.ended()

    def _whole(self, taker: Taker, data: bytes, taken: int, keep: bool) -> bool:
        """Hand on a read that is whole chunks without looking into each, if it is not `taken` already; False when it is not."""
        if not taken:
            taken = whole_chunks(data)
            if not taken:
                return False
            if taken < 0:
                self._finish(keep)
            taker.events(data, taken)
        elif taken < 0:
            self._finish(keep)
        if taken < 0:
            taker.ended()
        return True

    def _counted(self, data: bytes) -> tuple[bytes, bool, bool]:
        """What of `data` belongs to a body that is not chunked; whether it is whole, and more came than that."""
        if self._length is None:
            return data, False, False
        left = self._length - self._have
        self._have += min(left, len(data))
        return data[:left] if len(data) > left else data, len(data) >= left, len(data) > left

    def _collect(self, taker: Taker, data: bytes) -> None:
        """A read of an answer that is taken when it is whole."""
        head = self._head
        if head is None:
            return
        if head.chunked:
            if self._unchunker is None:
                self._unchunker = Unchunker()
            content, done = self._unchunker.feed(data), self._unchunker.done
            surplus = bool(self._unchunker.rest)
        else:
            content, done, surplus = self._counted(data)
        if content:
            self._seen = True
            self._body.append(content)
        if done:
            body = b"".join(self._body)
            self._finish(head.keep and not surplus)
            taker.answered(head, body)

    def eof_received(self) -> bool:
        head, taker = self._head, self._taker
        if head is not None and taker is not None and not head.chunked and self._length is None:
            body, stream = b"".join(self._body), self._stream
            self._finish(False)
            if stream:
                taker.ended()
            else:
                taker.answered(head, body)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.drop(self)
        self._fail(LegFailure.CUT, "the engine closed the connection")

    def late(self, now_s: float) -> bool:
        """Whether a deadline has passed: until the first byte of the body the first one, then only the total."""
        return now_s >= (self._total_at if self._seen else self._first_at)

    def expire(self) -> None:
        """A deadline has passed."""
        self._fail(LegFailure.TIMEOUT, "the engine did not answer in time")

    def _finish(self, keep: bool) -> None:
        """The answer is whole."""
        self._settle()
        if not keep or self._transport.is_closing():
            self._transport.close()
            return
        kept = self._pool.kept.get(self.address)
        if kept is not None and len(kept) < IDLE_MAX:
            kept.append(self)
        else:
            self._pool.keep(self)

    def _fail(self, kind: LegFailure, detail: str) -> None:
        taker = self._taker
        if taker is None:
            self._transport.abort()
            return
        data, again = self._data, self._kept and not self.started and kind is LegFailure.CUT
        sent_s, first_s, total_s = self._sent_s, self._first_at - self._sent_s, self._total_at - self._sent_s
        self._settle()
        self._transport.abort()
        if again and now() - sent_s < STALE_WITHIN_S:  # the engine was closing it when we wrote: that says nothing about it
            self._pool.dial(self.address, data, taker, first_s=first_s, total_s=total_s)
        else:
            taker.leg = None
            self._pool.tell(taker, LegError(kind, detail, started=self.started))

    def _settle(self) -> None:
        """Let go of the request."""
        if self._taker is not None:
            self._taker.leg = None
            self._taker = None
            self._pool.busy.discard(self)
        self._data = b""
        if self._head is not None:
            self._head = self._unchunker = None
            self._stream = self._seen = False
            self._have = 0
        if self._body:
            self._body = []


class Dial:
    """A connection being made for a leg."""

    __slots__ = ("_data", "_first_s", "_pool", "_taker", "_task", "_total_s", "_until_s")

    def __init__(self, pool: Pool, address: Address, data: bytes, taker: Taker, *, first_s: float, total_s: float) -> None:
        self._pool = pool
        self._taker: Taker | None = taker
        self._data = data
        self._first_s, self._total_s = first_s, total_s
        self._until_s = now() + pool.connect_deadline_s
        taker.leg = self
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(loop.create_connection(lambda: Connection(pool, address), *address))
        self._task.add_done_callback(self._made)
        pool.watch(self)

    def hang_up(self) -> None:
        """Nobody wants it any more."""
        self._taker = None
        self._task.cancel()

    def hand_to(self, taker: Taker) -> None:
        """Another one takes the answer from here on."""
        if self._taker is not None:
            self._taker.leg = None
        self._taker = taker
        taker.leg = self

    def late(self, now_s: float) -> bool:
        """Whether it takes too long."""
        return now_s >= self._until_s

    def expire(self) -> None:
        """It takes too long."""
        taker = self._taker
        self.hang_up()
        self._pool.unwatch(self)
        self._tell(taker, f"no connection within {self._pool.connect_deadline_s:g} s")

    def _made(self, task: asyncio.Task[tuple[asyncio.Transport, Connection]]) -> None:
        taker, self._taker = self._taker, None
        self._pool.unwatch(self)
        if task.cancelled():
            self._tell(taker, "the router stops")
        elif task.exception() is not None:
            self._tell(taker, "the engine takes no connection")
        elif not task.result()[1].usable:  # it ended in the instant in which it was made
            self._tell(taker, "the engine closed the connection", LegFailure.CUT)
        elif taker is None:
            self._pool.keep(task.result()[1])
        else:
            task.result()[1].send(self._data, taker, kept=False, sent_s=now(), first_s=self._first_s, total_s=self._total_s)

    def _tell(self, taker: Taker | None, detail: str, kind: LegFailure = LegFailure.CONNECT) -> None:
        if taker is not None:
            taker.leg = None
            self._pool.tell(taker, LegError(kind, detail))


class Pool:
    """Idle connections by address, and the deadlines of the busy ones."""

    def __init__(self, *, connect_deadline_s: float, unforeseen: Callable[[BaseException], None] | None = None) -> None:
        self.connect_deadline_s = connect_deadline_s
        self._unforeseen = unforeseen
        self.kept: dict[Address, list[Connection]] = {}
        self.busy: set[Connection | Dial] = set()
        self._ticking = False
        self.heads = AnswerHeads()
        self.outbox = Outbox()

    def send(self, address: Address, data: bytes, taker: Taker, *, sent_s: float, first_s: float, total_s: float) -> None:
        """Send a leg on a kept connection, the one used last, which the engine is least likely to be closing; else on a new one."""
        kept = self.kept.get(address)
        while kept:
            connection = kept.pop()
            if connection.usable:
                connection.send(data, taker, kept=True, sent_s=sent_s, first_s=first_s, total_s=total_s)
                return
        self.dial(address, data, taker, first_s=first_s, total_s=total_s)

    def dial(self, address: Address, data: bytes, taker: Taker, *, first_s: float, total_s: float) -> None:
        """Send a leg on a new connection."""
        Dial(self, address, data, taker, first_s=first_s, total_s=total_s)

    def keep(self, connection: Connection) -> None:
        """Take a connection back after a whole answer."""
        kept = self.kept.get(connection.address)
        if kept is None:
            kept = self.kept[connection.address] = []
        if len(kept) < IDLE_MAX:
            kept.append(connection)
        else:
            connection.hang_up()

    def drop(self, connection: Connection) -> None:
        """A connection ended."""
        kept = self.kept.get(connection.address)
        if kept and connection in kept:
            kept.remove(connection)
            if not kept:
                del self.kept[connection.address]

    def watch(self, leg: Connection | Dial) -> None:
        """Mind its deadlines."""
        self.busy.add(leg)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def unwatch(self, leg: Connection | Dial) -> None:
        """It has an answer, or none any more."""
        self.busy.discard(leg)

    def _tick(self) -> None:
        now_s = now()
        for leg in [leg for leg in self.busy if leg.late(now_s)]:
            leg.expire()
        self._ticking = bool(self.busy)
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def awaited(self, address: Address) -> bool:
        """Whether a request there has had no byte of its answer's body yet."""
        return any(isinstance(leg, Connection) and leg.address == address and not leg.seen for leg in self.busy)

    def tell(self, taker: Taker, error: LegError) -> None:
        """Say that a leg failed."""
        try:
            taker.failed(error)
        except Exception as unforeseen:  # a callback of the loop: nobody above could do more than log it
            log.exception("a request failed in the router itself")
            self.broken(taker, unforeseen)

    def broken(self, taker: Taker, error: BaseException) -> None:
        """The taker itself failed: its client must not wait for ever."""
        if self._unforeseen is not None:
            self._unforeseen(error)
        broken = getattr(taker, "broken", None)
        if broken is not None:
            broken()

    @property
    def open(self) -> int:
        """Connections, idle and busy."""
        return len(self.busy) + sum(len(kept) for kept in self.kept.values())

    def close(self) -> None:
        """End all connections."""
        for leg in [*self.busy, *(connection for kept in self.kept.values() for connection in kept)]:
            leg.hang_up()
        self.kept.clear()
