"""A router under everything at once: long prompts, many streams, clients that crawl or vanish, engines that die at every phase.

`run` returns what is left over afterwards: there must be nothing. The long form is `make chaos-router`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from tests.integration.fake_engine import FakeEngine, engines
from tests.integration.router_bench import Bench, chat, message, pd_unit, router, table

LONG = " word" * 2000
MARKERS = (
    "",
    "",
    "",
    "",
    "P500",
    "P400",
    "PDROP",
    "PSLOW",
    "PNOKV",
    "D500",
    "D400",
    "DDROP",
    "DCUT",
    "DSLOW",
    "DPAUSE",
    "DERROR",
    "DNODONE",
)
BIG_BYTES = 8 << 20


@dataclass
class Left:
    """What is left when all clients are gone; `kv_lost` is what no engine can free before its lease ends."""

    jobs: int = 0
    inflight: dict[str, int] = field(default_factory=dict)
    queued: int = 0
    places: int = 0
    running: list[int] = field(default_factory=list)
    legs: int = 0
    descriptors: Counter[str] = field(default_factory=Counter)
    objects: int = 0
    unforeseen: int = 0
    kv: int = 0
    kv_lost: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    clients: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        """Whether nothing is."""
        held = self.jobs + len(self.inflight) + self.queued + self.places + sum(map(abs, self.running)) + self.legs + self.unforeseen
        return not held and not self.descriptors and self.kv <= self.kv_lost


def _descriptors() -> Counter[str]:
    """What this process has open: how many of each kind (sockets and pipes without their numbers, files by name)."""
    kinds: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own is closed by now
            kinds[os.readlink(f"/proc/self/fd/{name}").partition(":[")[0]] += 1
    return kinds


async def _descriptors_over(before: Counter[str]) -> Counter[str]:
    """Those that are still open beyond what was open before, after as long as a busy machine may need to close them."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while _descriptors() - before:
                await asyncio.sleep(0.05)
    return _descriptors() - before


class Chaos:
    """Clients and engines that misbehave at random."""

    def __init__(self, bench: Bench, members: list[FakeEngine], seed: int, *, big: bool) -> None:
        self._bench = bench
        self._members = members
        self._random = random.Random(seed)
        self._big = big
        self._ends = 0.0
        self.clients: Counter[str] = Counter()
        self.kv_lost = 0

    async def run(self, seconds: float, clients: int) -> None:
        """Everything, until the time is over and all clients are gone."""
        self._ends = time.monotonic() + seconds
        helpers = [asyncio.create_task(self._kill_engines()), asyncio.create_task(self._let_go())]
        await asyncio.gather(*(self._client() for _ in range(clients)))
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        for engine in self._members:
            engine.release.set()

    async def _let_go(self) -> None:
        """What hangs goes on after a while."""
        while True:
            await asyncio.sleep(0.05)
            for engine in self._members:
                engine.release.set()
                engine.release.clear()

    async def _kill_engines(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.2, 1.0))
            engine = self._random.choice(self._members)
            port = engine.port
            if engine.name.startswith("p"):  # a prefill engine that dies takes its KV with it
                engine.held -= {name for name in engine.held if name.endswith(f"-{engine.name}")}
            await engine.stop()
            await asyncio.sleep(self._random.uniform(0.0, 0.3))
            with contextlib.suppress(OSError):
                await engine.start(port)
            self.clients["engines killed"] += 1

    async def _client(self) -> None:
        while time.monotonic() < self._ends:
            kind = self._random.choice(("reads", "reads", "reads", "vanishes", "vanishes", "half", "crawls", "pipelines"))
            try:
                await getattr(self, f"_{kind}")()
                self.clients[kind] += 1
            except (ConnectionError, asyncio.IncompleteReadError, TimeoutError, asyncio.LimitOverrunError):
                self.clients[f"{kind}: cut"] += 1

    def _request(self) -> bytes:
        text = self._random.choice(MARKERS) + str(self._random.random())
        size = self._random.random()
        if size < 0.6:
            text += LONG
        elif self._big and size < 0.61:
            text += "x" * BIG_BYTES
        return message(chat(text, stream=self._random.random() < 0.7))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._bench.app.port, limit=1 << 24)

    async def _reads(self) -> None:
        reader, writer = await self._open()
        try:
            for _ in range(self._random.randint(1, 4)):
                writer.write(self._request())
                await _whole_answer(reader)
        finally:
            writer.close()

    async def _vanishes(self) -> None:
        """Leaves at any moment: in prefill, before decode, in the stream."""
        reader, writer = await self._open()
        writer.write(self._request())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.choice((0.0, 0.002, 0.02, 0.1, 0.3))):
                await _whole_answer(reader)
        if self._random.random() < 0.5:
            writer.transport.abort()
        writer.close()

    async def _half(self) -> None:
        """Sends a part of a request, and leaves."""
        _, writer = await self._open()
        request = self._request()
        writer.write(request[: self._random.randint(1, min(len(request), 20_000))])
        await asyncio.sleep(self._random.uniform(0.0, 0.05))
        writer.close()

    async def _crawls(self) -> None:
        """Reads a byte now and then, and leaves before the end."""
        loop = asyncio.get_running_loop()
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            raw.setblocking(False)
            await loop.sock_connect(raw, ("127.0.0.1", self._bench.app.port))
            await loop.sock_sendall(raw, self._request())
            for _ in range(self._random.randint(1, 3)):
                async with asyncio.timeout(5):
                    await loop.sock_recv(raw, 1)
                await asyncio.sleep(min(1.0, max(0.0, self._ends - time.monotonic())) * self._random.random())

    async def _pipelines(self) -> None:
        reader, writer = await self._open()
        count = self._random.randint(2, 5)
        writer.write(b"".join(self._request() for _ in range(count)))
        try:
            for _ in range(self._random.randint(0, count)):
                await _whole_answer(reader)
        finally:
            writer.close()


