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
class Waiter:
    """One who waits, with the tokens that its prefill has to compute; `placed` is called once, unless it withdraws before."""

    key: str
    tokens: int
    placed: Callable[[QueueFullError | None], None]
    timer: asyncio.TimerHandle | None = None
    waits: bool = True
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
        self._turns: OrderedDict[str, deque[Waiter]] = OrderedDict()
        self._admits = False  # in this turn of the loop or the next
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

    def wait(self, key: str, tokens: int, placed: Callable[[QueueFullError | None], None]) -> Waiter:
        """Wait for a place: `placed` is called with None when it is there, to begin the leg, or with why there is none.

        Raises QueueFullError at once when too many wait.
        """
        if self.depth >= self._limit:
            self._make_room(key)
        waiter = Waiter(key, tokens, placed)
        waiter.timer = asyncio.get_running_loop().call_later(self._deadline_s, self._expire, waiter)
        self._turns.setdefault(key, deque()).append(waiter)
        self.depth += 1
        return waiter

    def _make_room(self, key: str) -> None:
        """Turn away the newest request of the client with most that wait, or QueueFullError when `key` has as many."""
        full = QueueFullError(f"{self.depth} requests wait for prefill already", self._retry_after_s())
        most = max(self._turns.values(), key=len, default=deque[Waiter]())
        if len(most) <= len(self._turns.get(key, ())) + 1:
            raise full
        newest = most[-1]
        self._drop(newest)
        newest.placed(full)

    def withdraw(self, waiter: Waiter) -> None:
        """Nobody waits there any more."""
        if waiter.waits:
            self._drop(waiter)

    def leave(self) -> None:
        """A leg ended: its place goes to the next client in the circle."""
        now_s = now()
        if self._last_end_s is not None:
            self._turn_s += 0.1 * (min(10.0, now_s - self._last_end_s) - self._turn_s)
        self._last_end_s = now_s
        self.inflight -= 1
        self.admit()

    def admit(self) -> None:
        """Hand out places that are free, in the next turn of the loop; to be called too when there may be more room than before.

        In a turn of its own, because legs begin in it: not in the middle of what ended another, and all of them in one,
        so that their messages leave in one go.
        """
        if self.depth and not self._admits:
            self._admits = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        """One after the other: what a leg brings to compute counts from its beginning, and may be too much for one more."""
        self._admits = False
        while self.depth and self._room(self.inflight):
            key, line = next(iter(self._turns.items()))
            index = next_in_line([waiter.tokens for waiter in line], line[0].overtaken)
            waiter = line[index]
            if index:
                line[0].overtaken += 1
            self._turns.move_to_end(key)
            self._drop(waiter)
            self.inflight += 1
            waiter.placed(None)

    def _expire(self, waiter: Waiter) -> None:
        self._drop(waiter)
        waiter.placed(QueueFullError(f"waited {self._deadline_s:g} s for prefill", self._retry_after_s()))

    def _drop(self, waiter: Waiter) -> None:
        """It waits no longer, for whatever reason."""
        waiter.waits = False
        if waiter.timer is not None:
            waiter.timer.cancel()
        line = self._turns[waiter.key]
        line.remove(waiter)
        self.depth -= 1
        if not line:
            del self._turns[waiter.key]

    def _retry_after_s(self) -> float:
        return max(1.0, min(60.0, self.depth * self._turn_s))
