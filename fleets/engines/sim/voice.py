"""What a simulated model says: a deterministic function of the KV bytes that it holds, so that wrong KV is heard."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b, shake_128

_BATCH = 64  # tokens drawn from one hash


def kv_seed(parts: Iterable[bytes], choice: int) -> bytes:
    """Digest of a sequence's KV, token-major, in order; the n-th choice of a request is another voice."""
    digest = blake2b(digest_size=16, salt=choice.to_bytes(16, "little"))
    for part in parts:
        digest.update(part)
    return digest.digest()


class Voice:
    """A stream of word indices. Each batch is drawn from the seed and from all words before it."""

    __slots__ = ("_batch", "_index", "_state", "seed")

    def __init__(self, seed: bytes) -> None:
        self.seed = seed
        self._state = seed
        self._batch = shake_128(seed).digest(_BATCH)
        self._index = 0

    def next(self) -> int:
        """The next word, as an index into tokens.WORDS."""
        if self._index == _BATCH:
            self._state = blake2b(self._batch, digest_size=16, key=self._state).digest()
            self._batch = shake_128(self._state).digest(_BATCH)
            self._index = 0
        self._index += 1
        return self._batch[self._index - 1]

    def skip(self, words: int) -> None:
        """Go on behind `words` words that were said before."""
        for _ in range(words):
            self.next()


def natural_tokens(seed: bytes) -> int:
    """How long an answer is when nobody limits it: 64 to 255 tokens."""
    return 64 + seed[0] % 192
