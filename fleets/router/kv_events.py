"""What engines tell of their KV cache (vLLM's `--kv-events-config`, which SGLang shares), and what can be said of it in tokens.

A batch is msgpack: `[time, [event, ...], rank]`, an event `["BlockStored", hashes, parent, token ids, block size, ...]`,
`["BlockRemoved", hashes, ...]` or `["AllBlocksCleared"]` (vllm/distributed/kv_events.py). Batches are numbered from 0. Blocks are named by
hashes of tokens behind the engine's chat template, which a router does not have, so single blocks cannot be told apart here;
how many an engine holds can.
"""

from __future__ import annotations

import msgspec


class BlockStored(msgspec.Struct, array_like=True, tag=True, gc=False):
    """Blocks that can be found from now on. Token ids are left as they came: nobody here reads them."""

    block_hashes: list[msgspec.Raw]
    parent_block_hash: msgspec.Raw
    token_ids: msgspec.Raw
    block_size: int


class BlockRemoved(msgspec.Struct, array_like=True, tag=True, gc=False):
    """Blocks that were given to somebody else."""

    block_hashes: list[msgspec.Raw]


class AllBlocksCleared(msgspec.Struct, array_like=True, tag=True, gc=False):
    """The cache was reset."""


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]


_BATCH = msgspec.msgpack.Decoder(_Batch)
_EVENT = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared)


class Holding:
    """How much one engine holds, as far as its events say. It is known from its first event on, or from the last time it was cleared."""

    __slots__ = ("_block_tokens", "_known", "_tokens", "cleared", "due", "shrunk", "unread")

    def __init__(self) -> None:
        self.due: int | None = None  # number of the next batch; None before the first
        self.cleared = self.shrunk = False  # by the batch that was taken last: all of it, or some
        self.unread = 0  # events of a kind that is not known here
        self._tokens = self._block_tokens = 0
        self._known = False

    @property
    def tokens(self) -> int | None:
        """That it holds at most; None while that is not known. Blocks that lie in two tiers count twice."""
        return max(0, self._tokens) if self._known else None

    def missed(self, number: int) -> bool:
        """Whether batches before this one have not come. Of an engine that is heard for the first time it is all before."""
        return number > (0 if self.due is None else self.due)

    def lose(self) -> None:
        """Batches are gone for good: how much it holds is not known from here on."""
        self._known, self._tokens, self.due = False, 0, None

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
                event = _EVENT.decode(raw)
            except msgspec.ValidationError:
                self.unread += 1
                continue
            if isinstance(event, BlockStored):
                self._block_tokens = event.block_size
                self._tokens += len(event.block_hashes) * event.block_size
            elif isinstance(event, BlockRemoved):
                self._tokens -= len(event.block_hashes) * self._block_tokens
                self.shrunk = True
            else:
                self._tokens, self._known, self.cleared = 0, True, True
