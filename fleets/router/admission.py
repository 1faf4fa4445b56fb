"""The prefill queue of one unit: bounded, fair between clients, with a deadline, and visible."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from fleets.router.telemetry import now


class QueueFullError(Exception):
    """No place to wait, or waited too long; `retry_after_s` is when it is worth another try."""

    def __init__(self, detail: str, retry_after_s: float) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s


class Gate:
    """Lets at most `capacity()` prefill legs run; the others wait, and each client key gets its turn in a circle.

    One client with a thousand requests and one with a single request share the places half and half.
    """

    def __init__(self, capacity: Callable[[], int], *, limit: int, deadline_s: float) -> None:
        self._capacity = capacity
        self._limit = limit
        self._deadline_s = deadline_s
        self._turns: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._places: dict[asyncio.Future[None], tuple[str, asyncio.TimerHandle]] = {}
        self.depth = 0
        self.inflight = 0
        self._turn_s = 0.05  # smoothed time between two legs that end, for Retry-After
        self._last_end_s: float | None = None

    def try_enter(self) -> bool:
        """Take a place if one is free and nobody waits."""
        if self.depth or self.inflight >= self._capacity():
            return False
        self.inflight += 1
        return True

    def wait(self, key: str) -> asyncio.Future[None]:
        """Wait for a place: the future ends when it is there, or with QueueFullError. Raises it at once when too many wait."""
        if self.depth >= self._limit:
            raise QueueFullError(f"{self.depth} requests wait for prefill already", self._retry_after_s())
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._turns.setdefault(key, deque()).append(place)
        self.depth += 1
        self._places[place] = (key, loop.call_later(self._deadline_s, self._expire, place))
        return place

    def withdraw(self, place: asyncio.Future[None]) -> None:
        """Nobody waits there any more: free its turn, or give back the place that it was given in the same instant."""
        if place.done() and not place.cancelled() and place.exception() is None:
            self.leave()
        elif not place.done():
            self._drop(place)
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

    def leave(self) -> None:
        """A leg ended: its place goes to the next client in the circle."""
        now_s = now()
        if self._last_end_s is not None:
            self._turn_s += 0.1 * (min(10.0, now_s - self._last_end_s) - self._turn_s)
        self._last_end_s = now_s
        self.inflight -= 1
        if self.depth:
            self.admit()

    def admit(self) -> None:
        """Hand out places that are free; called too when the capacity grew."""
        while self.depth and self.inflight < self._capacity():
            key, waiting = next(iter(self._turns.items()))
            place = waiting[0]
            self._turns.move_to_end(key)
            self._drop(place)
            if not place.done():
                self.inflight += 1
                place.set_result(None)

    def _expire(self, place: asyncio.Future[None]) -> None:
        self._drop(place)
        if not place.done():
            place.set_exception(QueueFullError(f"waited {self._deadline_s:g} s for prefill", self._retry_after_s()))

    def _drop(self, place: asyncio.Future[None]) -> None:
        """It waits no longer, for whatever reason."""
        key, timer = self._places.pop(place)
        timer.cancel()
        waiting = self._turns[key]
        waiting.remove(place)
        self.depth -= 1
        if not waiting:
            del self._turns[key]

    def _retry_after_s(self) -> float:
        return max(1.0, min(60.0, self.depth * self._turn_s))
