"""An engine's answer on its way to the client: a stream event by event, or an answer in one piece.

On a stream most reads are passed on as they came, after a few byte searches. Only what may be the first or the last chunk (an empty
text, an empty delta, usage, an error, [DONE], KV parameters) is parsed.
"""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from fleets.router import openai
from fleets.router.chunks import content_of, template_of, text_chunks
from fleets.router.client import Client
from fleets.router.heads import AnswerHead
from fleets.router.taker import Leg, LegError, Taker
from fleets.router.telemetry import FLUSH_GAPS, Trace, now
from fleets.router.upstream import Connection

_DONE = b"data: [DONE]"
_DONE_CHUNK = b"e\r\ndata: [DONE]\n\n\r\n"
_LAST_CHUNKS = _DONE_CHUNK + b"0\r\n\r\n"
_DONE_ENDS = (_DONE_CHUNK, _LAST_CHUNKS)
TEMPLATES_MAX = 4  # tries to find what is the same in all chunks of a stream


class Owner(Protocol):
    """Whose stream it is."""

    def stream_ended(self) -> None:
        """All of it came."""

    def failed(self, error: LegError) -> None:
        """The engine ended it in the middle."""

    def broken(self) -> None:
        """The router itself failed."""


class Relay:
    """Takes the stream of the leg that answers, and writes it to the client."""

    __slots__ = (
        "_after", "_before", "_client", "_owner", "_rest", "_separator", "_templates", "_trace", "_wants_usage", "done", "failure",
        "finished", "leg", "seen",
    )  # fmt: skip

    def __init__(self, client: Client, trace: Trace, owner: Owner, *, wants_usage: bool) -> None:
        self._client = client
        self._trace = trace
        self._owner = owner
        self._wants_usage = wants_usage
        self._rest = b""
        self._separator = b"\n\n"
        self._before = self._after = b""  # what was around the text of a chunk that was looked at in full
        self._templates = 0
        self.leg: Leg | None = None
        self.seen = False  # a byte of the body came
        self.done = False  # [DONE] was there
        self.finished = False  # the client has the end of it too
        self.failure = ""  # what the engine said was wrong, in the middle of a stream

    def text(self, data: bytes) -> int:
        """A read of whole chunks is passed on if it differs in its texts alone from what was looked at in full before.

        1: done; -1: done, and it was the end; 0: it has to be looked at.
        """
        if not self._before and (self._templates >= TEMPLATES_MAX or self._rest or not self._learn(data)):
            return 0
        count, end = text_chunks(data, self._before, self._after)
        if count and end == len(data):
            trace, at_s = self._trace, now()
            self._client.pass_on(data, last=False)
            gaps = trace.gaps
            if gaps is None or len(gaps) >= FLUSH_GAPS:
                trace.token(at_s, count)
            else:  # as there, without the call
                gaps.append(at_s - trace.last_s)
                trace.last_s = at_s
                trace.tokens += count
            return 1
        if count and not self.failure and data[end:] == _LAST_CHUNKS:
            at_s = now()
            self.done = self.finished = True
            self._trace.token(at_s, count)
            self._client.pass_on(data, last=True)
            return -1
        if not count:
            self._before = b""
        return 0

    def _learn(self, data: bytes) -> bool:
        """Take the first chunk as the model of the others, if it can be nothing but a text."""
        self._templates += 1
        template = template_of(data)
        if template is None or not is_text(b"x".join(template)) or b"[DONE]" in template[1]:
            return False
        self._before, self._after = template
        self.seen = True
        return True

    def events(self, data: bytes, framed: int) -> None:
        at_s = now()
        if framed and not self._rest:
            self.seen = True
            if is_text(data):
                events = data.count(b"\n\n")
                if b"[DONE]" not in data:
                    if framed > 0:
                        self._client.pass_on(data, last=False)
                        self._trace.token(at_s, events)
                        return
                elif data.endswith(_DONE_ENDS) and data.count(b"[DONE]") == 1:
                    self.done = True
                    self.finished = framed < 0 and not self.failure
                    if events > 1:
                        self._trace.token(at_s, events - 1)
                    self._pass_end(data)
                    return
            data = content_of(data)
        self._content(data, at_s)

    def _pass_end(self, data: bytes) -> None:
        """Pass on the end of a stream as it came; the last chunk with it when nothing is to be said any more."""
        if self.finished:
            self._client.pass_on(data, last=True)
        else:
            self._client.write(content_of(data))

    def _content(self, data: bytes, at_s: float) -> None:
        """A read that is not whole events, or holds more than text."""
        if not data:
            self._client.flush()
            return
        self.seen = True
        if self._rest or not data.endswith(b"\n\n"):
            data = self._whole_events(data)
            if not data:
                return
        data, events = self._inspected(data)
        if not data:
            return
        self._client.write(data)
        if events:
            self._trace.token(at_s, events)

    def ended(self) -> None:
        """The stream's framing is whole."""
        self._owner.stream_ended()

    def failed(self, error: LegError) -> None:
        self._owner.failed(error)

    def broken(self) -> None:
        """The router itself failed."""
        self._owner.broken()

    def streamed(self, head: AnswerHead, connection: Connection) -> Taker | None:
        """It is already."""
        return self

    def answered(self, head: AnswerHead, body: bytes) -> None:
        """Never: it takes a stream."""

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
                if is_text(event):
                    contents += 1
                elif (chunk := openai.json_object(event[5:])) is not None:
                    shown = self._chunk(event, chunk)
                    if shown is None:
                        continue
                    event = shown
                    contents += has_content(chunk)
            kept.append(event)
        if not kept:
            return b"", 0
        kept.append(b"")
        return b"\n\n".join(kept), contents

    def _chunk(self, event: bytes, chunk: dict[str, Any]) -> bytes | None:
        """The event as the client gets it; None when it is only for us."""
        usage = openai.usage_of(chunk)
        if usage is not None:
            self._trace.usage = usage
            if not chunk.get("choices") and not self._wants_usage:
                return None
            if _set_cached(chunk, usage, self._trace.prefill_cached):
                event = b"data: " + orjson.dumps(chunk)
        problem = failure_of(chunk)
        if problem:
            self.failure = self.failure or problem
            if "error" in chunk:
                clean = openai.error_body(problem, kind="server_error", code="engine_error")
                return b"data: " + clean
        if chunk.get("kv_transfer_params"):
            return b"data: " + orjson.dumps({**chunk, "kv_transfer_params": None})
        return event


