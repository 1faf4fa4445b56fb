"""KV from prefill to decode over TCP: prefill keeps a finished prompt's blocks under a lease, decode comes and pulls them.

The side channel speaks lines of JSON, and raw blocks behind the reply to `pull`:

    decode  -> {"op": "hold", "engine_id": .., "request_id": ..}     prefill -> {"ok": true, "shards": 4, "block_bytes": 512}
    decode  -> {"op": "pull", "blocks": [4, 5]}                      prefill -> {"ok": true, "bytes": 1024} + the blocks
    decode  -> {"op": "done"}

`hold` takes the lease off its timer for as long as the connection stands: the connection is the heartbeat, and a decode that dies
or gives up frees the blocks by closing it. A lease can be held once.

SGLang's decode says `meet` and a room instead of `hold`, waits there until prefill is done, and is told the blocks.

As with vLLM nothing but the engine's identity is looked at: who names blocks without a lease, because it is over or was never his,
reads whatever lies there now, and his answer is wrong without a sign.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fleets.engines.sim.faults import FaultBox
from fleets.engines.sim.layout import from_shards
from fleets.engines.sim.metrics import Metrics
from fleets.engines.sim.pool import KvPool
from fleets.engines.sim.sequence import Phase, Remote
from fleets.engines.sim.sequence import Sequence as Running

CONNECT_S = 5.0
REPLY_S = 10.0
MEET_S = 300.0  # SGLang's bootstrap timeout
_LINE_LIMIT = 2**20


class TransferError(Exception):
    """The KV did not come; the text says why."""


@dataclass(slots=True)
class Lease:
    """Blocks that wait for a decode engine."""

    blocks: list[int]
    timer: asyncio.TimerHandle | None


class LeaseBook:
    """Leases by remote request id; each ends by being fetched, by its holder leaving, or by its time running out."""

    def __init__(self, pool: KvPool, metrics: Metrics, lease_s: float, on_change: Callable[[], None]) -> None:
        self._pool, self._metrics, self._lease_s, self._on_change = pool, metrics, lease_s, on_change
        self._open: dict[str, Lease] = {}
        self._awaited: dict[str, asyncio.Event] = {}
        self.held = 0

    def __len__(self) -> int:
        return len(self._open) + self.held

    def keep(self, request_id: str, blocks: list[int]) -> None:
        """Keep references to `blocks` until somebody fetches them."""
        timer = asyncio.get_running_loop().call_later(self._lease_s, self._expire, request_id)
        self._open[request_id] = Lease(blocks, timer)
        if event := self._awaited.get(request_id):
            event.set()

    async def met(self, request_id: str) -> Lease | None:
        """The lease of a request that may not be computed yet; None when it does not come in time."""
        if request_id not in self._open:
            event = self._awaited[request_id] = asyncio.Event()
            try:
                async with asyncio.timeout(MEET_S):
                    await event.wait()
            except TimeoutError:
                return None
            finally:
                del self._awaited[request_id]
        return self.hold(request_id)

    def hold(self, request_id: str) -> Lease | None:
        """Take the lease off its timer for its one fetch; None when there is none, or not any more."""
        lease = self._open.pop(request_id, None)
        if lease is None:
            return None
        if lease.timer is not None:
            lease.timer.cancel()
        self.held += 1
        return lease

    def free(self, lease: Lease) -> None:
        """The end of a held lease."""
        self.held -= 1
        self._release(lease)

    def _expire(self, request_id: str) -> None:
        lease = self._open.pop(request_id, None)
        if lease is not None:
            self._metrics.kv_expired += 1
            self._release(lease)

    def _release(self, lease: Lease) -> None:
        self._pool.release(lease.blocks)
        lease.blocks = []
        self._on_change()


class SideChannel:
    """Prefill's end."""

    def __init__(self, engine_id: str, pool: KvPool, book: LeaseBook, faults: FaultBox, metrics: Metrics) -> None:
        self._engine_id, self._pool, self._book, self._faults, self._metrics = engine_id, pool, book, faults, metrics
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LINE_LIMIT)

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lease: Lease | None = None
        try:
            hello = await _read_line(reader)
            meets, request_id = hello.get("op") == "meet", str(hello.get("request_id"))
            if not meets and hello.get("engine_id") != self._engine_id:
                _write_line(writer, {"ok": False, "error": "no such engine here"})
                return
            lease = await self._book.met(request_id) if meets else self._book.hold(request_id)
            if lease is None and meets:
                _write_line(writer, {"ok": False, "error": "prefill has not come to the room in time"})
                return
            self._metrics.after_expiry += lease is None
            terms = {"ok": True, "shards": self._pool.shards, "block_bytes": self._pool.block_bytes}
            _write_line(writer, terms | ({"blocks": lease.blocks} if meets and lease else {}))
            while (order := await _read_line(reader)).get("op") == "pull":
                self._send(writer, [int(block) for block in order.get("blocks", [])])
                await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side is gone or talks nonsense, or this engine ends: the lease ends below
        finally:
            if lease is not None:
                self._book.free(lease)
            writer.close()

    def _send(self, writer: asyncio.StreamWriter, blocks: list[int]) -> None:
        if not all(0 <= block <= self._pool.blocks for block in blocks):
            _write_line(writer, {"ok": False, "error": "there are no such blocks"})
        elif self._faults.kv_fails():
            _write_line(writer, {"ok": False, "error": "KV transfer failed (fault)"})
        else:
            payload = self._faults.moved(b"".join([self._pool.raw(block) for block in blocks]))
            _write_line(writer, {"ok": True, "bytes": len(payload)})
            writer.write(payload)


