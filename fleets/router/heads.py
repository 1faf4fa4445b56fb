"""Heads of requests and answers, each parsed once: the same bytes come again and again on a kept connection.

What differs from one message to the next is the digits of `content-length`, so they are cut out of the key. A request's head gets
into the store only after the real parser accepted it and its lines agree with what the parser saw; an answer's head is parsed
here, strictly. Both stores are bounded, and start over when they are full.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleets.router.callers import Caller

Headers = list[tuple[bytes, bytes]]

KNOWN_MAX = 512  # heads in a store
KEY_MAX_BYTES = 4096  # longer ones are not kept
LENGTH_DIGITS_MAX = 12
ANSWER_HEAD_MAX_BYTES = 64 << 10

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
# These differ in every request, and would push out of the store what does not.
_EVER_NEW = frozenset({b"x-request-id", b"traceparent", b"idempotency-key", b"content-md5"})
_LENGTH_NAMES = (b"\r\ncontent-length: ", b"\r\nContent-Length: ")
_LENGTH_NAME_BYTES = len(_LENGTH_NAMES[0])
# The router's own on the way to an engine, and those of one connection only.
_NOT_FORWARDED = frozenset(
    {
        b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"expect", b"accept-encoding",
        b"x-request-id", b"traceparent", b"upgrade", b"te", b"trailer", b"proxy-connection", b"proxy-authorization", b"http2-settings",
    }
)  # fmt: skip
# An engine's own framing, its name, and where it is, are no business of the client.
_HIDDEN = frozenset(
    {b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"server", b"date", b"location", b"via", b"trailer", b"upgrade"}
)
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n\x00]*)?\Z")


class HeadError(Exception):
    """A head that is not HTTP/1.1."""


class RequestHead:
    """What a request's head says. Shared by all requests that sent the same bytes, so never changed; header names are lower case."""

    __slots__ = (
        "caller", "forwarded", "headers", "http11", "keep_alive", "length", "method", "path", "prefixes", "request_id", "session", "target",
        "traceparent",
    )  # fmt: skip

    def __init__(
        self, method: bytes, target: bytes, headers: Headers, *, keep_alive: bool = True, http11: bool = True, length: int = 0
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.keep_alive = keep_alive
        self.http11 = http11
        self.length = length  # of the body; for a head that is kept in the store, only where the key holds the digits
        self.path = target.partition(b"?")[0].decode("latin-1")
        self.request_id = self.header(b"x-request-id")
        self.traceparent = self.header(b"traceparent")
        self.caller: Caller | None = None  # whose API key it carries, once that was looked up
        self.forwarded = self.lines()
        self.prefixes: dict[tuple[str, int], bytes] = {}  # the head of the leg to an engine, up to the request's id
        self.session: tuple[bytes, float | None] | None = None  # the session header looked for, and its hash

    def lines(self, *, without: bytes = b"") -> bytes:
        """The headers that go on to an engine, each with its CRLF."""
        left_out = _NOT_FORWARDED | _named(self.header(b"connection")) | {without}
        return b"".join([b"%b: %b\r\n" % pair for pair in self.headers if pair[0] not in left_out])

    def header(self, name: bytes) -> bytes:
        """The first value of a header; empty when absent."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""


def _named(connection: bytes) -> frozenset[bytes]:
    """Headers that a `connection` header names: they are for the next hop alone."""
    return frozenset(name.strip().lower() for name in connection.split(b",")) if connection else frozenset()


class RequestHeads:
    """Heads of requests that were accepted before. After `find`, `start` and `length` say where the body is."""

    __slots__ = ("_known", "key", "length", "start")

    def __init__(self) -> None:
        self._known: dict[bytes, RequestHead] = {}
        self.key = b""  # of the head that was looked for last
        self.start = 0
        self.length = 0

    def forget(self) -> None:
        """Look at every head anew, and at what was found out from it."""
        self._known.clear()

    def find(self, data: bytes) -> RequestHead | None:
        """The known head that `data` begins with; None when it is new, or not whole."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self.key = b""
            return None
        at = data.find(b"\r\ncontent-length: ", 0, end)
        if at < 0:
            at = data.find(b"\r\nContent-Length: ", 0, end)
        if at < 0:
            self.key = key = data[:end]
            head = self._known.get(key)
            if head is not None:
                self.start, self.length = end + 4, head.length
            return head
        at += _LENGTH_NAME_BYTES
        stop = data.find(b"\r", at)
        digits = data[at:stop]
        self.key = key = data[:at] + data[stop:end]
        head = self._known.get(key)
        if head is None or not digits.isdigit() or len(digits) > LENGTH_DIGITS_MAX:
            return None
        self.start, self.length = end + 4, int(digits)
        return head

    def keep(self, key: bytes, head: RequestHead) -> None:
        """Remember a head that the parser accepted under `key`, if its bytes can mean nothing else."""
        lengths = 0
        for name, value in head.headers:
            if name in _EVER_NEW or name in (b"transfer-encoding", b"expect", b"upgrade"):
                return
            if name == b"content-length":
                lengths += 1
                head.length = int(value) if value.isdigit() and len(value) <= LENGTH_DIGITS_MAX else 0
        if len(key) > KEY_MAX_BYTES or lengths > 1 or not head.http11 or not head.keep_alive:
            return
        lines = key.count(b"\r\n")
        if lines != len(head.headers) or lines != key.count(b"\n") or lines != key.count(b"\r") or b"\r\n " in key or b"\r\n\t" in key:
            return
        if not key.startswith(b"%b %b HTTP/1.1\r\n" % (head.method, head.target)):
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[key] = head


class AnswerHead:
    """What the head of an engine's answer says, and the beginning of what the client gets of it."""

    __slots__ = ("chunked", "headers", "keep", "length", "needs_id", "shown", "status", "stream")

    def __init__(self, status: int, headers: Headers, *, chunked: bool, length: int | None, keep: bool) -> None:
        self.status = status
        self.headers = headers
        self.chunked = chunked
        self.length = length  # of the body; None: it is chunked, or lasts as long as the connection, or the key holds no digits
        self.keep = keep
        self.stream = status == 200 and any(key == b"content-type" and value.startswith(b"text/event-stream") for key, value in headers)
        shown = [b"%b: %b\r\n" % pair for pair in headers if pair[0] not in _HIDDEN]
        self.needs_id = not any(key == b"x-request-id" for key, _ in headers)
        self.shown = b"HTTP/1.1 %d %b\r\n%b" % (status, REASONS.get(status, b"Status"), b"".join(shown))

    def kept(self, names: frozenset[bytes]) -> Headers:
        """The headers with these names."""
        return [pair for pair in self.headers if pair[0] in names]


class AnswerHeads:
    """Heads of answers. After `find`, `start` says where the body begins and `length` how long it is, if it is known."""

    __slots__ = ("_known", "length", "start")

    def __init__(self) -> None:
        self._known: dict[bytes, AnswerHead] = {}
        self.start = 0
        self.length: int | None = None

    def find(self, data: bytes) -> AnswerHead | None:
        """The head that `data` begins with; None when it is not whole. Raises HeadError."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > ANSWER_HEAD_MAX_BYTES:
                raise HeadError("the head of the answer does not end")
            return None
        self.start = end + 4
        at = data.find(b"\r\ncontent-length: ", 0, end)
        if at < 0:
            key = data[:end]
            head = self._known.get(key)
            if head is None:
                head = self._new(data[:end], key)
            self.length = head.length
            return head
        at += _LENGTH_NAME_BYTES
        stop = data.find(b"\r", at)
        digits = data[at:stop]
        if not digits.isdigit() or len(digits) > LENGTH_DIGITS_MAX:
            raise HeadError("the length of the answer is not a number")
        key = data[:at] + data[stop:end]
        head = self._known.get(key)
        if head is None:
            head = self._new(data[:end], key)
        self.length = None if head.chunked else 0 if _bodiless(head.status) else int(digits)
        return head

    def _new(self, text: bytes, key: bytes) -> AnswerHead:
        head = parse_answer(text)
        if len(key) <= KEY_MAX_BYTES and head.status >= 200 and head.needs_id:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = head
        return head


def _bodiless(status: int) -> bool:
    return status in (204, 304) or status < 200


def parse_answer(text: bytes) -> AnswerHead:
    """Parse the head of an answer, without its blank line. Raises HeadError."""
    first, *lines = text.split(b"\r\n")
    found = _STATUS_LINE.match(first)
    if found is None:
        raise HeadError("the answer has no HTTP status line")
    status = int(found[2])
    headers = [_header(line) for line in lines]
    lengths = {value for name, value in headers if name == b"content-length"}
    if len(lengths) > 1 or any(not value.isdigit() or len(value) > LENGTH_DIGITS_MAX for value in lengths):
        raise HeadError("the answer has no single length")
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and codings != [b"chunked"]:
        raise HeadError("the answer has a transfer coding that is not known")
    connection = _named(b",".join(value for name, value in headers if name == b"connection"))
    bodiless = _bodiless(status)
    chunked = bool(codings) and not bodiless
    length = 0 if bodiless else None if chunked or not lengths else int(next(iter(lengths)))
    framed = chunked or length is not None
    keep = framed and found[1] == b"1" and b"close" not in connection and not (codings and lengths)
    return AnswerHead(status, headers, chunked=chunked, length=length, keep=keep)


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or _TOKEN.match(name) is None or b"\n" in value or b"\r" in value or b"\x00" in value:
        raise HeadError("the answer has a header line that is none")
    return name.lower(), value.strip(b" \t")
