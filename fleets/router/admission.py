"""The prefill queue of one unit: bounded, fair between clients, the shorter prompts first, with a deadline, and visible."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from fleets.domain.routing import next_in_line
from fleets.router.telemetry import now


class QueueFullError(Exception):
    """No place to wait, or waited too long; `retry_after_s` is when it is worth another try."""

    def __init__(self, detail: str, retry_after_s: float) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s


@dataclass(slots=True, eq=False)
class _Waiter:
    """One who waits, with the tokens that its prefill has to compute."""

    key: str
    place: asyncio.Future[None]
    tokens: int
    timer: asyncio.TimerHandle
    overtaken: int = 0


class Gate:
    """Lets prefill legs run as long as `room(legs in flight)` says so. The others wait, and each client key gets its turn in a circle.

    One client with a thousand requests and one with a single request share the places half and half. Of one client's requests
    the shortest goes first (`routing.next_in_line`). So they share the places to wait in: when all are taken, whoever has most gives up
    its newest to whoever has fewer.
    """

    def __init__(self, room: Callable[[int], bool], *, limit: int, deadline_s: float) -> None:
        self._room = room
        self._limit = limit
        self._deadline_s = deadline_s
        self._turns: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._waiters: dict[asyncio.Future[None], _Waiter] = {}
        self._handed: asyncio.Future[None] | None = None  # a place that was given, and whose leg has not begun yet
        self.depth = 0
        self.inflight = 0
        self._turn_s = 0.05  # smoothed time between two legs that end, for Retry-After
        self._last_end_s: float | None = None

    def try_enter(self) -> bool:
        """Take a place if one is free and nobody waits."""
        if self.depth or not self._room(self.inflight):
            return False
        self.inflight += 1
        return True

    def wait(self, key: str, tokens: int = 0) -> asyncio.Future[None]:
        """Wait for a place: the future ends when it is there, or with QueueFullError. Raises it at once when too many wait.

        Who got a place says `begun` once its leg is under way, or `withdraw`.
        """
        if self.depth >= self._limit:
            self._make_room(key)
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        waiter = _Waiter(key, place, tokens, loop.call_later(self._deadline_s, self._expire, place))
        self._turns.setdefault(key, deque()).append(waiter)
        self._waiters[place] = waiter
        self.depth += 1
        return place

    def _make_room(self, key: str) -> None:
        """Turn away the newest request of the client with most that wait, or QueueFullError when `key` has as many."""
        full = QueueFullError(f"{self.depth} requests wait for prefill already", self._retry_after_s())
        most = max(self._turns.values(), key=len, default=deque[_Waiter]())
        if len(most) <= len(self._turns.get(key, ())) + 1:
            raise full
        newest = most[-1]
        self._drop(newest)
        if not newest.place.done():
            newest.place.set_exception(full)

    def withdraw(self, place: asyncio.Future[None]) -> None:
        """Nobody waits there any more: free its turn, or give back the place that it was given in the same instant."""
        if place.done() and not place.cancelled() and place.exception() is None:
            self._handed = None
            self.leave()
        elif not place.done():
            self._drop(self._waiters[place])
            place.cancel()

    async def enter(self, key: str) -> None:
        """Wait for a place. Raises QueueFullError; a cancelled wait takes no place."""
        if self.try_enter():
            return
        place = self.wait(key)
        try:
            await asyncio.shield(place)
        except asyncio.CancelledError:
            self.withdraw(place)
            raise
        self.begun()

    def leave(self) -> None:
        """A leg ended: its place goes to the next client in the circle."""
        now_s = now()
        if self._last_end_s is not None:
            self._turn_s += 0.1 * (min(10.0, now_s - self._last_end_s) - self._turn_s)
        self._last_end_s = now_s
        self.inflight -= 1
        if self.depth:
            self.admit()

    def begun(self) -> None:
        """The leg whose place was handed out is under way, or given up."""
        self._handed = None
        self.admit()

    def admit(self) -> None:
        """Hand out a place if one is free; to be called too when there may be more room than before.

        One at a time: what a leg brings to compute counts only from its beginning.
        """
        while self.depth and self._handed is None and self._room(self.inflight):
            key, line = next(iter(self._turns.items()))
            index = next_in_line([waiter.tokens for waiter in line], line[0].overtaken)
            waiter = line[index]
            if index:
                line[0].overtaken += 1
            self._turns.move_to_end(key)
            self._drop(waiter)
            if not waiter.place.done():
                self.inflight += 1
                self._handed = waiter.place
                waiter.place.set_result(None)

    def _expire(self, place: asyncio.Future[None]) -> None:
        self._drop(self._waiters[place])
        if not place.done():
            place.set_exception(QueueFullError(f"waited {self._deadline_s:g} s for prefill", self._retry_after_s()))

    def _drop(self, waiter: _Waiter) -> None:
        """It waits no longer, for whatever reason."""
        del self._waiters[waiter.place]
        waiter.timer.cancel()
        line = self._turns[waiter.key]
        line.remove(waiter)
        self.depth -= 1
        if not line:
            del self._turns[waiter.key]

    def _retry_after_s(self) -> float:
        return max(1.0, min(60.0, self.depth * self._turn_s))
