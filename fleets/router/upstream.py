"""Connections to engines: a hand-made HTTP/1.1 client on asyncio.Protocol, pooled by address, with deadlines for each leg."""

from __future__ import annotations

import asyncio
import socket
from enum import StrEnum
from typing import Protocol, cast

import httptools

Address = tuple[str, int]
Headers = list[tuple[bytes, bytes]]

IDLE_MAX = 256  # kept connections for each address
STALE_WITHIN_S = 0.5  # a kept connection that ends sooner than this after a request was ending already


class LegFailure(StrEnum):
    """How a leg ended without an answer."""

    CONNECT = "connect"  # no connection was made
    TIMEOUT = "timeout"  # a deadline passed
    CUT = "cut"  # the connection ended, or spoke no HTTP, before the answer was whole


class LegError(Exception):
    """A leg that got no whole answer; `started` says whether any byte of one came."""

    def __init__(self, kind: LegFailure, detail: str, *, started: bool = False) -> None:
        super().__init__(detail)
        self.kind = kind
        self.started = started


class Sink(Protocol):
    """Who takes an answer. `body` is called once for each read with all that came in it."""

    def attach(self, connection: Connection) -> None:
        """The connection that the answer comes from, for back-pressure."""

    def head(self, status: int, headers: Headers) -> None:
        """Status and headers are there."""

    def body(self, data: bytes) -> None:
        """Bytes of the body, without their chunk framing."""


