"""Who takes the answer of a leg, and how a leg without one has ended."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from fleets.router.heads import AnswerHead

if TYPE_CHECKING:
    from fleets.router.upstream import Connection


class LegFailure(StrEnum):
    """How a leg ended without an answer."""

    CONNECT = "connect"  # no connection was made
    TIMEOUT = "timeout"  # a deadline passed
    CUT = "cut"  # the connection ended, or spoke no HTTP, before the answer was whole


class LegError(Exception):
    """A leg that got no whole answer; `started` says whether any byte of one came."""

    def __init__(self, kind: LegFailure, detail: str, *, started: bool = False) -> None:
        super().__init__(detail)
        self.kind = kind
        self.started = started


class Leg(Protocol):
    """What can be hung up."""

    def hang_up(self) -> None:
        """End it; the engine sees it and stops computing. Nobody is told."""

    def hand_to(self, taker: Taker) -> None:
        """Another one takes the answer from here on."""


class Taker(Protocol):
    """Who takes an answer. Exactly one of `answered`, `ended` and `failed` is called, last."""

    leg: Leg | None  # set by the pool: what to hang up

    def streamed(self, head: AnswerHead, connection: Connection) -> Taker | None:
        """The answer is an event stream: who takes it read by read; None takes it when it is whole."""

    def text(self, data: bytes) -> int:
        """A read of chunks of a stream that may be nothing but more text: 1 took it, -1 took it as the end, 0 did not take it."""

    def events(self, data: bytes, framed: int) -> None:
        """A read of the stream; empty when the head came alone.

        `framed`: `data` is whole chunks that end with events, with the last chunk of all when it is negative; 0: `data` is content.
        """

    def ended(self) -> None:
        """The stream's framing is whole."""

    def answered(self, head: AnswerHead, body: bytes) -> None:
        """A whole answer."""

    def failed(self, error: LegError) -> None:
        """There will be none."""
