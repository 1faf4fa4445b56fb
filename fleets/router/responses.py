"""Streams of `/v1/responses`: events with names, of which the last says how it ended and what was used. There is no `[DONE]`."""

from __future__ import annotations

from typing import Any

import orjson

from fleets.router import openai
from fleets.router.chunks import content_of
from fleets.router.relay import Relay
from fleets.router.telemetry import now

_DELTA = b".delta\n"  # the end of an `event:` line
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})


class ResponsesRelay(Relay):
    """Takes such a stream, and writes it to the client."""

    __slots__ = ()

    def text(self, data: bytes) -> int:
        """Events carry numbers, so no two are alike."""
        return 0

    def events(self, data: bytes, framed: int) -> None:
        if framed > 0 and not self._rest and not _may_be_last(data):
            self.seen = True
            self._client.pass_on(data, last=False)
            if deltas := data.count(_DELTA):
                self._trace.token(now(), deltas)
            return
        self._content(content_of(data) if framed else data, now())

    def _inspected(self, data: bytes) -> tuple[bytes, int]:
        """What of these events goes to the client, and how many of them have content."""
        kept = [self._last(event) if _may_be_last(event) else event for event in data.split(b"\n\n") if event]
        return b"".join([b"%b\n\n" % event for event in kept]), data.count(_DELTA)

    def _last(self, event: bytes) -> bytes:
        """The event as the client gets it, if it is the last one; its usage and failure are kept."""
        head, mark, text = event.partition(b"data:")
        chunk = openai.json_object(text) if mark else None
        if chunk is None or chunk.get("type") not in _LAST:
            return event
        self.done = True
        response = chunk.get("response")
        usage = openai.usage_of(response) if isinstance(response, dict) else None
        if usage is not None:
            self._trace.usage = usage
        if chunk["type"] in ("error", "response.failed"):
            self.failure = _without_addresses(chunk)
            return b"%bdata: %b" % (head, orjson.dumps(chunk))
        return event


def _may_be_last(data: bytes) -> bool:
    return b'response.completed"' in data or b'"error"' in data or b'response.incomplete"' in data or b'response.failed"' in data


def _without_addresses(chunk: dict[str, Any]) -> str:
    """The failure that an event tells; what the client is not to know is taken out of it."""
    response = chunk.get("response")
    told = response.get("error") if isinstance(response, dict) else chunk.get("error") or chunk
    if not isinstance(told, dict):
        return "the engine failed"
    told["message"] = message = openai.without_addresses(str(told.get("message") or "the engine failed"))
    return message