def is_text(event: bytes) -> bool:
    """Whether events can be nothing but chunks with text: what is false here has to be parsed.

    Each mark is searched for by itself because that is several times faster than one regular expression.
    """
    return not (
        b'""' in event
        or b'"usage":{' in event
        or b"{}" in event
        or b'"error"' in event
        or b'"usage": {' in event
        or b'"kv_transfer_params":' in event
    )


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
    for choice in answer.get("choices") or ():
        if choice.get("finish_reason") == "error":
            return "the engine ended the request with an error"
    return ""


def _set_cached(answer: dict[str, Any], usage: openai.Usage, cached: int | None) -> bool:
    """Put what prefill had cached in place of what decode got from it, which decode may take for the same. Whether that was another."""
    if cached is None or usage.cached is None or usage.cached == cached:
        return False
    answer["usage"]["prompt_tokens_details"]["cached_tokens"] = cached
    return True


def whole_answer(body: bytes, trace: Trace) -> tuple[bytes, str]:
    """An answer in one piece as the client gets it, and the engine's failure in it; its usage is kept."""
    answer = openai.json_object(body)
    if answer is None:
        return body, ""
    usage = trace.usage = openai.usage_of(answer)
    if usage is not None and _set_cached(answer, usage, trace.prefill_cached):
        body = orjson.dumps(answer)
    if answer.get("kv_transfer_params"):
        body = orjson.dumps({**answer, "kv_transfer_params": None})
    return body, failure_of(answer)
