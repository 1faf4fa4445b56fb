"""Listens to the KV events of the engines that publish them, and keeps the prefix index to what they hold.

ZeroMQ's publishers wait for nobody: what a slow or new subscriber misses it asks for at the engine's replay socket, which keeps the
newest thousands of batches. What that has no longer is lost, and then nothing is believed of that engine any more.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fleets.router.kv_events import Holding
from fleets.router.policy import ReplicaState, Stage

if TYPE_CHECKING:
    import zmq.asyncio

log = logging.getLogger("fleets.router.kv_events")

REPLAY_S = 2.0  # for each batch of a replay to come
LIMIT_AFTER_S = 0.1  # after an eviction: answers overtake events, and what was just computed may not be told of yet
AGAIN_S = 1.0  # after a listener ended by a failure
_END = (-1).to_bytes(8, "big", signed=True)

Key = tuple[str, str, str, int]  # replica, engine id, host, port


class KvListener:
    """One task for each engine that tells; none, and no library, where no engine does."""

    def __init__(self, stage: Stage, tokens_per_byte: Callable[[], float]) -> None:
        self._stage = stage
        self._tokens_per_byte = tokens_per_byte
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by replica
        self._context: zmq.asyncio.Context | None = None
        self.lacks = False  # the library
        self.batches = self.lost = 0

    def look(self) -> None:
        """Begin and end listening, after a new table."""
        wanted = {_key(replica): replica for replica in self._stage.replicas.values() if replica.spec.events_port}
        for key in self._tasks.keys() - wanted.keys():
            self._tasks.pop(key).cancel()
        if not wanted or not self._library():
            return
        for key, replica in wanted.items():
            if key not in self._tasks:
                self._stage.index.track(replica.name, tells=True)
                self._tasks[key] = task = asyncio.get_running_loop().create_task(self._listen_on(replica))
                task.add_done_callback(functools.partial(self._ended, key))

    async def close(self) -> None:
        """End all."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for timer in self._timers.values():
            timer.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _library(self) -> bool:
        if self._context is None and not self.lacks:
            try:
                import zmq.asyncio  # not installed everywhere
            except ImportError:
                self.lacks = True
                log.warning("KV events are not heard, the library is not installed: pip install '.[kv-events]' in denv's folder")
            else:
                self._context = zmq.asyncio.Context()
        return self._context is not None

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if (timer := self._timers.pop(key[0], None)) is not None:
            timer.cancel()
        if not any(other[0] == key[0] for other in self._tasks):
            self._stage.index.track(key[0], tells=False)
        if not task.cancelled() and task.exception() is not None:
            log.error("listening to the KV events of replica %s failed", key[0], exc_info=task.exception())

    async def _listen_on(self, replica: ReplicaState) -> None:
        import zmq

        while True:
            holding = Holding()
            try:
                await self._listen(replica, holding)
            except (zmq.ZMQError, ValueError, msgspec.DecodeError) as error:
                self._lose(replica, holding, f"{type(error).__name__}: {error}")
            await asyncio.sleep(AGAIN_S)

    async def _listen(self, replica: ReplicaState, holding: Holding) -> None:
        import zmq

        assert self._context is not None
        with self._context.socket(zmq.SUB) as socket:
            socket.connect(f"tcp://{replica.spec.host}:{replica.spec.events_port}")
            socket.subscribe(b"")
            while True:
                _, number, payload = await socket.recv_multipart()
                await self._heard(replica, holding, int.from_bytes(number, "big"), payload)

    async def _heard(self, replica: ReplicaState, holding: Holding, number: int, payload: bytes) -> None:
        if holding.missed(number):
            first = holding.due is None
            await self._replay(replica, holding)
            if holding.missed(number) and not first:
                self._lose(replica, holding, f"batches before {number} are gone")
        self._take(replica, holding, number, payload)

    async def _replay(self, replica: ReplicaState, holding: Holding) -> None:
        """Ask for what was missed, and take it as far as it follows on."""
        import zmq

        if not replica.spec.replay_port or self._context is None:
            return
        with self._context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(f"tcp://{replica.spec.host}:{replica.spec.replay_port}")
            await socket.send_multipart([b"", (holding.due or 0).to_bytes(8, "big")])
            try:
                while True:
                    *_, number, payload = await asyncio.wait_for(socket.recv_multipart(), REPLAY_S)  # newer ones say the topic too
                    if number == _END or holding.missed(int.from_bytes(number, "big")):
                        return
                    self._take(replica, holding, int.from_bytes(number, "big"), payload)
            except TimeoutError:
                log.warning("replica %s replays nothing within %g s", replica.name, REPLAY_S)

    def _take(self, replica: ReplicaState, holding: Holding, number: int, payload: bytes) -> None:
        holding.take(number, payload)
        self.batches += 1
        if holding.cleared:
            self._stage.index.forget(replica.name)
        if holding.shrunk and replica.name not in self._timers:
            self._timers[replica.name] = asyncio.get_running_loop().call_later(LIMIT_AFTER_S, self._limit, replica.name, holding)

    def _limit(self, name: str, holding: Holding) -> None:
        del self._timers[name]
        if (tokens := holding.tokens) is not None:
            self._stage.index.limit(name, tokens / self._tokens_per_byte())

    def _lose(self, replica: ReplicaState, holding: Holding, why: str) -> None:
        self.lost += 1
        log.warning("KV events of replica %s are lost (%s): what it holds is not known any more", replica.name, why)
        holding.lose()
        self._stage.index.forget(replica.name)


def _key(replica: ReplicaState) -> Key:
    return replica.name, replica.engine_id, replica.spec.host, replica.spec.events_port
