"""A control plane and an engine that are just enough for an agent, and an agent process on top of them.

`python -m tests.agent_fakes FLAGS...` runs a real agent process whose engines are the commands that the ranks' options name.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import uvicorn

from denvweb.core import wire
from fleets.agent import main as agent_main
from fleets.agent import state
from fleets.agent.config import Config, parse_config
from fleets.domain.protocol import (
    AgentReport,
    JoinReply,
    JoinRequest,
    LogAsk,
    LogPiece,
    LogPieceReply,
    NodeFacts,
    NodeSnapshot,
    RankReport,
    RankSpec,
)
from fleets.domain.types import EngineSpec, ModelShape, RankDesired, RankState, Role
from fleets.engines.base import Capabilities, EngineAdapter, LaunchCommand

Receive = Callable[[], Coroutine[Any, Any, MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
SHAPE = ModelShape(
    layers=4,
    hidden=64,
    kv_heads=2,
    total_params=1e6,
    prefill_active_params=1e6,
    decode_active_params=1e6,
    weight_bytes=1e6,
    kv_bytes_per_token=512,
)
SLEEPER = "sh -c 'echo ready; exec sleep 600'"  # ready at once, ends at SIGTERM
STUBBORN = "sh -c 'trap \"\" TERM; echo ready; while :; do sleep 0.2; done'"  # only SIGKILL ends it


def rank(rank_id: str, run: str = SLEEPER, desired: RankDesired = RankDesired.RUN, **changes: Any) -> RankSpec:
    """A rank of one GPU whose engine is the shell command `run`."""
    options = {"run": run, "ready-line": "ready"}
    engine = EngineSpec(engine="vllm", recipe="", model="m", weights="", protocol="none", shape=SHAPE, tensor_parallel=1, options=options)
    spec = RankSpec(
        rank_id=rank_id,
        replica=f"r-{rank_id}",
        unit="u-1",
        stage="m/test",
        release="m@1",
        role=Role.AGGREGATED,
        index=0,
        count=1,
        gpus=(0,),
        port=29000,
        leader_host="127.0.0.1",
        leader_port=29000,
        gpu_kind="GB200",
        desired=desired,
        engine=engine,
    )
    return replace(spec, **changes)


@dataclass(frozen=True, slots=True)
class ShellAdapter:
    """Runs what the rank's options say."""

    name: str = "shell"
    program: str = ""
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(True, True, True, False))

    def command(self, spec: RankSpec, *, speed: float = 1.0, engine_id: str = "") -> LaunchCommand:
        options = spec.engine.options
        ready_path, metrics_path = options.get("ready-path", ""), options.get("metrics-path", "")
        argv = tuple(shlex.split(options["run"].replace("{port}", str(spec.port))))
        return LaunchCommand(argv, ready_path=ready_path, metrics_path=metrics_path, ready_line="" if ready_path else options["ready-line"])

    def map_metrics(self, text: str) -> dict[str, float]:
        return {"running": float(text.split()[-1])}


def shell_adapter_for(engine: str, simulated: bool) -> EngineAdapter:
    """The same for every engine."""
    return ShellAdapter()