class Fetcher:
    """Decode's end: one task per request."""

    def __init__(
        self,
        pool: KvPool,
        faults: FaultBox,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        modelled_s: Callable[[int], float],
        on_done: Callable[[Running], None],
        on_failed: Callable[[Running, str], None],
    ) -> None:
        self._pool, self._faults, self._metrics = pool, faults, metrics
        self._clock, self._modelled_s, self._on_done, self._on_failed = clock, modelled_s, on_done, on_failed
        self._tasks: dict[Running, asyncio.Task[None]] = {}
        self._placed: dict[Running, asyncio.Event] = {}

    def hold(self, sequence: Running, remote: Remote) -> None:
        """Secure a sequence's KV as soon as it arrives."""
        self._placed[sequence] = asyncio.Event()
        self._tasks[sequence] = asyncio.get_running_loop().create_task(self._fetch(sequence, remote))

    def placed(self, sequence: Running) -> None:
        """It has its blocks: go and fill them."""
        event = self._placed.get(sequence)
        if event is None:
            self._on_failed(sequence, "its KV was given up")
        else:
            event.set()

    def drop(self, sequence: Running) -> None:
        """Its client has left."""
        task = self._tasks.get(sequence)
        if task is not None:
            task.cancel()

    async def _fetch(self, sequence: Running, remote: Remote) -> None:
        opened: asyncio.StreamWriter | None = None
        try:
            try:
                async with asyncio.timeout(CONNECT_S):  # not wait_for: before Python 3.12 it can swallow a cancellation
                    reader, writer = await asyncio.open_connection(remote.host, remote.port)
                opened = writer
                op = "hold" if remote.engine_id else "meet"
                _write_line(writer, {"op": op, "engine_id": remote.engine_id, "request_id": remote.request_id})
                terms = await self._answer(reader, REPLY_S if remote.engine_id else MEET_S)
                blocks = remote.blocks if remote.engine_id else tuple(terms["blocks"])
                await self._placed[sequence].wait()
                await self._pull(sequence, blocks, reader, writer, int(terms["shards"]), int(terms["block_bytes"]))
                _write_line(writer, {"op": "done"})
            except (OSError, ValueError, KeyError, asyncio.TimeoutError, asyncio.IncompleteReadError, TransferError) as error:
                self._on_failed(sequence, f"KV from {remote.host}:{remote.port} did not come: {error or type(error).__name__}")
                return
            self._on_done(sequence)
        finally:
            self._tasks.pop(sequence, None)
            self._placed.pop(sequence, None)
            if opened is not None:
                opened.close()

    async def _pull(
        self,
        sequence: Running,
        blocks: Sequence[int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        shards: int,
        block_bytes: int,
    ) -> None:
        """The blocks that this engine does not know yet, in its own layout."""
        started_s = self._clock()
        known = sequence.computed // self._pool.block_tokens
        wanted = blocks[known : len(sequence.blocks)]
        if len(blocks) < len(sequence.blocks):
            raise TransferError(f"it has {len(blocks)} blocks, the prompt takes {len(sequence.blocks)}")
        if block_bytes != self._pool.block_bytes or self._faults.kv_fails():
            raise TransferError("its blocks are of another size" if block_bytes != self._pool.block_bytes else "fault")
        _write_line(writer, {"op": "pull", "blocks": wanted})
        size = int((await self._answer(reader))["bytes"])
        if size != len(wanted) * block_bytes:
            raise TransferError(f"{size} bytes came instead of {len(wanted) * block_bytes}")
        async with asyncio.timeout(REPLY_S):
            payload = self._faults.moved(await reader.readexactly(size))
        if sequence.phase is not Phase.FETCHING:
            return
        view = memoryview(payload)
        for index, block in enumerate(sequence.blocks[known:]):
            self._pool.write(block, from_shards(view[index * block_bytes : (index + 1) * block_bytes], shards))
        self._metrics.xfer_post_time.observe(self._clock() - started_s)
        left_s = self._modelled_s(sequence.prompt_tokens - sequence.computed) - (self._clock() - started_s)
        if left_s > 0:
            await asyncio.sleep(left_s)
        self._count(sequence, self._clock() - started_s, size, len(wanted) * shards)

    def _count(self, sequence: Running, seconds: float, size: int, descriptors: int) -> None:
        self._metrics.xfer_time.observe(seconds)
        self._metrics.xfer_bytes.observe(size)
        self._metrics.xfer_descriptors.observe(descriptors)
        self._metrics.external_queries += sequence.prompt_tokens - sequence.computed
        self._metrics.external_hits += sequence.prompt_tokens - sequence.computed

    async def _answer(self, reader: asyncio.StreamReader, deadline_s: float = REPLY_S) -> dict[str, Any]:
        async with asyncio.timeout(deadline_s):
            reply = await _read_line(reader)
        if not reply.get("ok"):
            raise TransferError(str(reply.get("error", "refused")))
        return reply


def _write_line(writer: asyncio.StreamWriter, message: dict[str, object]) -> None:
    with suppress(OSError):
        writer.write(json.dumps(message).encode() + b"\n")


async def _read_line(reader: asyncio.StreamReader) -> dict[str, Any]:
    """One JSON object; IncompleteReadError at the end of the stream, ValueError when it is none."""
    line = await reader.readuntil(b"\n")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message


def remote_from(params: dict[str, Any]) -> Remote | None:
    """The place of a prompt's KV out of `kv_transfer_params`; None when they do not say enough."""
    groups = params.get("remote_block_ids")
    blocks: Sequence[Any] = groups[0] if isinstance(groups, list) and groups and isinstance(groups[0], list) else groups or []
    try:
        return Remote(
            host=str(params["remote_host"]),
            port=int(params["remote_port"]),
            engine_id=str(params["remote_engine_id"]),
            request_id=str(params["remote_request_id"]),
            blocks=tuple(int(block) for block in blocks),
            tokens=int(params.get("remote_num_tokens") or 0),
            tensor_parallel=int(params.get("tp_size") or 0),
            cached_tokens=int(params.get("remote_prefill_cached_tokens") or 0),
        )
    except (KeyError, TypeError, ValueError):
        return None
