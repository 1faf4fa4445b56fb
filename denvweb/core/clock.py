"""Time as a port: policies are handed a clock, tests hand them one they move by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall and monotonic time."""

    def now(self) -> datetime:
        """The present, aware and in UTC."""

    def mono_s(self) -> float:
        """Seconds that never go backwards; only differences mean anything."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def mono_s(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until `advance` moves it."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._mono_s = 0.0

    def now(self) -> datetime:
        return self._now

    def mono_s(self) -> float:
        return self._mono_s

    def advance(self, seconds: float) -> None:
        """Move both times forward by `seconds`."""
        self._now += timedelta(seconds=seconds)
        self._mono_s += seconds
