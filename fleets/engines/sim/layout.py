"""KV bytes: what they are made of, and how tensor-parallel ranks lay them out.

A token has 8 bytes of KV, a scaled-down stand-in (times are reckoned with the model's true bytes per token). "Token-major" is one
token after another; "sharded" is shard after shard, each holding its share of every token of the block, as ranks of a
tensor-parallel group do. With more ranks than bytes the shards are replicas, as with one KV head.
"""

from __future__ import annotations

from hashlib import blake2b, shake_128
from math import gcd
from typing import Literal

from fleets.engines.sim.tokens import TOKEN_BYTES

KV_BYTES = 8  # of one token
_ITEM_FORMAT: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
ROOT = b"\0" * 16  # what stands before the first block


def shard_count(tensor_parallel: int) -> int:
    """Distinct shards of a group of ranks: what divides a token's bytes evenly."""
    return gcd(tensor_parallel, KV_BYTES)


def chain_hashes(packed: bytes, block_tokens: int, parent: bytes = ROOT) -> list[bytes]:
    """A hash for each full block of packed tokens, over all tokens up to its end."""
    size = block_tokens * TOKEN_BYTES
    hashes: list[bytes] = []
    for start in range(0, len(packed) - size + 1, size):
        parent = blake2b(packed[start : start + size], digest_size=16, key=parent).digest()
        hashes.append(parent)
    return hashes


def block_kv(parent: bytes, packed: bytes) -> bytes:
    """Token-major KV of up to one block of packed tokens behind `parent`'s chain.

    A token's KV depends on all blocks before its own and on itself, so a block filled token by token holds the same bytes as one
    filled at once.
    """
    tokens = len(packed) // TOKEN_BYTES
    spread = bytearray(tokens * KV_BYTES)
    halves, source = memoryview(spread).cast("I"), memoryview(packed).cast("I")
    halves[0::2] = source
    halves[1::2] = source
    stream = shake_128(parent).digest(len(spread))
    return (int.from_bytes(spread, "little") ^ int.from_bytes(stream, "little")).to_bytes(len(spread), "little")


def to_shards(token_major: bytes, shards: int) -> bytes:
    """Sharded layout of a block's token-major bytes."""
    if shards == 1:
        return token_major
    items = memoryview(token_major).cast(_ITEM_FORMAT[KV_BYTES // shards])
    return b"".join([items[shard::shards].tobytes() for shard in range(shards)])


def from_shards(sharded: bytes | memoryview, shards: int) -> bytes:
    """Token-major bytes of a block in sharded layout."""
    if shards == 1:
        return bytes(sharded)
    width = KV_BYTES // shards
    out = bytearray(len(sharded))
    items, source = memoryview(out).cast(_ITEM_FORMAT[width]), memoryview(sharded).cast(_ITEM_FORMAT[width])
    each = len(items) // shards
    for shard in range(shards):
        items[shard::shards] = source[shard * each : (shard + 1) * each]
    return bytes(out)
