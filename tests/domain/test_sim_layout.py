"""KV bytes: stable under the way they are filled, equal under every tensor parallelism, different for different tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleets.engines.sim.layout import KV_BYTES, ROOT, block_kv, chain_hashes, from_shards, shard_count, to_shards
from fleets.engines.sim.tokens import TOKEN_BYTES, WORDS, count, encode_chat, encode_ids, encode_text, unpack_ids, words_packed, words_text
from fleets.engines.sim.voice import Voice, kv_seed

blocks = st.integers(1, 16).flatmap(lambda tokens: st.binary(min_size=tokens * TOKEN_BYTES, max_size=tokens * TOKEN_BYTES))


@given(st.integers(1, 64), st.integers(1, 32))
def test_shards_come_back_as_they_were(tensor_parallel: int, tokens: int) -> None:
    token_major = bytes(index % 251 for index in range(tokens * KV_BYTES))
    shards = shard_count(tensor_parallel)
    assert from_shards(to_shards(token_major, shards), shards) == token_major


@pytest.mark.parametrize(("ranks", "shards"), [(1, 1), (2, 2), (4, 4), (6, 2), (8, 8), (64, 8)])
def test_shards_divide_a_token(ranks: int, shards: int) -> None:
    assert shard_count(ranks) == shards


def test_a_rank_holds_its_own_slice_of_every_token() -> None:
    assert to_shards(bytes(range(16)), 2) == bytes([0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15])


@given(blocks, st.binary(min_size=16, max_size=16))
def test_a_block_filled_token_by_token_is_the_block_filled_at_once(packed: bytes, parent: bytes) -> None:
    whole = block_kv(parent, packed)
    for tokens in range(1, count(packed)):
        assert block_kv(parent, packed[: tokens * TOKEN_BYTES]) == whole[: tokens * KV_BYTES]


@given(st.binary(min_size=64, max_size=400), st.integers(0, 15))
def test_a_change_anywhere_changes_all_hashes_from_there_on(raw: bytes, where: int) -> None:
    packed = raw[: len(raw) // TOKEN_BYTES * TOKEN_BYTES]
    changed = packed[:where] + bytes([packed[where] ^ 1]) + packed[where + 1 :]
    assert all(a != b for a, b in zip(chain_hashes(packed, 4), chain_hashes(changed, 4), strict=True))
    assert block_kv(ROOT, packed[:16]) != block_kv(ROOT, changed[:16])


@given(st.text(max_size=200), st.text(max_size=50))
def test_a_prefix_of_text_is_a_prefix_of_tokens(head: str, tail: str) -> None:
    whole = len(head.encode("utf-8", "surrogatepass")) // TOKEN_BYTES * TOKEN_BYTES
    assert encode_text(head + tail)[:whole] == encode_text(head)[:whole]
    assert count(encode_text(head)) == -(-len(head.encode("utf-8", "surrogatepass")) // TOKEN_BYTES)


def test_token_ids_survive() -> None:
    assert unpack_ids(encode_ids([1, 2, 2**32 - 1])) == [1, 2, 2**32 - 1]


def test_an_answer_that_comes_back_as_history_is_the_tokens_that_were_generated() -> None:
    words = [3, 200, 41]
    first = encode_chat([{"role": "user", "content": "good morning"}])
    again = encode_chat([{"role": "user", "content": "good morning"}, {"role": "assistant", "content": words_text(words)}])
    assert again.startswith(first + words_packed(words))


def test_words_are_different_and_one_token_each() -> None:
    assert len(set(WORDS)) == 256
    assert {len(word) for word in WORDS} == {TOKEN_BYTES}


@given(st.binary(min_size=8, max_size=64), st.integers(0, 200))
def test_a_voice_goes_on_where_it_was(kv: bytes, said: int) -> None:
    seed = kv_seed([kv], 0)
    through, resumed = Voice(seed), Voice(seed)
    words = [through.next() for _ in range(said + 5)]
    resumed.skip(said)
    assert [resumed.next() for _ in range(5)] == words[said:]


def test_other_kv_and_other_choices_have_other_voices() -> None:
    def says(seed: bytes) -> list[int]:
        voice = Voice(seed)
        return [voice.next() for _ in range(8)]

    assert says(kv_seed([b"a" * 64], 0)) == says(kv_seed([b"a" * 32, b"a" * 32], 0))
    assert len({tuple(says(kv_seed([kv], choice))) for kv in (b"a" * 64, b"b" * 64) for choice in (0, 1)}) == 4
