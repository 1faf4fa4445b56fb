"""What a request's client is told: the engine's answer as it may see it, and the router's own refusals and ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from denvweb.core.errors import InvalidError
from fleets.router import openai
from fleets.router.admission import QueueFullError
from fleets.router.callers import Caller
from fleets.router.client import Client
from fleets.router.heads import AnswerHead, Headers, RequestHead
from fleets.router.openai import Ask
from fleets.router.taker import LegError, LegFailure
from fleets.router.telemetry import Trace, now

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_JSON = (b"content-type", b"application/json")
_PASSED_ON = frozenset({b"content-type", b"retry-after"})


class Reply(Trace, ABC):
    """One request and its client."""

    __slots__ = ("ask", "caller", "client", "head", "leg_id", "request_id", "span", "status", "traceparent")

    def __init__(self, head: RequestHead, client: Client, ask: Ask, request_id: bytes, start_s: float) -> None:
        Trace.__init__(self, start_s)
        self.head = head
        self.client = client
        self.ask = ask
        self.request_id = request_id
        self.traceparent = head.traceparent
        self.leg_id = request_id if not head.traceparent else b"%b\r\ntraceparent: %b" % (request_id, head.traceparent)
        self.caller: Caller | None = None  # whose API key it came with
        self.span: Span | None = None  # with --tracing alone
        self.status = 0  # of what the client got; 0: nothing

    @property
    def client_name(self) -> str:
        """Who the API key was made for; empty where none is asked for."""
        return self.caller.key.client if self.caller is not None else ""

    def _shown(self, head: AnswerHead) -> bytes:
        """What the client may see of the head of an engine's answer."""
        return b"%bx-request-id: %b\r\n" % (head.shown, self.request_id) if head.needs_id else head.shown

    def _pass_on(self, head: AnswerHead, body: bytes) -> None:
        """An engine's own 4xx: the client's to read, and no error of ours."""
        self.also("client-errors")
        self.status = head.status
        self.client.respond(head.status, body, [*head.kept(_PASSED_ON), (b"x-request-id", self.request_id)])
        self._end()

    def _mistaken(self, error: InvalidError) -> None:
        """The client's mistake, seen late; no error of ours."""
        self.also("client-errors")
        self.status = 400
        body = openai.error_body(error.detail, kind="invalid_request_error", code=error.code)
        self.client.respond(400, body, [_JSON, (b"x-request-id", self.request_id)])
        self._end()

    def _all_said(self, reply: dict[str, Any]) -> None:
        """Prefill's own answer is the whole one: it ended with its token."""
        self.status = 200
        self.token(now(), 1)
        kind, body = openai.final_answer(reply, stream=self.ask.stream, chat=self.ask.chat, wants_usage=self.ask.wants_usage)
        self.client.respond(200, body, [(b"content-type", kind), (b"x-request-id", self.request_id)])
        self._end()

    def _cut(self, why: str) -> None:
        self.error = "stream-cut"
        self.client.write(openai.error_event(f"the answer ended early: {why}", code="stream_cut", named=self.ask.responds))
        self.client.end()
        self._end()

    def refuse(self, status: int, kind: str, message: str, *, code: str = "", retry_after_s: float | None = None) -> None:
        """An answer of the router's own; `kind` is its class for the counters."""
        self.error, self.status = kind, status
        headers: Headers = [_JSON, (b"x-request-id", self.request_id)]
        if retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(retry_after_s))))
        name = "rate_limit_error" if status == 429 else "server_error"
        self.client.respond(status, openai.error_body(message, kind=name, code=code or kind.replace("-", "_")), headers)
        self._end()

    def _refuse_for(self, error: LegError) -> None:
        if error.kind is LegFailure.TIMEOUT:
            self.refuse(504, "timeout", "the engine did not answer in time")
        elif error.kind is LegFailure.CONNECT:
            self.refuse(502, "connect", "the engine cannot be reached")
        else:
            self.refuse(502, "decode", "the engine ended the connection before it answered", code="engine_error")

    def _queue_full(self, full: QueueFullError) -> None:
        self.refuse(429, "queue-full", f"the service is busy: {full.detail}", retry_after_s=full.retry_after_s)

    @abstractmethod
    def _end(self) -> None:
        """Nothing more comes of the request."""
