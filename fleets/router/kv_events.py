"""What engines tell of their KV cache (vLLM's `--kv-events-config`, which SGLang shares), and what can be said of it in tokens.

A batch is msgpack, `[time, [event, ...], rank]`, and numbered from 0. An event is a map with its class under `type` (vLLM from 0.32 on),
or an array that begins with it (vLLM before, SGLang): `BlockStored`, `BlockRemoved` or `AllBlocksCleared` (vllm/distributed/kv_events.py).
Blocks that are used again are told as stored again. They are named by hashes of tokens behind the engine's chat template, which a
router does not have, so a prompt's blocks cannot be told from others here; how many an engine holds can.
"""

from __future__ import annotations

import msgspec

BlockHash = int | bytes
_FIRST_GROUP = (None, 0)  # layers of one kind; models with several have each block once for each kind


class BlockStored(msgspec.Struct, tag=True, gc=False):
    """Blocks that can be found from now on. Token ids are skipped: nobody here reads them."""

    block_hashes: list[BlockHash]
    block_size: int
    medium: str | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, gc=False):
    """Blocks that were given to somebody else."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """The cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class _StoredRow(msgspec.Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: list[BlockHash]
    parent_block_hash: msgspec.Raw
    token_ids: msgspec.Raw
    block_size: int
    lora_id: msgspec.Raw = msgspec.Raw()
    medium: str | None = None


class _RemovedRow(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: list[BlockHash]
    medium: str | None = None


class _ClearedRow(msgspec.Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]


_BATCH = msgspec.msgpack.Decoder(_Batch)
_MAP: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_ROW = msgspec.msgpack.Decoder(_StoredRow | _RemovedRow | _ClearedRow)


def event_of(raw: msgspec.Raw) -> Event:
    """One event in either form; msgspec.ValidationError when it is of no kind that is known here."""
    first = memoryview(raw)[0]
    if first >> 4 == 0x8 or first in (0xDE, 0xDF):  # msgpack's maps
        return _MAP.decode(raw)
    row = _ROW.decode(raw)
    if isinstance(row, _StoredRow):
        return BlockStored(row.block_hashes, row.block_size, row.medium)
    return BlockRemoved(row.block_hashes, row.medium) if isinstance(row, _RemovedRow) else AllBlocksCleared()


class Holding:
    """How much one engine holds, as far as its events say. It is known from its first event on, or from the last time it was cleared."""

    __slots__ = ("_block_tokens", "_blocks", "_known", "cleared", "due", "shrunk", "unread")

    def __init__(self) -> None:
        self.due: int | None = None  # number of the next batch; None before the first
        self.cleared = self.shrunk = False  # by the batch that was taken last: all of it, or some
        self.unread = 0  # events of a kind that is not known here
        self._blocks: set[int] = set()  # hashes of where and what
        self._block_tokens = 0
        self._known = False

    @property
    def tokens(self) -> int | None:
        """That it holds at most; None while that is not known. A block that lies in two tiers counts twice."""
        return len(self._blocks) * self._block_tokens if self._known else None

    def missed(self, number: int) -> bool:
        """Whether batches before this one have not come. Of an engine that is heard for the first time it is all before."""
        return number > (0 if self.due is None else self.due)

    def lose(self) -> None:
        """Batches are gone for good: how much it holds is not known from here on."""
        self._known, self.due = False, None
        self._blocks.clear()

    def take(self, number: int, payload: bytes) -> None:
        """The next batch, or one that was taken already. msgspec.DecodeError when it is none."""
        self.cleared = self.shrunk = False
        if self.due is not None and number < self.due:
            return
        batch = _BATCH.decode(payload)
        self._known = self._known or number == 0
        self.due = number + 1
        for raw in batch.events:
            try:
                self._apply(event_of(raw))
            except msgspec.ValidationError:
                self.unread += 1

    def _apply(self, event: Event) -> None:
        if isinstance(event, AllBlocksCleared):
            self._blocks.clear()
            self._known = self.cleared = True
        elif event.group_idx in _FIRST_GROUP:
            names = {hash((event.medium, block)) for block in event.block_hashes}
            if isinstance(event, BlockStored):
                self._block_tokens = max(self._block_tokens, event.block_size)  # some engines name parts of blocks too
                self._blocks |= names
            else:
                self._blocks -= names
                self.shrunk = True
