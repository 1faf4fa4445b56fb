"""What the KV cache holds, told over ZeroMQ as vLLM does with `--kv-events-config`: numbered batches, and a socket that replays them.

Token ids are left out of the events; the simulated tokenizer's would tell nobody anything.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from denvweb.core.errors import UnavailableError

if TYPE_CHECKING:
    import zmq.asyncio

TOPIC = b"kv-events"
KEPT_BATCHES = 10_000  # that can be asked for again: vLLM's buffer_steps
END = (-1).to_bytes(8, "big", signed=True)
_MEDIUM = "GPU"


class KvEvents:
    """Collects what happens in one turn of the loop into a batch."""

    def __init__(self, host: str, port: int, replay_port: int, *, block_tokens: int, kept: int = KEPT_BATCHES) -> None:
        """UnavailableError without the library, OSError where a port is taken."""
        try:
            import zmq.asyncio  # not installed everywhere
        except ImportError as error:
            raise UnavailableError("KV events need a library: pip install '.[kv-events]' in denv's folder") from error
        self._block_tokens = block_tokens
        self._events: list[dict[str, Any]] = []
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._number = 0
        self._context = zmq.asyncio.Context()
        self._publisher = self._bound(zmq.PUB, host, port)
        self._replayer = self._bound(zmq.ROUTER, host, replay_port) if replay_port else None
        self._replaying = asyncio.get_running_loop().create_task(self._replay(self._replayer)) if self._replayer else None

    def _bound(self, kind: int, host: str, port: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.linger = 0
        try:
            socket.bind(f"tcp://{host}:{port}")
        except Exception:
            self._context.destroy(linger=0)
            raise
        return socket

    def stored(self, block_hash: bytes) -> None:
        """A block can be found from now on."""
        self._tell("BlockStored", block_hashes=[block_hash], token_ids=[], block_size=self._block_tokens, medium=_MEDIUM, group_idx=0)

    def removed(self, block_hash: bytes) -> None:
        """A block was given to somebody else."""
        self._tell("BlockRemoved", block_hashes=[block_hash], medium=_MEDIUM, group_idx=0)

    def cleared(self) -> None:
        """Nothing can be found any more."""
        self._tell("AllBlocksCleared")

    def _tell(self, kind: str, **fields: Any) -> None:
        if not self._events:
            asyncio.get_running_loop().call_soon(self._publish)
        self._events.append({"type": kind} | fields)

    def _publish(self) -> None:
        events, self._events = self._events, []
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._batches.append((self._number, payload))
        self._publisher.send_multipart([TOPIC, self._number.to_bytes(8, "big"), payload])
        self._number += 1

    async def _replay(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            client, _, first = await socket.recv_multipart()
            for number, payload in list(self._batches):
                if number >= int.from_bytes(first, "big"):
                    await socket.send_multipart([client, b"", TOPIC, number.to_bytes(8, "big"), payload])
            await socket.send_multipart([client, b"", b"", END, b""])

    def close(self) -> None:
        """Tell nothing more."""
        if self._replaying is not None:
            self._replaying.cancel()
        self._context.destroy(linger=0)
