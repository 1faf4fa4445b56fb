"""Just enough HTTP/1.1 on a bare asyncio protocol: one request at a time per connection, keep-alive, chunked replies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote

import httptools

MAX_BODY_BYTES = 64 * 2**20
_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed", 413: b"Content Too Large"}
_REASONS |= {500: b"Internal Server Error", 503: b"Service Unavailable"}
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(slots=True)
class Request:
    """One request, its body complete. Header names are lower-case."""

    method: str = ""
    path: str = ""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True

    def header(self, name: bytes) -> str:
        """A header's text, or nothing."""
        return self.headers.get(name, b"").decode("latin-1")


class Reply:
    """The way back to one request's client. `on_gone` runs when the client leaves before the reply is complete."""

    __slots__ = ("_connection", "done", "on_gone", "started", "write")

    def __init__(self, connection: Connection, write: Callable[[bytes], None]) -> None:
        self._connection = connection
        self.write = write  # raw: for chunks that are framed already
        self.on_gone: Callable[[], None] | None = None
        self.started = False
        self.done = False

    def send(self, status: int, body: bytes, content_type: bytes = b"application/json", *, allow: bytes = b"") -> None:
        """A whole reply at once; `allow` names the method that would do."""
        if self.done:
            return
        head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            status,
            _REASONS.get(status, b"Error"),
            content_type,
            len(body),
            b"allow: %b\r\n" % allow if allow else b"",
        )
        self.write(head + body)
        self.finish()

    def start_stream(self) -> None:
        """Send the head of a server-sent event stream."""
        if not self.started and not self.done:
            self.started = True
            self.write(_STREAM_HEAD)

    def end_stream(self, last: bytes = b"") -> None:
        """Framed chunks that are left, then the end."""
        if not self.done:
            self.write(last + LAST_CHUNK)
            self.finish()

    def finish(self) -> None:
        """The reply is complete; the connection may go on."""
        self.done = True
        self.on_gone = None
        self._connection.reply_finished()


def framed(data: bytes) -> bytes:
    """One chunk of a chunked reply."""
    return b"%x\r\n%b\r\n" % (len(data), data)


Handler = Callable[[Request, Reply], None]


class Connection(asyncio.Protocol):
    """One client connection. Requests that come early wait their turn."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._request = Request()
        self._early: deque[Request] = deque()
        self._reply: Reply | None = None
        self._keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._parser = None  # the parser refers back to this: without the cycle, bodies go at once
        self._early.clear()
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done:
            reply.done = True
            gone, reply.on_gone = reply.on_gone, None
            if gone is not None:
                gone()

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, b"no upgrades here")
        except httptools.HttpParserError:
            self._refuse(400, b"this is not HTTP/1.1")

    # ---- httptools' callbacks ----

    def on_message_begin(self) -> None:
        self._request = Request()

    def on_url(self, url: bytes) -> None:
        self._request.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._request.method = self._parser.get_method().decode()
        self._request.keep_alive = self._parser.should_keep_alive()
        if self._request.headers.get(b"expect", b"").lower() == b"100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if len(self._request.body) + len(body) > MAX_BODY_BYTES:
            self._refuse(413, b"the body is too large")
            return
        self._request.body += body

    def on_message_complete(self) -> None:
        request, self._request = self._request, Request()
        request.path = unquote(request.path.partition("?")[0])
        if self._reply is not None:
            self._early.append(request)
        else:
            self._begin(request)

    # ---- replies ----

    def reply_finished(self) -> None:
        """Close, or take up the request that waits."""
        self._reply = None
        if not self._keep_alive and self._transport is not None:
            self._transport.close()
        elif self._early:
            self._begin(self._early.popleft())

    def _begin(self, request: Request) -> None:
        self._keep_alive = request.keep_alive
        self._reply = Reply(self, self._write)
        self._handler(request, self._reply)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _refuse(self, status: int, why: bytes) -> None:
        if self._transport is not None:
            self._write(b"HTTP/1.1 %d %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status, _REASONS[status], len(why), why))
            self._transport.close()
