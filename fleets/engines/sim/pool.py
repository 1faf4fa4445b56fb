"""The paged KV memory of one engine: real bytes, counted references, and a prefix cache that forgets what was used longest ago."""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from fleets.engines.sim.layout import KV_BYTES, from_shards, shard_count, to_shards


class Told(Protocol):
    """Who is told what can be found in the prefix cache."""

    def stored(self, block_hash: bytes) -> None:
        """A block, from now on."""

    def removed(self, block_hash: bytes) -> None:
        """A block, no more."""

    def cleared(self) -> None:
        """Nothing, any more."""


class KvPool:
    """Blocks of `block_tokens` tokens by number. A block is free, held (referenced), or cached (unreferenced, its content still known)."""

    def __init__(self, *, blocks: int, block_tokens: int, tensor_parallel: int, caching: bool = True) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.block_bytes = block_tokens * KV_BYTES
        self.shards = shard_count(tensor_parallel)
        self._caching = caching
        self._memory = mmap.mmap(-1, (blocks + 1) * self.block_bytes)  # pages that were never written cost nothing
        self._references: dict[int, int] = {}
        self._hash_of: list[bytes | None] = [None] * (blocks + 1)
        self._block_of: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # unreferenced ones with content, the oldest first
        self._recycled: list[int] = []
        self._next = 1  # block 0 stays unused, as in vLLM
        self.told: Told | None = None

    @property
    def held(self) -> int:
        """Blocks that some request or lease refers to."""
        return len(self._references)

    @property
    def use_ratio(self) -> float:
        """Held share of all blocks; cached ones count as free, because they can be taken at any time."""
        return self.held / self.blocks

    def available(self) -> int:
        """How many blocks `allocate` could give out now."""
        return self.blocks - self.held

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks that hold the longest known prefix of a chain of block hashes, now referenced by the caller."""
        found: list[int] = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            found.append(block)
        for block in found:
            self._references[block] = self._references.get(block, 0) + 1
            self._cached.pop(block, None)
        return found

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks of undefined content, referenced by the caller; None when there are not so many."""
        if count > self.available():
            return None
        blocks = [self._take() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each. The tail goes first to the forgotten, since a prefix is of no use without its head."""
        for block in reversed(blocks):
            left = self._references[block] - 1
            if left:
                self._references[block] = left
                continue
            del self._references[block]
            if self._hash_of[block] is not None:
                self._cached[block] = None
            else:
                self._recycled.append(block)

    def register(self, block: int, block_hash: bytes) -> None:
        """Let later requests find a full block. The first holder of some content keeps the entry."""
        if self._caching and block_hash not in self._block_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash
            if self.told is not None:
                self.told.stored(block_hash)

    def clear(self) -> bool:
        """Forget all content; False, and nothing done, while some block is held."""
        if self._references:
            return False
        for block in self._cached:
            self._hash_of[block] = None
        self._recycled += self._cached
        self._cached.clear()
        self._block_of.clear()
        if self.told is not None:
            self.told.cleared()
        return True

    def write(self, block: int, token_major: bytes) -> None:
        """Fill a block from its start, and clear the rest of it."""
        padded = token_major + bytes(self.block_bytes - len(token_major))
        self._memory[block * self.block_bytes : (block + 1) * self.block_bytes] = to_shards(padded, self.shards)

    def read(self, block: int) -> bytes:
        """Token-major bytes of a whole block."""
        return from_shards(self.raw(block), self.shards)

    def raw(self, block: int) -> bytes:
        """A whole block as its ranks lay it out."""
        return self._memory[block * self.block_bytes : (block + 1) * self.block_bytes]

    def _take(self) -> int:
        if self._recycled:
            return self._recycled.pop()
        if self._next <= self.blocks:
            self._next += 1
            return self._next - 1
        block, _ = self._cached.popitem(last=False)
        block_hash, self._hash_of[block] = self._hash_of[block], None
        if block_hash is not None:
            del self._block_of[block_hash]
            if self.told is not None:
                self.told.removed(block_hash)
        return block
