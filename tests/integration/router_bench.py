"""What the router's tests share: an app on a free port, tables of fake engines, a raw client, a fake control plane."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from denvweb.core import wire
from fleets.domain.protocol import ConditionalPolicy, ReplicaReadiness, RouteReplica, RouterReport, RouterTable, RouteUnit
from fleets.domain.types import Role
from fleets.router.app import App
from fleets.router.config import Config
from metrics.domain.types import AlarmSpec, SeriesDelta
from tests.integration.fake_engine import FakeEngine

STAGE = "ds-flash/prod-us"
MODEL = "ds-flash"


def replica(
    engine: FakeEngine, role: Role, release: str = "ds-flash@1", readiness: ReplicaReadiness = ReplicaReadiness.READY
) -> RouteReplica:
    return RouteReplica(f"r-{engine.name}", role, release, "127.0.0.1", engine.port, readiness, f"e-{engine.name}")


def pd_unit(
    prefills: Sequence[FakeEngine],
    decodes: Sequence[FakeEngine],
    *,
    unit: str = "u-1",
    release: str = "ds-flash@1",
    routable: bool = True,
    probe: bool = False,
    readiness: ReplicaReadiness = ReplicaReadiness.READY,
) -> RouteUnit:
    replicas = [replica(engine, Role.PREFILL, release, readiness) for engine in prefills]
    replicas += [replica(engine, Role.DECODE, release, readiness) for engine in decodes]
    return RouteUnit(unit, release, release, release, "compat-1", routable, probe, "vllm-nixl", tuple(replicas))


def plain_unit(members: Sequence[FakeEngine], *, unit: str = "u-1", release: str = "ds-flash@1", routable: bool = True) -> RouteUnit:
    replicas = tuple(replica(engine, Role.AGGREGATED, release) for engine in members)
    return RouteUnit(unit, release, release, release, "compat-1", routable, False, "none", replicas)


def table(
    *units: RouteUnit, generation: int = 1, weights: dict[str, int] | None = None, alarms: Sequence[AlarmSpec] = (), below: int = 1000
) -> RouterTable:
    return RouterTable(
        stage=STAGE,
        model=MODEL,
        epoch=1,
        generation=generation,
        weights=weights if weights is not None else {units[0].release: 10_000},
        units=units,
        conditional=ConditionalPolicy(local_prefill_below=below),
        alarms=tuple(alarms),
    )


@dataclass
class Answer:
    """What a raw client got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Data events of a stream; [DONE] is the string."""
        parts = [part[6:] for part in self.body.decode().split("\n\n") if part.startswith("data: ")]
        return [part if part == "[DONE]" else json.loads(part) for part in parts]

    @property
    def text(self) -> str:
        pieces = [
            choice.get("text") or choice.get("delta", {}).get("content") or ""
            for event in self.events
            if event != "[DONE]"
            for choice in event.get("choices", ())
        ]
        return "".join(pieces)


def message(
    body: dict[str, Any] | bytes, *, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None, method: str = "POST"
) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"host": "x", "content-type": "application/json", "content-length": str(len(content)), **(headers or {})}
    return (
        f"{method} {path} HTTP/1.1\r\n".encode()
        + "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()
        + b"\r\n"
        + content
    )


def chat(text: str = "hello", *, stream: bool = True, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 6, "stream": stream, **more}


class Raw:
    """A client that writes and reads bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read_answer(self) -> Answer:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1").split("\r\n")
        status = int(head[0].split(" ")[1])
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head[1:] if line}
        if status == 100:
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int((await asyncio.wait_for(self.reader.readuntil(b"\r\n"), 10)), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = await self.reader.read()
        return Answer(status, headers, body)


@dataclass
class Bench:
    """A router with its engines."""

    app: App
    raws: list[Raw] = field(default_factory=list)

    async def connect(self) -> Raw:
        raw = Raw(*await asyncio.open_connection("127.0.0.1", self.app.port, limit=1 << 26))
        self.raws.append(raw)
        return raw

    async def ask(self, body: dict[str, Any] | bytes, **how: Any) -> Answer:
        raw = await self.connect()
        raw.writer.write(message(body, **how))
        answer = await raw.read_answer()
        raw.writer.close()
        return answer

    async def get(self, path: str) -> Answer:
        return await self.ask(b"", path=path, method="GET")

    def deltas(self) -> list[SeriesDelta]:
        return self.app.telemetry.take()

    def counters(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for delta in self.deltas():
            for name, count in delta.counters.items():
                total[name] = total.get(name, 0) + count
        return total


@asynccontextmanager
async def router(
    tmp_path: Path, first: RouterTable | None = None, *, control: str = "http://127.0.0.1:9", **config: Any
) -> AsyncIterator[Bench]:
    """An app that serves; without a control plane unless one is given."""
    settings = {"report_every_s": 3600.0, "gauge_every_s": 3600.0, "drain_deadline_s": 0.1, **config}
    app = App(Config(stage=STAGE, port=0, control=control, state_dir=str(tmp_path), name="router-1", **settings))
    if control.endswith(":9"):
        app.last_tries = 1  # nobody will take the last report, however often it is offered
    if first is not None:
        app.table.take(first, keep=False)
    await app.start()
    bench = Bench(app)
    try:
        yield bench
    finally:
        for raw in bench.raws:
            raw.writer.close()
        await app.stop()


class FakeControl:
    """Serves tables and takes reports; can refuse everything."""

    def __init__(self) -> None:
        self.table: RouterTable | None = None
        self.reports: list[RouterReport] = []
        self.down = False
        self.lose_acks = 0
        self.changed = asyncio.Event()
        self.reported = asyncio.Event()
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=1 << 26)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def put(self, new: RouterTable) -> None:
        self.table = new
        self.changed.set()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
                body = await reader.readexactly(size)
                status, answer = await self._answer(head, body)
                if status == 0:
                    break
                writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(answer)}\r\n\r\n".encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str, body: bytes) -> tuple[int, bytes]:
        if self.down:
            return 503, b"{}"
        if head.startswith("GET /router/v1/table"):
            known = int(head.partition("generation=")[2].partition("&")[0])
            while self.table is None or self.table.generation == known:
                self.changed.clear()
                try:
                    await asyncio.wait_for(self.changed.wait(), 1)
                except TimeoutError:
                    return 204, b""
            return 200, wire.encode(self.table)
        report = wire.decode(body, RouterReport)
        self.reports.append(report)
        self.reported.set()
        if self.lose_acks:
            self.lose_acks -= 1
            return 0, b""
        return 200, wire.encode({"seq": report.seq})

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()


@asynccontextmanager
async def control_plane() -> AsyncIterator[FakeControl]:
    made = FakeControl()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
