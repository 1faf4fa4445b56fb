"""KV on its way from prefill to decode: until when it can be fetched, and a stream that may still lose it.

vLLM reads whatever lies in prefill's blocks, also after their lease, and says nothing: the answer is then wrong without a sign. So
the router keeps to the lease, and uses what prefill said once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fleets.router import openai
from fleets.router.chunks import content_of
from fleets.router.heads import AnswerHead
from fleets.router.policy import ReplicaState
from fleets.router.relay import Relay, failure_of, has_content, is_text
from fleets.router.taker import Leg, LegError, Taker
from fleets.router.telemetry import now
from fleets.router.upstream import Connection

OPENING_MAX_BYTES = 1 << 16  # of a stream that has no token yet; then it is passed on as it is
LEASE_SHARE = 0.8  # of a lease that decode may take to come to life; the rest is for clocks and the way
OVERDUE_SHARE = 1.5  # of a lease, after prefill's answer, without a word of a decode that prefill was to push the KV to
STALL_S = 1.0  # a look that comes later than this is one of a router that stood still


class Holding(Protocol):
    """A request whose KV prefill keeps, as the watch sees it."""

    @property
    def awaited(self) -> tuple[ReplicaState, float, float] | None:
        """The decode that was asked, when, and prefill's lease in seconds; None when it holds no KV or decode has answered."""

    @property
    def kept_s(self) -> float | None:
        """When prefill answered whose KV decode does not fetch, but waits for; None: it is not so."""

    def lease_lost(self) -> None:
        """Decode did not come to life in time."""

    def kv_overdue(self) -> None:
        """The KV did not come in time."""


class Leases:
    """Looks every `every_s` seconds at the requests in flight, and knows when the router itself stood still."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._looked_s = now()
        self._stalled_s = float("-inf")  # when it last came to again

    def look(self, holding: Iterable[Holding]) -> None:
        """Give up every request whose decode has shown no life since it was asked, before prefill lets go of its KV."""
        at_s = now()
        self._notice(at_s)
        for request in list(holding):
            awaited = request.awaited
            if awaited is not None:
                decode, sent_s, lease_s = awaited
                if at_s - sent_s > lease_s * LEASE_SHARE and decode.answered_s < sent_s:
                    request.lease_lost()
                elif request.kept_s is not None and at_s - request.kept_s > lease_s * OVERDUE_SHARE:
                    request.kv_overdue()

    def stale(self, *, sent_s: float, lease_s: float) -> bool:
        """Whether KV may be gone that a prefill leg, sent at `sent_s`, has just answered with.

        The lease began at some time since then. A router that did not stand still reads an answer when it comes.
        """
        at_s = now()
        if at_s - sent_s <= lease_s * LEASE_SHARE:
            return False
        self._notice(at_s)  # after a halt what was read first may come before the look
        return self._stalled_s >= sent_s

    def _notice(self, at_s: float) -> None:
        if at_s - self._looked_s > self._every_s + STALL_S:
            self._stalled_s = at_s
        self._looked_s = at_s


class Owner(Protocol):
    """Whose stream it is, while it has no token."""

    def opened(self, opening: Opening) -> Relay:
        """A token came: the client gets it, and all that follows."""

    def kv_lost(self, why: str) -> None:
        """The engine ended it with an error."""

    def failed(self, error: LegError) -> None:
        """The engine ended it without a word."""

    def broken(self) -> None:
        """The router itself failed."""


class Opening:
    """Takes a stream up to its first token. Until then an engine that could not fetch the KV can be asked again without it."""

    __slots__ = ("_kept", "_lost", "_owner", "_relay", "connection", "head", "leg")

    def __init__(self, owner: Owner, head: AnswerHead, connection: Connection) -> None:
        self._owner = owner
        self._kept = b""
        self._lost = False
        self._relay: Relay | None = None
        self.head = head
        self.connection = connection
        self.leg: Leg | None = None

    def streamed(self, head: AnswerHead, connection: Connection) -> Taker | None:
        """It is already."""
        return self

    def text(self, data: bytes) -> int:
        """Looked at in full."""
        return 0

    def events(self, data: bytes, framed: int) -> None:
        if not self._kept and framed and is_text(data):  # nearly every completion
            self._open().events(data, framed)
            return
        self._kept += content_of(data) if framed else data
        if not self._kept.endswith(b"\n\n") and len(self._kept) < OPENING_MAX_BYTES:
            return
        failure, begun = _first_words(self._kept)
        if failure:
            self._lose(failure)
        elif begun or len(self._kept) >= OPENING_MAX_BYTES:
            self._flush()

    def ended(self) -> None:
        """The framing is whole."""
        if self._lost:
            return
        if self._relay is None:
            if failure := _first_words(self._kept)[0]:
                self._lose(failure)
                return
            self._flush()
        if self._relay is not None:
            self._relay.ended()

    def _lose(self, failure: str) -> None:
        self._lost = True
        if self.leg is not None:
            self.leg.hang_up()
        self._owner.kv_lost(failure)

    def answered(self, head: AnswerHead, body: bytes) -> None:
        """Never: it takes a stream."""

    def failed(self, error: LegError) -> None:
        self._owner.failed(error)

    def broken(self) -> None:
        """The router itself failed."""
        self._owner.broken()

    def _open(self) -> Relay:
        relay = self._relay = self._owner.opened(self)
        if self.leg is not None:
            self.leg.hand_to(relay)
        return relay

    def _flush(self) -> None:
        data, self._kept = self._kept, b""
        self._open().events(data, 0)


def _first_words(data: bytes) -> tuple[str, bool]:
    """The failure that these events tell, and whether any has content or ends the stream before it."""
    for event in data.split(b"\n\n"):
        if event.startswith(b"data: [DONE]"):
            return "", True
        chunk = openai.json_object(event[5:]) if event.startswith(b"data:") else None
        if chunk is None:
            continue
        if failure := failure_of(chunk):
            return failure, False
        if has_content(chunk) or any(choice.get("finish_reason") for choice in chunk.get("choices") or ()):
            return "", True
    return "", False