class FakeControl:
    """Joins any node that shows the token, keeps what nodes report, and hands out what the test wants."""

    def __init__(self, port: int, sync_every_s: float = 5.0) -> None:
        self.port, self.sync_every_s = port, sync_every_s
        self.reports: dict[str, AgentReport] = {}
        self.facts: dict[str, NodeFacts] = {}
        self.asks: tuple[LogAsk, ...] = ()  # logs that somebody reads
        self.pieces: list[LogPiece] = []
        self.syncs = 0
        self.joins = 0
        self.listeners = 0
        self._wanted: dict[str, NodeSnapshot] = {}
        self._pokes: set[asyncio.Event] = set()
        self._changed = asyncio.Condition()
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> FakeControl:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        config = uvicorn.Config(
            self.app,
            port=self.port,
            lifespan="off",
            interface="asgi3",
            log_level="error",
            ws="websockets-sansio",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # the test's process keeps its own
        self._task = asyncio.create_task(self._server._serve())
        while not self._server.started:
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        if self._server is not None and self._task is not None:
            self._server.should_exit = self._server.force_exit = True
            for event in self._pokes:
                event.set()
            await self._task
            self._server = None

    def want(self, node: str, *ranks: RankSpec) -> None:
        """The node should run these from now on."""
        generation = self._wanted[node].generation + 1 if node in self._wanted else 1
        self._wanted[node] = NodeSnapshot(node=node, generation=generation, ranks=ranks, sync_every_s=self.sync_every_s, logs=self.asks)
        for event in self._pokes:
            event.set()

    async def until(self, holds: Callable[[], bool], timeout_s: float = 8.0) -> None:
        """Wait for a report after which `holds()` is true."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(holds)

    def rank(self, rank_id: str) -> RankReport | None:
        """The last report on a rank."""
        for report in self.reports.values():
            for found in report.ranks:
                if found.rank_id == rank_id:
                    return found
        return None

    async def until_state(self, rank_id: str, wanted: RankState, timeout_s: float = 8.0) -> RankReport:
        """Wait until a rank is reported in a state."""
        await self.until(lambda: (found := self.rank(rank_id)) is not None and found.state is wanted, timeout_s)
        found = self.rank(rank_id)
        assert found is not None
        return found

    async def until_acted(self, node: str) -> None:
        """Wait until the node says that it works by the newest snapshot."""
        await self.until(lambda: node in self.reports and self.reports[node].observed_generation == self._wanted[node].generation)

    async def app(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "websocket":
            await self._poke(receive, send)
            return
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        credential = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        status, answer = self._answer(scope["path"], body, credential)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": answer})
        async with self._changed:
            self._changed.notify_all()

    def _answer(self, path: str, body: bytes, credential: str) -> tuple[int, bytes]:
        if path == "/agent/v1/join":
            request = wire.decode(body, JoinRequest)
            if request.token != "join-1.secret":
                return 403, b'{"code": "forbidden", "detail": "the join token is not valid"}'
            self.joins += 1
            return 200, wire.encode(JoinReply({facts.name: f"node-{facts.name}.secret" for facts in request.nodes}))
        if path == "/agent/v1/logs":
            piece = wire.decode(body, LogPiece)
            if piece.text:
                self.pieces.append(piece)
            return 200, wire.encode(LogPieceReply(go_on=any(ask.ask == piece.ask for ask in self.asks)))
        report = wire.decode(body, AgentReport)
        if credential != f"node-{report.node}.secret":
            return 401, b'{"code": "unauthorized", "detail": "no such credential"}'
        self.syncs += 1
        self.reports[report.node] = report
        if report.facts:
            self.facts[report.node] = report.facts
        wanted = self._wanted.get(report.node) or NodeSnapshot(report.node, generation=0, unchanged=True, sync_every_s=self.sync_every_s)
        if wanted.generation == report.observed_generation:
            wanted = replace(wanted, unchanged=True, ranks=())
        return 200, wire.encode(wanted)

    async def _poke(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        event = asyncio.Event()
        self._pokes.add(event)
        self.listeners += 1
        gone = asyncio.create_task(receive())
        gone_or_due = None
        try:
            while self._server is not None and not self._server.should_exit:
                gone_or_due = asyncio.create_task(event.wait())
                await asyncio.wait({gone, gone_or_due}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    if (await gone)["type"] == "websocket.disconnect":
                        break
                    gone = asyncio.create_task(receive())  # it said which nodes it stands for
                    continue
                event.clear()
                await send({"type": "websocket.send", "text": '{"nodes": []}'})
        finally:
            self._pokes.discard(event)
            self.listeners -= 1
            gone.cancel()
            if gone_or_due:
                gone_or_due.cancel()


async def serve(config: Config) -> None:
    """An agent in this process, with shell engines."""
    await agent_main.Agent(config, adapters=shell_adapter_for).run()


def main(argv: list[str]) -> None:
    config = parse_config(argv)
    state.prepare(config.state_path)
    asyncio.run(agent_main.serve(config, adapters=shell_adapter_for))


if __name__ == "__main__":
    main(sys.argv[1:])
