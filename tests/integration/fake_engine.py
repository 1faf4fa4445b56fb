"""An engine in this process that speaks vLLM's NIXL protocol and misbehaves on demand.

Markers in a request's text say how: `P500`, `P400`, `PHANG`, `PSLOW`, `PNOKV`, `PGARBAGE` for prefill; `D500`, `D400`, `DHANG`, `DCUT`,
`DSLOW`, `DDROP` (ends the connection before a byte), `DERROR` (an error in the stream), `DLOST` (the KV of prefill does not come) for
the leg that answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

WORDS = ("one", " two", " three", " four", " five", " six")


@dataclass
class Seen:
    """One request as it came, and how it ended."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    disconnected: bool = False
    words_sent: int = 0

    @property
    def kv(self) -> dict[str, Any]:
        return self.body.get("kv_transfer_params") or {}

    @property
    def is_prefill(self) -> bool:
        return bool(self.kv.get("do_remote_decode")) or self.disagg.get("request_type") == "context_only"

    @property
    def disagg(self) -> dict[str, Any]:
        """TensorRT-LLM's parameters."""
        return self.body.get("disaggregated_params") or {}


class FakeEngine:
    """Listens on a free port of 127.0.0.1."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Seen] = []
        self.arrived = asyncio.Event()
        self.held: set[str] = set()  # KV that prefill keeps, by remote_request_id; shared with `peers`
        self.release = asyncio.Event()  # lets what hangs or is slow go on
        self.kv_use = 0.1
        self.only_prefills = False  # whatever it is asked, as SGLang's prefill
        self.damage: dict[str, Any] = {}  # to what prefill says of its KV
        self.loaded_tokens = 0  # of KV fetched from prefill
        self.fetches = True  # or computes everything again, without a word
        self.chunk_gap_s = 0.0
        self.words: tuple[str, ...] = WORDS
        self.prompt_tokens: int | None = None
        self.keep_alive = True
        self.steps: int | None = None  # as its metrics count them
        self.deferred = 0  # requests that wait for another engine's KV
        self.mute = False  # says nothing to questions
        self.cards: list[Any] = []  # of its models
        self.connections = 0  # that carried a generation request
        self._used: set[asyncio.StreamWriter] = set()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", port, limit=1 << 26)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def posts(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == "POST"]

    async def next_post(self, count: int = 1) -> Seen:
        """The `count`-th generation request, once it is there."""
        while len(self.posts) < count:
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), 5)
        return self.posts[count - 1]

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError, RuntimeError):
            pass  # uvloop says RuntimeError for a write to a connection that is closed
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head[1:] if line}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        seen = Seen(method, path, headers, json.loads(body) if body else {})
        self.seen.append(seen)
        self.arrived.set()
        if method == "GET":
            if self.mute:
                await reader.read()
                return False
            self._whole(writer, 200, json.dumps({"object": "list", "data": self.cards}).encode() if path == "/v1/models" else self._page())
            await writer.drain()
            return False
        if writer not in self._used:
            self._used.add(writer)
            self.connections += 1
        act = asyncio.ensure_future(self._answer(seen, writer, body.decode()))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({act, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not act.done():
                seen.disconnected = True
                return False
            goes_on = act.result() and self.keep_alive
            if gone.done():
                return False
            if goes_on:
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
            return goes_on
        finally:
            act.cancel()
            gone.cancel()
            if seen.kv.get("do_remote_prefill"):
                self.held.discard(str(seen.kv.get("remote_request_id")))
            seen.ended.set()

    def _whole(self, writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json") -> None:
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nserver: fake\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter, text: str) -> bool:
        is_prefill = seen.is_prefill or self.only_prefills
        leg = "P" if is_prefill else "D"
        for code in (400, 429, 500, 503):
            if f"{leg}{code}" in text:
                message = f"{self.name} says {code} at http://127.0.0.1:{self.port}/v1"
                self._whole(writer, code, json.dumps({"error": {"message": message, "type": "BadRequestError", "code": code}}).encode())
                await writer.drain()
                return True
        if f"{leg}DROP" in text:
            return False
        if "DLOST" in text and seen.kv.get("do_remote_prefill") and not seen.body.get("stream"):
            self._whole(writer, 500, b'{"error":{"message":"Internal server error","code":500}}')
            await writer.drain()
            return True
        if f"{leg}HANG" in text or f"{leg}SLOW" in text:
            await self.release.wait()
        if is_prefill:
            self._prefilled(seen, writer, text)
            await writer.drain()
            return True
        if seen.kv.get("do_remote_prefill") and self.fetches:
            self.loaded_tokens += int(self._usage(seen, 0)["prompt_tokens"])
        if seen.body.get("stream"):
            return await self._stream(seen, writer, text)
        words = "".join(self.words)
        choice = {"index": 0, "message": {"role": "assistant", "content": words}, "text": words, "finish_reason": "stop"}
        answer = {"id": "x", "choices": [choice], "usage": self._usage(seen, len(self.words)), "kv_transfer_params": None}
        self._whole(writer, 200, json.dumps(answer).encode())
        await writer.drain()
        return True

    def _page(self) -> bytes:
        lines = [f'vllm:kv_cache_usage_perc{{engine="0"}} {self.kv_use}']
        lines.append(f'vllm:prompt_tokens_by_source_total{{engine="0",source="external_kv_transfer"}} {float(self.loaded_tokens)}')
        if self.steps is not None:
            lines.append(f'vllm:iteration_tokens_total_count{{engine="0"}} {float(self.steps)}')
            lines.append(f'vllm:num_requests_waiting_by_reason{{engine="0",reason="deferred"}} {float(self.deferred)}')
        return ("\n".join(lines) + "\n").encode()

    def _usage(self, seen: Seen, completion: int) -> dict[str, Any]:
        prompt = (
            self.prompt_tokens
            if self.prompt_tokens is not None
            else len(json.dumps(seen.body.get("messages") or seen.body.get("prompt"))) // 4
        )
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 7 if seen.is_prefill else 0},
        }

    def _prefilled(self, seen: Seen, writer: asyncio.StreamWriter, text: str) -> None:
        if "PGARBAGE" in text:
            self._whole(writer, 200, b"not json")
            return
        if seen.disagg:
            self._context(seen, writer, text)
            return
        request = f"{seen.headers['x-request-id']}-{self.name}-{len(self.posts)}"
        kv = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2]], "remote_engine_id": self.name}
        kv |= {"remote_request_id": request, "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1}
        kv["remote_num_tokens"] = 12345678901234567
        kv |= self.damage
        self.held.add(request)
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}
        answer = {"id": "x", "choices": [choice], "usage": self._usage(seen, 1), "kv_transfer_params": None if "PNOKV" in text else kv}
        self._whole(writer, 200, json.dumps(answer).encode())

    def _context(self, seen: Seen, writer: asyncio.StreamWriter, text: str) -> None:
        """TensorRT-LLM's context server: the first token, and where the KV is, in numbers that a float would round."""
        params = seen.disagg | {"ctx_request_id": seen.disagg["disagg_request_id"], "first_gen_tokens": [5], "encoded_opaque_state": "b64="}
        said = {"message": {"role": "assistant", "content": "one"}} if "chat" in seen.path else {"text": "one"}
        choice: dict[str, Any] = {"index": 0, "disaggregated_params": params | self.damage, **said}
        choice["finish_reason"] = "stop" if "PALL" in text else "length"
        answer = {"id": "x", "choices": [choice], "usage": self._usage(seen, 1), "prompt_token_ids": [1, 2, 3]}
        self._whole(writer, 200, json.dumps(answer).encode())

    async def _stream(self, seen: Seen, writer: asyncio.StreamWriter, text: str) -> bool:
        chat = "chat" in seen.path
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nserver: fake\r\ntransfer-encoding: chunked\r\n\r\n")
        if chat:
            self._event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
            await writer.drain()
        if "DLOST" in text and seen.kv.get("do_remote_prefill"):
            self._event(writer, {"error": {"message": f"engine {self.name} has no KV", "code": 500}})
            self._chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        for index, word in enumerate(self.words):
            if "DCUT" in text and index == 3:
                writer.transport.abort()
                return False
            if "DERROR" in text and index == 3:
                self._event(writer, {"error": {"message": f"engine {self.name} at 10.1.2.3:8000 failed"}})
                break
            if "DPAUSE" in text and index == 3:
                await self.release.wait()
            part = {"delta": {"content": word}} if chat else {"text": word}
            last = index == len(self.words) - 1
            self._event(writer, {"choices": [{"index": 0, **part, "finish_reason": "stop" if last else None}]})
            await writer.drain()
            seen.words_sent += 1
            await asyncio.sleep(self.chunk_gap_s)
        if (seen.body.get("stream_options") or {}).get("include_usage"):
            self._event(writer, {"choices": [], "usage": self._usage(seen, len(self.words))})
        if "DNODONE" not in text:
            self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _event(self, writer: asyncio.StreamWriter, data: dict[str, Any]) -> None:
        body = {"id": "x", "object": "chunk", "created": 1, "model": "m", **data}
        self._chunk(writer, b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))


@asynccontextmanager
async def engines(*names: str) -> AsyncIterator[list[FakeEngine]]:
    """Engines that share one set of held KV."""
    made = [FakeEngine(name) for name in names]
    for engine in made:
        engine.held = made[0].held
        await engine.start()
    try:
        yield made
    finally:
        for engine in made:
            await engine.stop()