async def _whole_answer(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))


async def run(seconds: float, *, clients: int, seed: int, folder: Path, big: bool = True) -> Left:
    """The whole of it; what is left."""
    settings: dict[str, Any] = {"prefill_deadline_s": 1.0, "first_byte_deadline_s": 1.0, "total_deadline_s": 10.0, "gauge_every_s": 0.2}
    left = Left()
    async with engines("warm") as (warm,), router(folder, table(pd_unit([warm], [warm]))) as bench:
        await bench.ask(chat())  # what a process opens once is open now
    await asyncio.sleep(0.1)
    before_fds = _descriptors()
    async with engines("p1", "p2", "d1", "d2") as (p1, p2, d1, d2):
        units = (pd_unit([p1], [d1], unit="u-1"), pd_unit([p2], [d2], unit="u-2"))
        async with router(folder, table(*units), prefill_inflight=4, queue_limit=20, queue_deadline_s=1.0, **settings) as bench:
            members = [p1, p2, d1, d2]
            chaos = Chaos(bench, members, seed, big=big)
            await chaos.run(min(seconds / 3, 5.0), clients)  # what is made once is made now
            await _quiet(bench)
            gc.collect()
            before_objects = len(gc.get_objects())
            await chaos.run(seconds, clients)
            await _quiet(bench)
            app = bench.app
            left.jobs, left.inflight = len(app.pipeline.jobs), dict(app.stage.inflight)
            left.queued = sum(unit.gate.depth for unit in app.stage.units.values())
            left.places = sum(unit.gate.inflight for unit in app.stage.units.values())
            left.running = [replica.running for replica in app.stage.replicas.values()]
            left.legs, left.unforeseen = len(app.pool.busy), sum(app.failures.values())
            left.counters, left.clients = _counted(bench), chaos.clients
            left.kv = len(p1.held)
            names = ("retried.connect", "retried.cut", "errors.connect", "errors.no-unit", "errors.timeout", "cancelled", "prefill.failed")
            left.kv_lost = sum(left.counters[name] for name in names)
            for engine in members:
                engine.seen.clear()
                engine._used.clear()
            gc.collect()
            left.objects = len(gc.get_objects()) - before_objects
    left.descriptors = await _descriptors_over(before_fds)
    return left


def _counted(bench: Bench) -> Counter[str]:
    """All that the router ever counted; some of it has left with reports."""
    bench.deltas()
    counted: Counter[str] = Counter()
    for series in bench.app.telemetry.all():
        counted.update(series.total_counters)
    return counted


async def _quiet(bench: Bench) -> None:
    """Until all that is in flight has ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(15):
            while bench.app.pipeline.jobs or bench.app.pool.busy:
                await asyncio.sleep(0.05)


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description="break everything around a router at random, and look for what is left")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.clients} clients, {given.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        left = uvloop.run(run(given.seconds, clients=given.clients, seed=given.seed, folder=Path(folder)))
    print(f"clients: {dict(left.clients)}\ncounted: {dict(left.counters)}\nleft: {left}")
    print("clean" if left.clean else "NOT CLEAN")
    return 0 if left.clean else 1


if __name__ == "__main__":
    sys.exit(main())
