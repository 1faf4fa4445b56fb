"""One choice of one request, from its arrival to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from fleets.engines.sim.layout import chain_hashes
from fleets.engines.sim.tokens import TOKEN_BYTES, words_packed
from fleets.engines.sim.voice import Voice


class Finish(StrEnum):
    """Why a sequence ended, in OpenAI's words and vLLM's two more."""

    STOP = "stop"  # the model had said what it had to say, or a stop string came
    LENGTH = "length"  # max_tokens or the context ended it
    ABORT = "abort"  # the client left, or the engine was told to end
    ERROR = "error"  # its KV could not be loaded


class Phase(StrEnum):
    """Where a sequence is."""

    WAITING = "waiting"  # for blocks and a place in the batch
    FETCHING = "fetching"  # has blocks, its KV is under way
    PREFILLING = "prefilling"  # its KV is being computed here
    RUNNING = "running"  # gets a token with every step
    DONE = "done"


class Sink(Protocol):
    """Where a sequence's tokens go."""

    def token(self, sequence: Sequence, word: int, finish: Finish | None) -> bool:
        """The next token, and why it is the last one if it is. True asks to stop here."""

    def failed(self, sequence: Sequence, detail: str) -> None:
        """It ended without an answer."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Where the KV of a prompt lies, out of `kv_transfer_params`."""

    host: str
    port: int
    engine_id: str
    request_id: str
    blocks: tuple[int, ...]
    tokens: int
    tensor_parallel: int
    cached_tokens: int


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state; `computed` counts tokens whose KV is in this engine's blocks, `times` are monotonic seconds."""

    sink: Sink
    packed: bytes
    block_tokens: int
    max_tokens: int
    limited: bool = True  # whether the client set max_tokens
    min_tokens: int = 0
    ignore_eos: bool = False
    choice: int = 0
    keep_kv: bool = False  # another engine will fetch it
    remote: Remote | None = None
    phase: Phase = Phase.WAITING
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    words: bytearray = field(default_factory=bytearray)
    computed: int = 0
    cached: int = 0
    voice: Voice | None = None
    arrived_s: float = 0.0
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0

    def __post_init__(self) -> None:
        self.hashes = chain_hashes(self.packed, self.block_tokens)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.packed) // TOKEN_BYTES

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.packed) // TOKEN_BYTES + len(self.words)

    @property
    def blocks_needed(self) -> int:
        """Blocks for all tokens so far."""
        return -(-self.tokens // self.block_tokens)

    def packed_from(self, start: int) -> bytes:
        """Packed tokens from the `start`-th on, generated ones included."""
        prompt = len(self.packed) // TOKEN_BYTES
        if start >= prompt:
            return words_packed(self.words[start - prompt :])
        return self.packed[start * TOKEN_BYTES :] + words_packed(self.words)
