"""Reading windows: which rows cover a span, each second once."""

from __future__ import annotations

from datetime import UTC, datetime


def floor_to(at: datetime, seconds: int) -> datetime:
    """The start of the window of that length that holds `at`; windows are aligned to the epoch."""
    return datetime.fromtimestamp(int(at.timestamp()) // seconds * seconds, UTC)
