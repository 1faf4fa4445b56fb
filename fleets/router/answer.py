"""A client in memory, for requests that the router makes itself."""

from __future__ import annotations

from fleets.router.chunks import content_of
from fleets.router.heads import Headers
from fleets.router.upstream import Connection


class Answer:
    """Takes an answer whole."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.status = 0
        self.parts: list[bytes] = []

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self.status, self.parts = status, [body]

    def answer(self, head: bytes, body: bytes) -> None:
        self.status, self.parts = int(head[9:12]), [body]

    def begin(self, head: bytes) -> None:
        self.status = int(head[9:12])

    def write(self, data: bytes) -> None:
        self.parts.append(data)

    def pass_on(self, data: bytes, *, last: bool) -> None:
        self.parts.append(content_of(data))

    def flush(self) -> None:
        """Nothing is held back."""

    def end(self) -> None:
        """All is there."""

    def close(self) -> None:
        """There is no connection."""

    def feed_from(self, source: Connection | None) -> None:
        """Never slow."""
