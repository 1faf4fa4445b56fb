"""Engines in this process whose prefill pushes KV to a decode that waits for it, as vLLM's do over NIXL and over Mooncake.

As there, a decode says nothing before the KV is there, refuses to wait at an address that is not prefill's, and keeps its blocks when
whoever asked it hangs up: they are free once the KV comes, or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.integration.fake_engine import FakeEngine, Seen


@dataclass
class Fabric:
    """What the engines of one test know of each other."""

    known: dict[str, FakeEngine] = field(default_factory=dict)  # by KV identity
    pushed: dict[str, asyncio.Event] = field(default_factory=dict)  # by what both legs of a try are told
    waiting: set[str] = field(default_factory=set)  # that a decode has blocks for
    names: list[str] = field(default_factory=list)  # of all tries, as prefill heard them

    def event(self, name: str) -> asyncio.Event:
        return self.pushed.setdefault(name, asyncio.Event())

    async def all_free(self) -> None:
        """No decode keeps blocks for KV that has not come."""
        async with asyncio.timeout(10):
            while self.waiting:
                await asyncio.sleep(0.001)


def name_of(seen: Seen) -> str:
    """What the legs of one try have in common."""
    return str(seen.kv.get("transfer_id") or seen.headers["x-request-id"])


class PushingEngine(FakeEngine):
    """One of them; its KV identity is the agent's name for it."""

    def __init__(self, name: str, fabric: Fabric) -> None:
        super().__init__(name)
        self.fabric = fabric
        self.identity = f"e-{name}"
        self.pushes = True  # what it has computed; or lets it lie, as after a lease
        fabric.known[self.identity] = self

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter, text: str) -> bool:
        if not seen.kv.get("do_remote_prefill"):
            return await super()._answer(seen, writer, text)
        peer, kv = self.fabric.known.get(str(seen.kv.get("remote_engine_id"))), seen.kv
        told = {f"http://127.0.0.1:{peer.port + 1}", f"127.0.0.1:{peer.port + 1}"} if peer is not None else set()
        at = kv.get("remote_bootstrap_addr") or f"{kv.get('remote_host')}:{kv.get('remote_port')}"
        if at not in told or ("transfer_id" not in kv and (kv["tp_size"], kv["pp_size"]) != (4, 1)):
            self._whole(writer, 500, b'{"error":{"message":"nobody is there to push"}}')
            await writer.drain()
            return True
        name = name_of(seen)
        self.fabric.waiting.add(name)
        arrival = asyncio.ensure_future(self._arrival(name))  # goes on if the request is cancelled
        await asyncio.shield(arrival)
        return await super()._answer(seen, writer, text)

    async def _arrival(self, name: str) -> None:
        await self.fabric.event(name).wait()
        self.fabric.waiting.discard(name)

    def _prefilled(self, seen: Seen, writer: asyncio.StreamWriter, text: str) -> None:
        name = name_of(seen)
        self.fabric.names.append(name)
        if self.pushes:
            self.fabric.event(name).set()
        self.damage = {"remote_engine_id": self.identity, "remote_port": self.port + 1, "tp_size": 4, "pp_size": 1}
        super()._prefilled(seen, writer, text)


@asynccontextmanager
async def pushing(*names: str) -> AsyncIterator[list[PushingEngine]]:
    """Engines on one fabric."""
    fabric = Fabric()
    made = [PushingEngine(name, fabric) for name in names]
    for engine in made:
        engine.held = made[0].held
        await engine.start()
    try:
        yield made
    finally:
        for engine in made:
            with suppress(asyncio.CancelledError):
                await engine.stop()
        for event in fabric.pushed.values():
            event.set()  # ends what waits still
