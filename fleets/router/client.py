"""Connections of clients: HTTP/1.1 by hand, one request after the other, with what pipelines waiting its turn.

A request whose head has been seen before is cut out of its read by hand; every other byte goes through the real parser.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, cast

import httptools

from fleets.router.chunks import content_of
from fleets.router.heads import REASONS, Headers, RequestHead, RequestHeads
from fleets.router.openai import error_body
from fleets.router.outbox import Outbox
from fleets.router.upstream import Connection

PIPELINE_MAX = 16  # whole requests that may wait on one connection; then reading stops

_UPGRADE = frozenset({b"connection", b"upgrade", b"http2-settings"})
_JSON: Headers = [(b"content-type", b"application/json")]


class Client(Protocol):
    """Who gets the answer: a connection, or a probe of ours."""

    @property
    def peer(self) -> str:
        """Its address."""

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """A whole answer."""

    def answer(self, head: bytes, body: bytes) -> None:
        """A whole answer; `head` is its status line and headers, each with its CRLF."""

    def begin(self, head: bytes) -> None:
        """The head of an answer of unknown length. It goes out with the first part, or by `flush`."""

    def write(self, data: bytes) -> None:
        """A part of it."""

    def pass_on(self, data: bytes, *, last: bool) -> None:
        """Parts in chunked framing; with the last chunk too when `last`."""

    def flush(self) -> None:
        """Send the head if it is still here."""

    def end(self) -> None:
        """Its end."""

    def feed_from(self, source: Connection | None) -> None:
        """Whose reading to pause while the client is slow."""

    def close(self) -> None:
        """End the connection once what was written is sent."""


class Serving(Protocol):
    """A request on its way."""

    def leave(self) -> None:
        """Its client is gone."""


class Handler(Protocol):
    """What serves requests."""

    draining: bool
    max_body_bytes: int
    max_header_bytes: int
    heads: RequestHeads
    outbox: Outbox

    def handle(self, head: RequestHead, body: bytes, client: ClientConnection) -> Serving | None:
        """Answer now, or return what will."""

    def opened(self, client: ClientConnection) -> None:
        """A connection came."""

    def closed(self, client: ClientConnection) -> None:
        """It ended."""


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_body", "_body_bytes", "_chunked", "_current", "_ends", "_expects", "_fresh", "_handler", "_head", "_head_bytes", "_head_out",
        "_headers", "_heads", "_in_head", "_key", "_loop", "_need", "_parser", "_paused", "_refusal", "_serving", "_slow", "_source",
        "_transport", "_url", "_waiting", "peer", "since_s",
    )  # fmt: skip

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._heads = handler.heads
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpRequestParser | None = None  # made for the first head that is not known
        self._waiting: deque[tuple[RequestHead, bytes]] = deque()
        self._current: RequestHead | None = None
        self._serving: Serving | None = None
        self._source: Connection | None = None
        self._slow = False
        self._refusal: bytes | None = None  # the last answer of this connection, to be sent in its turn
        self._fresh = True  # the parser is between two requests
        self._key = b""  # of a head that is new to the store
        self._head: RequestHead | None = None  # whose body is being read by hand: `_need` bytes are missing
        self._need = 0
        self._url = b""
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._in_head = True
        self._body_bytes = 0
        self._expects = False
        self._head_out = b""  # of an answer that has begun, until its first part
        self._chunked = False
        self._ends = False  # with the answer that has begun
        self._paused = False
        self.since_s = self._loop.time()

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = self._transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self._handler.opened(self)

    def data_received(self, data: bytes) -> None:
        while data and self._fresh and self._refusal is None:
            head = self._head
            if head is None:
                head = self._heads.find(data)
                if head is None or self._heads.length > self._handler.max_body_bytes:
                    break
                start, need = self._heads.start, self._heads.length
            else:
                start, need = 0, self._need
            stop = start + need
            size = len(data)
            if size < stop:
                if self._head is None:
                    self.since_s = self._loop.time()
                self._head, self._need = head, stop - size
                self._body.append(data[start:])
                return
            body = data[start:stop]
            if self._body:
                self._body.append(body)
                body = b"".join(self._body)
                self._body = []
            self._head = None
            data = b"" if size == stop else data[stop:]
            if self._current is None and not self._waiting and not data:
                self._serve(head, body)
            else:
                self._queue(head, body)
        if data:
            self._parse(data)
        elif self._waiting:
            self._next()

    def _parse(self, data: bytes) -> None:
        if self._refusal is not None or self._transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        if self._fresh:
            self._key = self._heads.key
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
            if self._parser is None:
                self._parser = httptools.HttpRequestParser(self)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(self._parser) + data[upgrade.args[0] :]
            else:
                return

    def _without_upgrade(self, parser: httptools.HttpRequestParser) -> bytes:
        """An offer to speak another protocol may be ignored: the head again without it, for a parser that then reads the body too."""
        head = b"%b %b HTTP/1.1\r\n" % (parser.get_method(), self._url)
        lines = [b"%b: %b\r\n" % header for header in self._headers if header[0] not in _UPGRADE]
        self._parser, self._key = None, b""
        return head + b"".join(lines) + b"\r\n"

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.clear()
        self._current = None
        serving, self._serving = self._serving, None
        self._source = None
        self._parser = None  # it refers to us: without this only the collector of cycles would end it
        self._body = []
        if serving is not None:
            serving.leave()
        self._handler.closed(self)

    def pause_writing(self) -> None:
        self._slow = True
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        self._slow = False
        if self._source is not None:
            self._source.resume()

    def turn_away(self) -> None:
        """There are too many connections."""
        self._refuse(503, "the router has as many connections as it may have", "too_many_connections")
        self._next()

    # -- httptools callbacks --

    def on_message_begin(self) -> None:
        self._fresh = False
        self.since_s = self._loop.time()  # a request has as long to arrive as a connection may be idle
        self._url = b""
        self._headers = []
        self._body = []
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
        parser = self._parser
        self._in_head, self._expects, self._fresh = True, False, True
        if self._refusal is not None or parser is None or parser.should_upgrade():
            return
        head = RequestHead(
            parser.get_method(),
            self._url,
            self._headers,
            keep_alive=parser.should_keep_alive(),
            http11=parser.get_http_version() == "1.1",
        )
        key, self._key = self._key, b""
        if key:
            self._heads.keep(key, head)
        body, self._body = self._body, []
        self._queue(head, body[0] if len(body) == 1 else b"".join(body))

    # -- turns --

    @property
    def idle(self) -> bool:
        """Nothing asked that is not answered."""
        return self._current is None and not self._waiting

    def close(self) -> None:
        """End the connection once what was written is sent."""
        self._handler.outbox.flush()
        self._transport.close()

    def _queue(self, head: RequestHead, body: bytes) -> None:
        self._waiting.append((head, body))
        if len(self._waiting) >= PIPELINE_MAX and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _serve(self, head: RequestHead, body: bytes) -> None:
        self._current = head
        serving = self._handler.handle(head, body, self)
        if self._current is head:  # not answered yet
            self._serving = serving

    def _next(self) -> None:
        while self._current is None and self._waiting:
            head, body = self._waiting.popleft()
            if self._paused and len(self._waiting) < PIPELINE_MAX // 2:
                self._paused = False
                self._transport.resume_reading()
            self._serve(head, body)
        if self._current is None and self._refusal is not None and not self._transport.is_closing():
            self._handler.outbox.flush()
            self._transport.write(self._refusal)
            self._transport.close()
        elif self._current is None and self._expects:
            self._continue()

    def _continue(self) -> None:
        """Tell a client that waits with its body to send it, once all before it is answered."""
        if self._current is None and not self._waiting and self._refusal is None:
            self._expects = False
            self._handler.outbox.flush()
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _too_long(self) -> None:
        self._refuse(413, f"the request body is longer than {self._handler.max_body_bytes} bytes", "body_too_long")

    def _refuse(self, status: int, message: str, code: str) -> None:
        if self._refusal is None:
            body = error_body(message, kind="invalid_request_error", code=code)
            self._refusal = _head(status, _JSON) + b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)

    def _done(self) -> None:
        head = self._current
        self._current = self._serving = self._source = None
        self.since_s = self._loop.time()
        if head is None or not head.keep_alive or self._ends or self._handler.draining:
            self.close()
        elif self._waiting or self._refusal is not None or self._expects:
            self._loop.call_soon(self._next)

    # -- Client --

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """A whole answer; drops silently what the client no longer wants."""
        self.answer(_head(status, headers), body)

    def answer(self, head: bytes, body: bytes) -> None:
        """A whole answer; drops silently what the client no longer wants."""
        request = self._current
        if request is None or self._transport.is_closing():
            return
        line = self._connection_line(request)
        if request.method == b"HEAD":
            data = b"%bcontent-length: %d\r\n%b\r\n" % (head, len(body), line)
        else:
            data = b"%bcontent-length: %d\r\n%b\r\n%b" % (head, len(body), line, body)
        self._handler.outbox.put(self._transport, data)
        self._done()

    def begin(self, head: bytes) -> None:
        """Start an answer of unknown length: in chunks, or to the end of the connection for HTTP/1.0."""
        request = self._current
        if request is None:
            return
        self._chunked = request.http11
        if self._chunked:
            self._head_out = b"%btransfer-encoding: chunked\r\n%b\r\n" % (head, self._connection_line(request))
        else:
            self._ends = True
            self._head_out = head + b"connection: close\r\n\r\n"

    def write(self, data: bytes) -> None:
        """A part of the answer; goes out at once."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._out(data)

    def pass_on(self, data: bytes, *, last: bool) -> None:
        """Parts in an engine's own chunks, as they are."""
        if self._chunked and not self._head_out and not last and self._current is not None:
            self._transport.write(data)
            return
        if not self._chunked:
            data = content_of(data)
        self._out(data)
        if last and self._current is not None:
            self._done()

    def flush(self) -> None:
        """Send the head if it waits still for its first part."""
        if self._head_out:
            self._out(b"")

    def _out(self, data: bytes) -> None:
        if self._current is None or self._transport.is_closing():
            return
        if self._head_out:
            self._handler.outbox.flush()
            data = self._head_out + data
            self._head_out = b""
        self._transport.write(data)

    def end(self) -> None:
        """The answer is whole."""
        if self._current is None:
            return
        self._out(b"0\r\n\r\n" if self._chunked else b"")
        self._done()

    def feed_from(self, source: Connection | None) -> None:
        """Whose reading to pause while this client is slow."""
        self._source = source
        if source is not None and self._slow:
            source.pause()

    def _connection_line(self, request: RequestHead) -> bytes:
        if not request.keep_alive or self._handler.draining:
            return b"connection: close\r\n"
        return b"" if request.http11 else b"connection: keep-alive\r\n"


def _head(status: int, headers: Headers) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b" % (status, REASONS.get(status, b"Status"), b"".join([b"%b: %b\r\n" % header for header in headers]))
