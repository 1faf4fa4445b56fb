"""A leg that a coroutine waits for; for what is not on the path of requests."""

from __future__ import annotations

import asyncio

from fleets.router.heads import AnswerHead
from fleets.router.taker import Leg, LegError, Taker
from fleets.router.telemetry import now
from fleets.router.upstream import Address, Connection, Pool


class Whole:
    """Part of a taker of whole answers: nothing of a stream ever reaches it."""

    __slots__ = ()

    def text(self, data: bytes) -> int:
        """Never."""
        return 0

    def events(self, data: bytes, framed: int) -> None:
        """Never."""

    def ended(self) -> None:
        """Never."""


class Exchange(Whole):
    """Takes one answer whole."""

    def __init__(self) -> None:
        self.leg: Leg | None = None
        self._done: asyncio.Future[tuple[AnswerHead, bytes]] = asyncio.get_running_loop().create_future()

    def streamed(self, head: AnswerHead, connection: Connection) -> Taker | None:
        return None

    def answered(self, head: AnswerHead, body: bytes) -> None:
        if not self._done.done():
            self._done.set_result((head, body))

    def failed(self, error: LegError) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    async def wait(self) -> tuple[AnswerHead, bytes]:
        """The answer; raises LegError. Cancelling it hangs up."""
        try:
            return await self._done
        finally:
            if self.leg is not None:
                self.leg.hang_up()


async def exchange(pool: Pool, address: Address, data: bytes, *, first_s: float, total_s: float) -> tuple[int, bytes]:
    """Send `data`; the status and the body of the answer. Raises LegError; cancelling it hangs up."""
    taker = Exchange()
    pool.send(address, data, taker, sent_s=now(), first_s=first_s, total_s=total_s)
    head, body = await taker.wait()
    return head.status, body
