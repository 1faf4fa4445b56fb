"""How much one API key may ask for: requests and tokens a minute, and requests at once.

A token bucket for each of the two rates: it holds a minute's worth, and fills evenly. Tokens are known only when a request
ends, so a request is let in while its bucket is not empty, and what it took is taken afterwards: the bucket may go below zero,
and the next request waits until it is filled again. Over any time of T minutes a key gets at most its rate times (T + 1), and
one request more for each it may have at once.
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_S = 60.0
BUSY_AGAIN_S = 1.0  # when to try again after too many at once: nobody knows when one of them ends


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of a key; 0 is none."""

    requests_per_min: int = 0
    tokens_per_min: int = 0  # prompt and completion together, as the engine counts them
    at_once: int = 0

    def shared(self, count: int) -> Allowance:
        """One of `count` equal shares; no limit becomes none."""
        return Allowance(*(max(1, value // count) if value else 0 for value in (self.requests_per_min, self.tokens_per_min, self.at_once)))


class Meter:
    """What a key has used of its allowance. Times are seconds of any steady clock."""

    __slots__ = ("_at_s", "_requests", "_tokens", "allowance", "running")

    def __init__(self, allowance: Allowance, now_s: float) -> None:
        self.allowance = allowance
        self.running = 0
        self._at_s = now_s
        self._requests = float(allowance.requests_per_min)
        self._tokens = float(allowance.tokens_per_min)

    def enter(self, now_s: float) -> tuple[str, float]:
        """Let a request in: an empty text, or which limit is reached, and in how many seconds another try is worth it."""
        allowance = self.allowance
        self._fill(now_s)
        if allowance.at_once and self.running >= allowance.at_once:
            return f"{allowance.at_once} requests at once", BUSY_AGAIN_S
        if allowance.requests_per_min and self._requests < 1:
            return f"{allowance.requests_per_min} requests a minute", (1 - self._requests) * MINUTE_S / allowance.requests_per_min
        if allowance.tokens_per_min and self._tokens <= 0:
            return f"{allowance.tokens_per_min} tokens a minute", max(1 - self._tokens, 1) * MINUTE_S / allowance.tokens_per_min
        if allowance.requests_per_min:
            self._requests -= 1
        self.running += 1
        return "", 0.0

    def leave(self, tokens: int) -> None:
        """A request that was let in is over, and took so many tokens."""
        self.running -= 1
        if self.allowance.tokens_per_min:
            self._tokens -= tokens

    def change(self, allowance: Allowance) -> None:
        """Other limits from now on; what runs still counts. A rate that had no limit begins with a minute's worth."""
        if not self.allowance.requests_per_min:
            self._requests = float(allowance.requests_per_min)
        if not self.allowance.tokens_per_min:
            self._tokens = float(allowance.tokens_per_min)
        self.allowance = allowance

    def _fill(self, now_s: float) -> None:
        passed_min = max(0.0, now_s - self._at_s) / MINUTE_S
        self._at_s = max(self._at_s, now_s)
        allowance = self.allowance
        self._requests = min(float(allowance.requests_per_min), self._requests + passed_min * allowance.requests_per_min)
        self._tokens = min(float(allowance.tokens_per_min), self._tokens + passed_min * allowance.tokens_per_min)
