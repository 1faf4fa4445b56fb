"""Connections of clients: HTTP/1.1 by hand, one request after the other, with what pipelines waiting its turn."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, cast

import httptools

from fleets.router.openai import error_body
from fleets.router.upstream import Connection, Headers, set_nodelay

PIPELINE_MAX = 16  # whole requests that may wait on one connection; then reading stops

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_UPGRADE = frozenset({b"connection", b"upgrade", b"http2-settings"})
_JSON: Headers = [(b"content-type", b"application/json")]


@dataclass(slots=True)
class Request:
    """One whole request. Header names are lower case."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    keep_alive: bool
    http11: bool
    peer: str

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition(b"?")[0].decode("latin-1")

    def header(self, name: bytes) -> bytes:
        """The first value of a header; empty when absent."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""


class Client(Protocol):
    """Who gets the answer: a connection, or a probe of ours."""

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """A whole answer."""

    def begin(self, status: int, headers: Headers) -> None:
        """The head of an answer of unknown length."""

    def write(self, data: bytes) -> None:
        """A part of it."""

    def end(self) -> None:
        """Its end."""

    def feed_from(self, source: Connection | None) -> None:
        """Whose reading to pause while the client is slow."""


class Handler(Protocol):
    """What serves requests."""

    draining: bool
    max_body_bytes: int
    max_header_bytes: int

    def handle(self, request: Request, client: ClientConnection) -> asyncio.Task[Any] | None:
        """Answer now, or return the task that will."""

    def opened(self, client: ClientConnection) -> None:
        """A connection came."""

    def closed(self, client: ClientConnection) -> None:
        """It ended."""


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None
        self._task: asyncio.Task[Any] | None = None
        self._source: Connection | None = None
        self._slow = False
        self._refusal: bytes | None = None  # the last answer of this connection, to be sent in its turn
        self._head_bytes = 0
        self._in_head = True
        self._body_bytes = 0
        self._expects = False
        self._chunked = False
        self._paused = False
        self.since_s = self._loop.time()

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        set_nodelay(self._transport)
        peer = self._transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        self._handler.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self._transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(400, "the request is not valid HTTP/1.1", "bad_framing")
        else:
            if self._in_head and self._head_bytes > self._handler.max_header_bytes:
                self._refuse(431, f"the request head is longer than {self._handler.max_header_bytes} bytes", "header_too_long")
        self._next()

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade() + data[upgrade.args[0] :]
            else:
                return

    def _without_upgrade(self) -> bytes:
        """An offer to speak another protocol may be ignored: the head again without it, for a parser that then reads the body too."""
        head = b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._url)
        lines = [b"%b: %b\r\n" % header for header in self._headers if header[0] not in _UPGRADE]
        self._parser = httptools.HttpRequestParser(self)
        return head + b"".join(lines) + b"\r\n"

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.clear()
        self._current = None
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self._handler.closed(self)

    def pause_writing(self) -> None:
        self._slow = True
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        self._slow = False
        if self._source is not None:
            self._source.resume()

    # -- httptools callbacks --

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._expects = False
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._headers.append((name, value))
        if name == b"content-length" and value.isdigit() and int(value) > self._handler.max_body_bytes:
            self._too_long()
        elif name == b"expect" and value.lower() == b"100-continue":
            self._expects = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if self._expects:
            self._continue()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._handler.max_body_bytes:
            self._too_long()
        elif self._refusal is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self._in_head, self._expects = True, False
        if self._refusal is not None or self._parser.should_upgrade():
            return
        self._waiting.append(
            Request(
                method=self._parser.get_method(),
                target=self._url,
                headers=self._headers,
                body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
                keep_alive=self._parser.should_keep_alive(),
                http11=self._parser.get_http_version() != "1.0",
                peer=self._peer,
            )
        )
        if len(self._waiting) >= PIPELINE_MAX and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    # -- turns --

    @property
    def idle(self) -> bool:
        """Nothing asked that is not answered."""
        return self._current is None and not self._waiting

    def close(self) -> None:
        """End the connection once what was written is sent."""
        self._transport.close()

    def _next(self) -> None:
        while self._current is None and self._waiting:
            self._current = self._waiting.popleft()
            if self._paused and len(self._waiting) < PIPELINE_MAX // 2:
                self._paused = False
                self._transport.resume_reading()
            self._task = self._handler.handle(self._current, self)
        if self._current is None and self._refusal is not None and not self._transport.is_closing():
            self._transport.write(self._refusal)
            self._transport.close()
        elif self._current is None and self._expects:
            self._continue()

    def _continue(self) -> None:
        """Tell a client that waits with its body to send it, once all before it is answered."""
        if self._current is None and not self._waiting and self._refusal is None:
            self._expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _too_long(self) -> None:
        self._refuse(413, f"the request body is longer than {self._handler.max_body_bytes} bytes", "body_too_long")

    def _refuse(self, status: int, message: str, code: str) -> None:
        if self._refusal is None:
            body = error_body(message, kind="invalid_request_error", code=code)
            self._refusal = _head(status, [*_JSON, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]) + body

    def _done(self) -> None:
        request, self._current, self._task, self._source = self._current, None, None, None
        self.since_s = self._loop.time()
        if request is None or not request.keep_alive or self._handler.draining:
            self._transport.close()
        else:
            self._loop.call_soon(self._next)

    # -- Client --

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """A whole answer; drops silently what the client no longer wants."""
        request = self._current
        if request is None or self._transport.is_closing():
            return
        lines = [*headers, (b"content-length", b"%d" % len(body)), *self._connection_header(request)]
        self._transport.write(_head(status, lines) + (b"" if request.method == b"HEAD" else body))
        self._done()

    def begin(self, status: int, headers: Headers) -> None:
        """Start an answer of unknown length: in chunks, or to the end of the connection for HTTP/1.0."""
        request = self._current
        if request is None or self._transport.is_closing():
            return
        self._chunked = request.http11
        if self._chunked:
            framing = [(b"transfer-encoding", b"chunked"), *self._connection_header(request)]
        else:
            request.keep_alive = False
            framing = [(b"connection", b"close")]
        self._transport.write(_head(status, [*headers, *framing]))

    def write(self, data: bytes) -> None:
        """A part of the answer; goes out at once."""
        if self._transport.is_closing():
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._transport.write(data)

    def end(self) -> None:
        """The answer is whole."""
        if self._current is None or self._transport.is_closing():
            return
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")
        self._done()

    def feed_from(self, source: Connection | None) -> None:
        """Whose reading to pause while this client is slow."""
        self._source = source
        if source is not None and self._slow:
            source.pause()

    def _connection_header(self, request: Request) -> Headers:
        if not request.keep_alive or self._handler.draining:
            return [(b"connection", b"close")]
        return [] if request.http11 else [(b"connection", b"keep-alive")]


def _head(status: int, headers: Headers) -> bytes:
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Status"))]
    lines += [b"%b: %b\r\n" % header for header in headers]
    return b"".join(lines) + b"\r\n"
