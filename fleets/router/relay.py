"""Sinks that hand an engine's answer on to the client: a stream event by event, or an answer in one piece.

On a stream most reads are passed on after a few byte searches. Only what may be the first or the last chunk (an empty text, an
empty delta, usage, an error, [DONE], KV parameters) is parsed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from fleets.router import openai
from fleets.router.client import Client
from fleets.router.telemetry import Trace, now
from fleets.router.upstream import Connection, Headers

_DONE = b"data: [DONE]"
# An engine's own framing, its name, and where it is, are no business of the client.
_HIDDEN = frozenset(
    {b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"server", b"date", b"location", b"via", b"trailer", b"upgrade"}
)


def shown(headers: Headers) -> Headers:
    """An engine's response headers that a client may see."""
    return [header for header in headers if header[0] not in _HIDDEN]


class Relay:
    """Takes the answer of the leg that answers. A status other than 200 is collected, and left to the caller."""

    __slots__ = (
        "_ask",
        "_client",
        "_connection",
        "_headers",
        "_parts",
        "_request_id",
        "_rest",
        "_separator",
        "_trace",
        "began",
        "done",
        "failure",
        "seen",
        "status",
        "streaming",
    )

    def __init__(self, client: Client, ask: openai.Ask, trace: Trace, request_id: bytes) -> None:
        self.began: asyncio.Future[None] | None = None  # ends at the first byte of the body, for one who waits for it
        self._request_id = request_id
        self._client = client
        self._ask = ask
        self._trace = trace
        self._connection: Connection | None = None
        self._headers: Headers = []
        self._parts: list[bytes] = []
        self._rest = b""
        self._separator = b"\n\n"
        self.status = 0
        self.seen = False  # a byte of the body came
        self.streaming = False  # the client has had its head: nothing can be tried again
        self.done = False  # [DONE] was there
        self.failure = ""  # what the engine said was wrong, in the middle of a stream

    def attach(self, connection: Connection) -> None:
        self._connection = connection

    def head(self, status: int, headers: Headers) -> None:
        self.status, self._headers = status, headers
        self._trace.head_s = now()
        if status == 200 and any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers):
            self.streaming = True
            self._client.feed_from(self._connection)
            self._client.begin(status, self.headers)

    def body(self, data: bytes) -> None:
        if not self.seen:
            self.seen = True
            if self.began is not None and not self.began.done():
                self.began.set_result(None)
        if not self.streaming:
            self._parts.append(data)
            return
        if self._rest or not data.endswith(b"\n\n"):
            data = self._whole_events(data)
            if not data:
                return
        if (
            b'""' in data
            or b'"usage":{' in data
            or b"{}" in data
            or b"[DONE]" in data
            or b'"error"' in data
            or b'"usage": {' in data
            or b'"kv_transfer_params":' in data
        ):
            data, events = self._inspected(data)
            if not data:
                return
        else:
            events = data.count(b"\n\n") or 1
        at_s = now()
        self._client.write(data)
        if events:
            self._trace.token(at_s, events)

    @property
    def content(self) -> bytes:
        """The collected body of an answer that is no stream."""
        return b"".join(self._parts)

    @property
    def headers(self) -> Headers:
        """What the client may see of the engine's headers."""
        headers = shown(self._headers)
        if not any(name == b"x-request-id" for name, _ in headers):
            headers.append((b"x-request-id", self._request_id))
        return headers

    def finish_stream(self) -> None:
        """The engine's answer is whole: send what has no blank line after it."""
        if self._rest.strip():
            data, _ = self._inspected(self._rest + self._separator)
            if data:
                self._client.write(data)

    def _whole_events(self, data: bytes) -> bytes:
        """All events that are complete; the beginning of the next is kept until the rest of it comes."""
        data = self._rest + data
        end = data.rfind(b"\n\n")
        if end < 0 and b"\r\n\r\n" in data:
            data = data.replace(b"\r\n", b"\n")
            end = data.rfind(b"\n\n")
        self._rest = data[end + 2 :] if end >= 0 else data
        return data[: end + 2] if end >= 0 else b""

    def _inspected(self, data: bytes) -> tuple[bytes, int]:
        """What of these events goes to the client, and how many of them have content."""
        kept: list[bytes] = []
        contents = 0
        for event in data.split(b"\n\n"):
            if not event:
                continue
            if event == _DONE:
                self.done = True
            elif event.startswith(b"data:"):
                chunk = openai.json_object(event[5:])
                if chunk is not None:
                    shown_event = self._chunk(event, chunk)
                    if shown_event is None:
                        continue
                    event = shown_event
                    contents += has_content(chunk)
            kept.append(event + b"\n\n")
        return b"".join(kept), contents

    def _chunk(self, event: bytes, chunk: dict[str, Any]) -> bytes | None:
        """The event as the client gets it; None when it is only for us."""
        usage = openai.usage_of(chunk)
        if usage is not None:
            self._trace.usage = usage
            if not chunk.get("choices") and not self._ask.wants_usage:
                return None
        problem = failure_of(chunk)
        if problem:
            self.failure = self.failure or problem
            if "error" in chunk:
                clean = openai.error_body(problem, kind="server_error", code="engine_error")
                return b"data: " + clean
        if chunk.get("kv_transfer_params"):
            return b"data: " + orjson.dumps({**chunk, "kv_transfer_params": None})
        return event


def has_content(chunk: dict[str, Any]) -> bool:
    """Whether a chunk carries text (or a tool call, or reasoning) and not only a role, an end or usage."""
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta")
        if choice.get("text") or (isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")):
            return True
    return False


def failure_of(answer: dict[str, Any]) -> str:
    """The engine's own failure in a chunk or an answer with status 200; empty when there is none."""
    error = answer.get("error")
    if error:
        message = error.get("message") if isinstance(error, dict) else error
        return openai.without_addresses(str(message or "the engine failed"))
    if any(choice.get("finish_reason") == "error" for choice in answer.get("choices") or ()):
        return "the engine ended the request with an error"
    return ""


def whole_answer(body: bytes, trace: Trace) -> tuple[bytes, str]:
    """An answer in one piece as the client gets it, and the engine's failure in it; its usage is kept."""
    answer = openai.json_object(body)
    if answer is None:
        return body, ""
    trace.usage = openai.usage_of(answer)
    if answer.get("kv_transfer_params"):
        body = orjson.dumps({**answer, "kv_transfer_params": None})
    return body, failure_of(answer)