class Collected:
    """A sink that keeps a whole answer."""

    __slots__ = ("headers", "parts", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.parts: list[bytes] = []

    def attach(self, connection: Connection) -> None:
        """Nothing to slow down: the whole answer is wanted."""

    def head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers

    def body(self, data: bytes) -> None:
        self.parts.append(data)

    @property
    def content(self) -> bytes:
        """The whole body."""
        return b"".join(self.parts)


class Connection(asyncio.Protocol):
    """One connection to an engine; one request at a time."""

    __slots__ = (
        "_complete", "_headers",
        "_keep", "_loop", "_parser", "_parts", "_pool", "_seen", "_sink", "_timer", "_total_at", "_transport",
        "_until_close", "_waiter", "address", "started",
    )  # fmt: skip

    def __init__(self, pool: Pool, address: Address) -> None:
        self._pool = pool
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._total_at = 0.0
        self._parts: list[bytes] = []
        self._headers: Headers = []
        self._complete = False
        self._until_close = False
        self._keep = False
        self._seen = False  # a byte of the body came
        self.started = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        set_nodelay(self._transport)

    def send(self, data: bytes, sink: Sink, waiter: asyncio.Future[None], *, first_byte_s: float, total_s: float) -> None:
        """Send a request; `waiter` ends when the answer is whole, or with LegError."""
        self._sink, self._waiter, self.started, self._complete, self._seen = sink, waiter, False, False, False
        self._total_at = self._loop.time() + total_s
        self._timer = self._loop.call_later(min(first_byte_s, total_s), self._expire)
        sink.attach(self)
        self._transport.write(data)

    @property
    def usable(self) -> bool:
        """Whether it can take another request."""
        return not self._transport.is_closing()

    def pause(self) -> None:
        """The client is slow: read no more from the engine."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """The client caught up."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def hang_up(self, waiter: asyncio.Future[None]) -> None:
        """End the request of `waiter` in the middle; the engine sees it and stops computing.

        When its answer became whole in the same instant, the connection is another's by now, and stays.
        """
        if self._waiter is waiter:
            self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        self._settle(None)
        self._transport.abort()

    # -- httptools callbacks --

    def on_message_begin(self) -> None:
        self._headers = []
        self._until_close = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._until_close = False
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._sink is not None:
            self._sink.head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._complete = True
            self._keep = self._parser.should_keep_alive() and not self._until_close

    # -- asyncio.Protocol --

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:  # bytes that nobody asked for
            self._transport.abort()
            return
        self.started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(LegFailure.CUT, "the engine's answer is not HTTP")
            return
        if self._parts:
            parts, self._parts = self._parts, []
            self._seen = True
            sink.body(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._complete:
            self._finish()

    def eof_received(self) -> bool:
        if self._until_close and self._sink is not None and self.started:
            self._keep = False
            self._finish()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.drop(self)
        self._fail(LegFailure.CUT, "the engine closed the connection")

    def _expire(self) -> None:
        if self._seen and self._loop.time() < self._total_at - 0.001:
            # The first byte came in time, and from there on only the total counts. Looked at here, and not when it came,
            # because most answers end before any deadline: one timer each is enough.
            self._timer = self._loop.call_at(self._total_at, self._expire)
            return
        self._fail(LegFailure.TIMEOUT, "the engine did not answer in time")

    def _finish(self) -> None:
        waiter = self._settle(None)
        if self._keep and not self._transport.is_closing():
            self._transport.resume_reading()
            self._pool.keep(self)
        else:
            self._transport.close()
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, kind: LegFailure, detail: str) -> None:
        waiter = self._settle(None)
        self._transport.abort()
        if waiter is not None and not waiter.done():
            waiter.set_exception(LegError(kind, detail, started=self.started))

    def _settle(self, sink: Sink | None) -> asyncio.Future[None] | None:
        """Let go of the request; returns who waits for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiter, self._waiter, self._sink = self._waiter, None, sink
        return waiter


class Pool:
    """Idle connections by address."""

    def __init__(self, *, connect_deadline_s: float) -> None:
        self._connect_deadline_s = connect_deadline_s
        self._idle: dict[Address, list[Connection]] = {}

    def idle(self, address: Address) -> Connection | None:
        """A kept connection: the one used last, which the engine is least likely to be closing."""
        kept = self._idle.get(address)
        while kept:
            connection = kept.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self, address: Address) -> Connection:
        """A new connection; LegError when the engine takes none in time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_deadline_s):
                _, connection = await loop.create_connection(lambda: Connection(self, address), *address)
        except TimeoutError as error:
            raise LegError(LegFailure.CONNECT, f"no connection within {self._connect_deadline_s:g} s") from error
        except OSError as error:
            raise LegError(LegFailure.CONNECT, "the engine takes no connection") from error
        return connection

    def keep(self, connection: Connection) -> None:
        """Take a connection back after a whole answer."""
        kept = self._idle.setdefault(connection.address, [])
        if len(kept) < IDLE_MAX:
            kept.append(connection)
        else:
            connection.abort()

    def drop(self, connection: Connection) -> None:
        """A connection ended."""
        kept = self._idle.get(connection.address)
        if kept and connection in kept:
            kept.remove(connection)

    def close(self) -> None:
        """End all idle connections."""
        for kept in self._idle.values():
            for connection in list(kept):
                connection.abort()
        self._idle.clear()


async def exchange(pool: Pool, address: Address, data: bytes, sink: Sink, *, first_byte_s: float, total_s: float) -> None:
    """One leg: send `data`, feed the answer to `sink`, return when it is whole. Cancelling it hangs up.

    A kept connection that ends without a byte was being closed by the engine when we wrote: that is tried once more on a new one.
    """
    kept = pool.idle(address)
    if kept is not None:
        clock_s = asyncio.get_running_loop().time
        sent_s = clock_s()
        try:
            await _once(kept, data, sink, first_byte_s, total_s)
        except LegError as error:
            if error.kind is not LegFailure.CUT or error.started or clock_s() - sent_s > STALE_WITHIN_S:
                raise
        else:
            return
    await _once(await pool.connect(address), data, sink, first_byte_s, total_s)


async def _once(connection: Connection, data: bytes, sink: Sink, first_byte_s: float, total_s: float) -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.send(data, sink, waiter, first_byte_s=first_byte_s, total_s=total_s)
    try:
        await waiter
    except asyncio.CancelledError:
        connection.hang_up(waiter)
        raise


def set_nodelay(transport: asyncio.Transport) -> None:
    """Without it each token may wait for the peer's delayed ACK: 40 ms."""
    raw = transport.get_extra_info("socket")
    if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
