"""The paged KV memory: no block has two owners, references balance, and the prefix cache forgets the oldest."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from fleets.domain.types import Faults
from fleets.engines.sim.faults import FaultBox, Share
from fleets.engines.sim.layout import KV_BYTES, chain_hashes
from fleets.engines.sim.pool import KvPool

BLOCK_TOKENS = 4
BLOCK_BYTES = BLOCK_TOKENS * KV_BYTES


def pool_of(blocks: int, *, tensor_parallel: int = 1, caching: bool = True) -> KvPool:
    return KvPool(blocks=blocks, block_tokens=BLOCK_TOKENS, tensor_parallel=tensor_parallel, caching=caching)


class PoolMachine(RuleBasedStateMachine):
    """Sequences come with shared prefixes, write, and go; a copy of what each should read is kept beside."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool_of(8, tensor_parallel=2)
        self.live: list[tuple[list[int], list[bytes]]] = []

    @rule(target=sequences, tokens=st.lists(st.sampled_from([b"aaaa", b"bbbb"]), min_size=1, max_size=20))
    def arrive(self, tokens: list[bytes]) -> object:
        packed = b"".join(tokens)
        hashes = chain_hashes(packed, BLOCK_TOKENS)
        before = self.pool.held
        known = self.pool.match(hashes)
        fresh = self.pool.allocate(-(-len(tokens) // BLOCK_TOKENS) - len(known))
        if fresh is None:
            self.pool.release(known)
            assert self.pool.held == before
            return multiple()
        blocks = known + fresh
        content = [(block_hash * 2)[:BLOCK_BYTES] for block_hash in hashes] + [b"\x07" * BLOCK_BYTES] * (len(blocks) - len(hashes))
        for index in range(len(known), len(blocks)):
            self.pool.write(blocks[index], content[index])
            if index < len(hashes):
                self.pool.register(blocks[index], hashes[index])
        sequence = (blocks, content)
        self.live.append(sequence)
        return sequence

    @rule(sequence=consumes(sequences))
    def leave(self, sequence: tuple[list[int], list[bytes]]) -> None:
        self.live = [other for other in self.live if other is not sequence]
        self.pool.release(sequence[0])

    @invariant()
    def everybody_reads_what_it_should(self) -> None:
        for blocks, content in self.live:
            assert [self.pool.read(block) for block in blocks] == content

    @invariant()
    def references_balance(self) -> None:
        assert self.pool.held == len({block for blocks, _ in self.live for block in blocks})
        assert self.pool.held + self.pool.available() == 8


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase


def test_the_oldest_unused_content_goes_first() -> None:
    pool = pool_of(2)
    first, second = chain_hashes(b"a" * 16, BLOCK_TOKENS), chain_hashes(b"b" * 16, BLOCK_TOKENS)
    for hashes in (first, second):
        blocks = pool.allocate(1)
        assert blocks is not None
        pool.register(blocks[0], hashes[0])
        pool.release(blocks)
    pool.allocate(1)
    assert pool.match(first) == []
    assert len(pool.match(second)) == 1


def test_without_prefix_caching_nothing_is_found_again() -> None:
    pool = pool_of(2, caching=False)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.register(blocks[0], b"hash")
    pool.release(blocks)
    assert pool.match([b"hash"]) == []


@pytest.mark.parametrize(("ratio", "hits"), [(0.0, 0), (0.01, 10), (0.25, 250), (1.0, 1000)])
def test_fault_ratios_are_exact(ratio: float, hits: int) -> None:
    share = Share()
    assert sum(share.hit(ratio) for _ in range(1000)) == hits


def test_a_crash_comes_after_its_requests_and_not_before() -> None:
    crashes: list[int] = []
    box = FaultBox(Faults(crash_after_requests=2), crash=crashes.append)
    assert [box.request_arrives(), box.request_arrives()] == ["", ""]
    assert crashes == []
    box.request_arrives()
    assert crashes == [9]


def test_corrupted_kv_is_of_the_same_size_and_no_byte_is_right() -> None:
    moved = FaultBox(Faults(kv_corrupt=True)).moved(bytes(range(256)))
    assert len(moved) == 256
    assert all(byte != index for index, byte in enumerate(moved))
