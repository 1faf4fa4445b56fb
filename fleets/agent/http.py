"""A small HTTP/1.1 client: keep-alive, one event loop, nothing else.

An agent for 58 nodes makes some 25 small requests a second for ever; this costs a tenth of what a full client does.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from denvweb.core.errors import UnavailableError

_IDLE_MAX_S = 4.0  # under the 5 s after which uvicorn closes an idle connection
_BODY_MAX_BYTES = 64 * 2**20


@dataclass(slots=True)
class Response:
    """An answer that was read to its end."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False
    keep_alive: bool = False
    parser: httptools.HttpResponseParser | None = None

    # Callbacks of httptools.

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self.body += data

    def on_message_complete(self) -> None:
        """The end; the parser forgets whether to keep the connection once this returns."""
        assert self.parser is not None
        self.complete = True
        self.keep_alive = self.parser.should_keep_alive()
        self.status = self.parser.get_status_code()


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a request goes."""

    host: str
    port: int
    tls: bool


class HttpClient:
    """Requests with a pool of connections per host and port. UnavailableError is the only thing that it raises."""

    def __init__(self) -> None:
        self._idle: dict[_Target, list[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    async def request(
        self, method: str, url: str, *, body: bytes = b"", headers: tuple[tuple[str, str], ...] = (), timeout_s: float = 5.0
    ) -> Response:
        """One request and its whole answer. A pooled connection that turns out closed is replaced once by a fresh one."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        target = _Target(parts.hostname or "", parts.port or (443 if tls else 80), tls)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        message = _message(method, path, parts.netloc.rpartition("@")[2], headers, body)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(target, message)
        except TimeoutError as error:
            raise UnavailableError(f"{parts.netloc} did not answer within {timeout_s:g} s") from error
        except (OSError, EOFError, httptools.HttpParserError) as error:
            raise UnavailableError(f"{parts.netloc}: {error or 'the connection was closed'}") from error

    async def _exchange(self, target: _Target, message: bytes) -> Response:
        connection = self._take(target)
        if connection is not None:
            try:
                return await self._send(target, connection, message)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # the server closed it while it was idle
        return await self._send(target, await self._connect(target), message)

    async def _send(self, target: _Target, connection: _Connection, message: bytes) -> Response:
        response = Response()
        response.parser = parser = httptools.HttpResponseParser(response)
        try:
            connection.writer.write(message)
            while not response.complete:
                data = await connection.reader.read(65536)
                if not data:
                    raise asyncio.IncompleteReadError(bytes(response.body), None)
                parser.feed_data(data)
                if len(response.body) > _BODY_MAX_BYTES:
                    raise OSError(f"an answer of over {_BODY_MAX_BYTES} bytes")
        except BaseException:
            connection.writer.close()  # in an unknown state, also when cancelled
            raise
        response.parser = None  # it refers back to the response: a cycle per request would wait for the collector
        if response.keep_alive:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.setdefault(target, []).append(connection)
        else:
            connection.writer.close()
        return response

    async def _connect(self, target: _Target) -> _Connection:
        if target.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=self._tls if target.tls else None)
        return _Connection(reader, writer)

    def _take(self, target: _Target) -> _Connection | None:
        pool = self._idle.get(target, [])
        oldest_s = asyncio.get_running_loop().time() - _IDLE_MAX_S
        while pool:
            connection = pool.pop()
            if connection.idle_since_s >= oldest_s and not connection.reader.at_eof():
                return connection
            connection.writer.close()
        return None

    def sweep(self) -> None:
        """Close connections that idled too long, to engines that are gone for instance."""
        oldest_s = asyncio.get_running_loop().time() - _IDLE_MAX_S
        for target, pool in list(self._idle.items()):
            for connection in pool:
                if connection.idle_since_s < oldest_s:
                    connection.writer.close()
            self._idle[target] = [connection for connection in pool if connection.idle_since_s >= oldest_s]
            if not self._idle[target]:
                del self._idle[target]

    def close(self) -> None:
        """Close every idle connection."""
        for pool in self._idle.values():
            for connection in pool:
                connection.writer.close()
        self._idle.clear()


def _message(method: str, path: str, host: str, headers: tuple[tuple[str, str], ...], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body or method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
