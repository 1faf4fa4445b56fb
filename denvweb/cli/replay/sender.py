"""An open-loop client: requests go out on their schedule, whatever became of those before.

It is written on httptools and one read callback, because it stands for the users: what it costs itself would be counted
as the server's latency.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools
import msgspec

from denvweb.cli.replay.prompts import prompt_of
from denvweb.cli.replay.report import Tally
from denvweb.cli.replay.trace import TraceRequest
from denvweb.core.errors import InvalidError

_REQUEST_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: `url` is the OpenAI base without `/v1`."""

    url: str
    model: str
    api_key: str = ""
    chat: bool = True

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.hostname:
            raise InvalidError(f"`{self.url}` is no endpoint; write http://HOST:PORT")
        return parts.hostname, parts.port or 80


def request_bytes(target: Target, request: TraceRequest) -> bytes:
    """One HTTP request, ready to send."""
    prompt = prompt_of(request)
    body: dict[str, object] = {"model": target.model, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    if target.chat:
        body |= {"messages": [{"role": "user", "content": prompt}], "max_completion_tokens": request.output_tokens}
    else:
        body |= {"prompt": prompt, "max_tokens": request.output_tokens}
    payload = msgspec.json.encode(body)
    host, port = target.address
    path = "/v1/chat/completions" if target.chat else "/v1/completions"
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {host}:{port}",
        "content-type: application/json",
        f"content-length: {len(payload)}",
        "connection: close",
    ]
    if target.api_key:
        lines.append(f"authorization: Bearer {target.api_key}")
    return "\r\n".join([*lines, "", ""]).encode() + payload


class _Stream(asyncio.Protocol):
    """One request and its event stream. Times are taken when bytes arrive; all events of one read arrived together."""

    def __init__(self, payload: bytes, tally: Tally, over: Callable[[], None]) -> None:
        self._payload, self._tally, self._over = payload, tally, over
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._events = 0
        self._finished = self._complete = self._ended = False
        self._error = ""
        self._last_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._start_s = time.perf_counter()
        transport.write(self._payload)
        self._payload = b""

    def data_received(self, data: bytes) -> None:
        before = self._events
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._error = f"bad HTTP: {error}"
            self._transport.close()
            return
        if self._events > before:
            now_s = time.perf_counter()
            if self._last_s is None:
                self._tally.ttft.record(now_s - self._start_s)
            else:
                self._tally.itl.record(now_s - self._last_s)
            self._last_s = now_s
        if self._complete:
            self._transport.close()

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._error = self._error or f"HTTP {self._parser.get_status_code()}: {_message(body)}"
            return
        *events, self._rest = (self._rest + body).split(b"\n\n")
        for event in events:
            self._event(event)

    def _event(self, event: bytes) -> None:
        if event == b"data: [DONE]":
            self._finished = True
        elif b'"usage":{' in event and b'"choices":[]' in event:
            usage = msgspec.json.decode(event[6:])["usage"]
            self._tally.prompt_tokens += usage["prompt_tokens"]
            self._tally.output_tokens += usage["completion_tokens"]
        elif b'"error"' in event[:40] or event.startswith(b"event: error"):
            self._error = f"stream error: {_message(event.partition(b'data: ')[2])}"
        elif _has_content(event):
            self._events += 1

    def on_message_complete(self) -> None:
        self._complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        if self._finished and not self._error:
            self._tally.done += 1
            self._tally.e2e.record(time.perf_counter() - self._start_s)
        else:
            self._tally.fail(self._error or "the stream was cut")
        self._over()

    def give_up(self) -> None:
        """End a request that takes too long."""
        self._error = f"no end within {_REQUEST_TIMEOUT_S:.0f} s"
        self._transport.abort()


def _has_content(event: bytes) -> bool:
    return (b'"content":"' in event and b'"content":""' not in event) or (b'"text":"' in event and b'"text":""' not in event)


def _message(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])[:160]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return body[:160].decode(errors="replace")


class Replay:
    """Sends a schedule and tallies what came back."""

    def __init__(self, target: Target, tally: Tally) -> None:
        self.target, self.tally = target, tally
        self._live: set[asyncio.Task[None]] = set()

    async def run(self, schedule: Iterator[tuple[float, TraceRequest]]) -> None:
        """Send everything on time, then wait for the answers."""
        start_s = time.perf_counter()
        for at_s, request in schedule:
            payload = request_bytes(self.target, request)  # before the wait: building it must not make it late
            delay_s = start_s + at_s - time.perf_counter()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            self.tally.max_late_s = max(self.tally.max_late_s, time.perf_counter() - start_s - at_s)
            task = asyncio.create_task(self.send(payload))
            self._live.add(task)
            task.add_done_callback(self._live.discard)
        while self._live:
            await asyncio.wait(self._live)

    async def send(self, payload: bytes) -> None:
        """One request, now; returns when its answer is over."""
        self.tally.sent += 1
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        try:
            _, stream = await loop.create_connection(lambda: _Stream(payload, self.tally, over.set), *self.target.address)
        except OSError as error:
            self.tally.fail(f"no connection: {error.strerror or error}")
            return
        try:
            await asyncio.wait_for(over.wait(), _REQUEST_TIMEOUT_S)
        except asyncio.TimeoutError:
            stream.give_up()
            await over.wait()
