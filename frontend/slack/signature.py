"""Is a request from Slack? (https://docs.slack.dev/authentication/verifying-requests-from-slack, version v0.)"""

from __future__ import annotations

import hashlib
import hmac

WINDOW_S = 300
SEEN_FOR_S = 600  # longer than the window on both sides of a clock that is off


def signature_of(secret: str, timestamp: str, body: bytes) -> str:
    """`v0=` and the HMAC-SHA256 of version, timestamp and raw body."""
    return "v0=" + hmac.new(secret.encode(), b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256).hexdigest()


def is_slack(secret: str, *, timestamp: str, signature: str, body: bytes, now_s: float) -> bool:
    """Whether the signature fits and is fresh. Whatever is malformed is simply not Slack's."""
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12) or not signature.isascii():
        return False
    if abs(now_s - int(timestamp)) > WINDOW_S:
        return False
    return hmac.compare_digest(signature_of(secret, timestamp, body).encode(), signature.encode())
