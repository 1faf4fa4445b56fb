"""The prefill queue of one unit: bounded, fair between clients, with a deadline, and visible."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable


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
        self.depth = 0
        self.inflight = 0
        self._turn_s = 0.05  # smoothed time between two legs that end, for Retry-After
        self._last_end_s: float | None = None

    async def enter(self, key: str) -> None:
        """Wait for a place. Raises QueueFullError; a cancelled wait takes no place."""
        if not self.depth and self.inflight < self._capacity():
            self.inflight += 1
            return
        if self.depth >= self._limit:
            raise QueueFullError(f"{self.depth} requests wait for prefill already", self._retry_after_s())
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._turns.setdefault(key, deque()).append(place)
        self.depth += 1
        timer = loop.call_later(self._deadline_s, self._expire, place)
        try:
            await place
        except asyncio.CancelledError:
            self._withdraw(key, place)
            raise
        except QueueFullError:
            self._drop(key, place)
            raise
        finally:
            timer.cancel()

    def leave(self) -> None:
        """A leg ended: its place goes to the next client in the circle."""
        now_s = asyncio.get_running_loop().time()
        if self._last_end_s is not None:
            self._turn_s += 0.1 * (min(10.0, now_s - self._last_end_s) - self._turn_s)
        self._last_end_s = now_s
        self.inflight -= 1
        self.admit()

    def admit(self) -> None:
        """Hand out places that are free; called too when the capacity grew."""
        while self.depth and self.inflight < self._capacity():
            key, waiting = next(iter(self._turns.items()))
            place = waiting.popleft()
            self._turns.move_to_end(key)
            if not waiting:
                del self._turns[key]
            self.depth -= 1
            if not place.done():
                self.inflight += 1
                place.set_result(None)

    def _expire(self, place: asyncio.Future[None]) -> None:
        if not place.done():
            place.set_exception(QueueFullError(f"waited {self._deadline_s:g} s for prefill", self._retry_after_s()))

    def _withdraw(self, key: str, place: asyncio.Future[None]) -> None:
        """The client left: free its turn, or give back the place that it was given in the same instant."""
        if place.done() and not place.cancelled() and place.exception() is None:
            self.leave()
        else:
            self._drop(key, place)

    def _drop(self, key: str, place: asyncio.Future[None]) -> None:
        waiting = self._turns.get(key)
        if waiting is None or place not in waiting:
            return
        waiting.remove(place)
        self.depth -= 1
        if not waiting:
            del self._turns[key]

    def _retry_after_s(self) -> float:
        return max(1.0, min(60.0, self.depth * self._turn_s))
