"""What all senders of notices share: how one says that it failed."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from denvweb.core.errors import DenvError


class DeliveryError(DenvError):
    """A notice did not arrive: `hopeless` when another try would fail as well, `retry_after_s` as the other end asked."""

    code = "not-delivered"

    def __init__(self, detail: str, *, retry_after_s: float | None = None, hopeless: bool = False) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s
        self.hopeless = hopeless


def retry_after_s(header: str | None, *, now: datetime) -> float | None:
    """Seconds of a Retry-After header, which may be a number or a date (RFC 9110 §10.2.3); None when it is neither."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, IndexError):
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds())
