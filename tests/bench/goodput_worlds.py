"""What `make bench-goodput` compares: each router in a world of its own, with simulated engines of its own, all on this machine.

Engines spend time and hardly any CPU, so the worlds run at the same moment: whatever else the machine does falls on all of them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import msgspec

from denvweb.core import wire
from fleets.domain.protocol import ConditionalPolicy, RouteReplica, RouterTable, RouteUnit
from fleets.domain.types import Role
from releases.catalog import catalog
from tests.bench.router import ALARMS, ROOT
from tests.integration.engine_support import free_base, until_healthy
from tests.integration.router_bench import control_plane

RECIPE, GPU, GPUS = "llama-3.1-70b/vllm@1", "H100", 4  # GPUs of one replica
SHAPE = catalog()[RECIPE].model_shape()
ROLES = (Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE)
MODEL = "llama-70b"
BATCHED_TOKENS = {Role.PREFILL: 16_384, Role.DECODE: 8_192}  # of the recipe, and vLLM's default
NIXL, BOOTSTRAP = "vllm-nixl", "sglang-bootstrap"
UP_S = 40.0


@dataclass(frozen=True, slots=True)
class Engine:
    """A simulated engine that runs."""

    role: Role
    port: int

    @property
    def url(self) -> str:
        """Its base."""
        return f"http://127.0.0.1:{self.port}"


Command = Callable[[Path, int, Sequence[Engine]], list[str]]  # (folder of the peers' programs, port, engines) -> argv


@dataclass(frozen=True, slots=True)
class Peer:
    """A router that is not ours: the protocol in which it hands over, and how it is started."""

    protocol: str
    command: Command


def _urls(engines: Sequence[Engine], role: Role) -> list[Engine]:
    return [engine for engine in engines if engine.role is role]


def _common(port: int) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error", "--prometheus-port", str(free_port())]


def _sides(engines: Sequence[Engine], *, bootstrap: bool) -> list[str]:
    flags: list[str] = []
    for engine in _urls(engines, Role.PREFILL):
        flags += ["--prefill", engine.url, *([str(engine.port + 1)] if bootstrap else [])]
    for engine in _urls(engines, Role.DECODE):
        flags += ["--decode", engine.url]
    return flags


def _vllm_router(programs: Path, port: int, engines: Sequence[Engine]) -> list[str]:
    return [str(programs / "vllm-router"), *_common(port), "--vllm-pd-disaggregation", *_sides(engines, bootstrap=False), *_POLICIES]


def _sglang_router(programs: Path, port: int, engines: Sequence[Engine]) -> list[str]:
    return [str(programs / "sglang-router"), "launch", *_common(port), "--pd-disaggregation", *_sides(engines, bootstrap=True), *_POLICIES]


def _smg(programs: Path, port: int, engines: Sequence[Engine]) -> list[str]:
    return [str(programs / "smg"), "launch", *_common(port), "--pd-disaggregation", *_sides(engines, bootstrap=True), *_POLICIES]


# What all three show in their own help for roles apart.
_POLICIES = ["--prefill-policy", "cache_aware", "--decode-policy", "power_of_two"]
OURS = "denv"
PEERS = {"vllm-router": Peer(NIXL, _vllm_router), "sglang-router": Peer(BOOTSTRAP, _sglang_router), "smg": Peer(BOOTSTRAP, _smg)}


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def process(command: Sequence[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that ends with the block, and its output in a file."""
    with log.open("wb") as out:
        made = await asyncio.create_subprocess_exec(
            *command, stdout=out, stderr=out, cwd=log.parent, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
    try:
        yield made
    finally:
        with suppress(ProcessLookupError):
            made.terminate()
        try:
            await asyncio.wait_for(made.wait(), 3)
        except TimeoutError:
            made.kill()
            await made.wait()


@asynccontextmanager
async def engines(protocol: str, folder: Path) -> AsyncIterator[list[Engine]]:
    """Two prefill and two decode replicas, up."""
    made: list[Engine] = []
    async with AsyncExitStack() as stack:
        for role in ROLES:
            port = next(base for base in iter(free_base, None) if all(abs(base - other.port) >= 3 for other in made))
            config = {
                "port": port, "role": role.value, "model": MODEL, "replica": f"r-{port}", "engine_id": f"e-{port}", "gpu_kind": GPU,
                "gpus": GPUS, "tensor_parallel": GPUS, "shape": asdict(SHAPE), "protocol": protocol, "max_sequences": 256,
                "max_batched_tokens": BATCHED_TOKENS[role],
            }  # fmt: skip
            command = [sys.executable, "-m", "fleets.engines.sim", "--config", msgspec.json.encode(config).decode()]
            await stack.enter_async_context(process(command, folder / f"engine-{port}.log"))
            made.append(Engine(role, port))
        await asyncio.gather(*(until_healthy(engine.port) for engine in made))
        yield made


def _table(made: Sequence[Engine]) -> RouterTable:
    release = f"{MODEL}@1"
    replicas = tuple(
        RouteReplica(f"r-{engine.port}", engine.role, release, "127.0.0.1", engine.port, engine_id=f"e-{engine.port}") for engine in made
    )
    unit = RouteUnit("u-1", release, release, release, "c", True, False, NIXL, replicas)
    return RouterTable(f"{MODEL}/bench", MODEL, 1, 1, {release: 10_000}, (unit,), ConditionalPolicy(), alarms=ALARMS)


@asynccontextmanager
async def _ours(folder: Path, port: int, made: Sequence[Engine]) -> AsyncIterator[None]:
    """Our router with all its defaults, and a control plane that gives it its table and takes its reports."""
    table = _table(made)
    state = folder / "state"
    state.mkdir()
    (state / f"table-{table.stage.replace('/', '_')}.json").write_bytes(wire.encode(table))
    async with control_plane() as control:
        control.put(table)
        command = [sys.executable, "-m", "fleets.router.main", "--stage", table.stage, "--port", str(port)]
        command += ["--state-dir", str(state), "--control", control.url]
        async with process(command, folder / "router.log"):
            yield


@asynccontextmanager
async def world(name: str, programs: Path, folder: Path) -> AsyncIterator[str]:
    """Fresh engines and one router in front of them; its URL, once a request has gone through."""
    folder.mkdir(parents=True)
    async with AsyncExitStack() as stack:
        peer = PEERS.get(name)
        made = await stack.enter_async_context(engines(peer.protocol if peer else NIXL, folder))
        port = free_port()
        if peer is None:
            await stack.enter_async_context(_ours(folder, port, made))
        else:
            await stack.enter_async_context(process(peer.command(programs, port, made), folder / "router.log"))
        url = f"http://127.0.0.1:{port}"
        await _until_served(name, url)
        yield url


async def _until_served(name: str, url: str) -> None:
    body = {"model": MODEL, "prompt": "Is anybody there?", "max_tokens": 2, "stream": True}
    answer = "nothing"
    async with httpx.AsyncClient(timeout=10) as client, asyncio.timeout(UP_S):
        try:
            while True:
                with suppress(httpx.HTTPError):
                    reply = await client.post(f"{url}/v1/completions", json=body)
                    answer = f"{reply.status_code} {reply.text[:300]}"
                    if reply.status_code == 200 and "data: [DONE]" in reply.text:
                        return
                await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            raise RuntimeError(f"{name} served nothing within {UP_S:g} s: {answer}") from None
