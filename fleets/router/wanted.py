"""A request as the choice of its way sees it: its prompt, its session, and what it must keep away from."""

from __future__ import annotations

from fleets.router.client import Client
from fleets.router.heads import RequestHead
from fleets.router.openai import Ask
from fleets.router.policy import Pin
from fleets.router.prefix import Blocks, blocks_of
from fleets.router.reply import Reply
from fleets.router.services import Services

EXACT_TOKENS_PER_BYTE = 0.25  # token ids are four bytes each
_NONE: frozenset[str] = frozenset()


class Wanted(Reply):
    """See `policy.Want`."""

    __slots__ = ("_blocks", "avoid", "only", "pin", "release", "samples", "session_point", "tokens_per_byte")

    def __init__(self, services: Services, head: RequestHead, client: Client, ask: Ask, request_id: bytes, start_s: float) -> None:
        Reply.__init__(self, head, client, ask, request_id, start_s)
        self.pin: Pin | None = None
        self.only: str | None = None  # a release that denv tries out with it; None for users' requests
        self.avoid = _NONE  # replicas that failed this request already
        self.release: str | None = None  # picked for it already: a second try is not a second request
        self.samples = ask.samples
        self.session_point: float | None = None
        self.tokens_per_byte = services.ratio.value if ask.exact_tokens is None else EXACT_TOKENS_PER_BYTE
        self._blocks: Blocks | None = None

    def counted(self, tokens: int) -> None:
        """The model's own tokenizer has counted the prompt."""
        self.ask.exact_tokens = tokens
        self.tokens_per_byte = tokens / max(1, len(self.ask.prompt))

    @property
    def made_here(self) -> bool:
        """Made by denv, and never in users' figures."""
        return self.pin is not None or self.only is not None

    @property
    def blocks(self) -> Blocks:
        """The prompt's hashes, made when they are first looked at."""
        if self._blocks is None:
            self._blocks = blocks_of(self.ask.prompt)
        return self._blocks

    @property
    def prompt_tokens(self) -> int:
        """Exact for token ids, else estimated from the prompt's length."""
        exact = self.ask.exact_tokens
        return exact if exact is not None else int(len(self.ask.prompt) * self.tokens_per_byte)

    def held_tokens(self, held_bytes: int) -> int:
        """Tokens of so many prompt bytes."""
        return int(held_bytes * self.tokens_per_byte)
