"""Did the KV really move? A decode engine that cannot fetch it may compute everything again and still answer with status 200.

The answer itself does not tell: decode passes on what prefill said of its cache. So what a decode replica was sent is compared with
what its own metrics say it has loaded from elsewhere.
"""

from __future__ import annotations

MOVED_AT_LEAST_RATIO = 0.5  # blocks are cut and decode may hold a part already; nothing at all is what is looked for


class Ledger:
    """One decode replica's remote requests against its counter of tokens loaded from elsewhere."""

    __slots__ = ("_expected_tokens", "_loaded_tokens", "_requests", "_since_s")

    def __init__(self) -> None:
        self._since_s: float | None = None  # when the counter was first read; None: not yet
        self._loaded_tokens = 0.0
        self._expected_tokens = 0
        self._requests = 0

    def ended(self, *, sent_s: float, tokens: int) -> None:
        """A remote request that was sent at `sent_s` ended well; its decode had `tokens` to load."""
        if self._since_s is not None and sent_s > self._since_s:  # an earlier one may have loaded before the first reading
            self._expected_tokens += tokens
            self._requests += 1

    def read(self, loaded_tokens: float | None, *, now_s: float) -> int:
        """The counter's present value (None: the engine has none). Returns how many requests were computed again since the last."""
        if loaded_tokens is None:
            self._since_s = None
            return 0
        if self._since_s is None or loaded_tokens < self._loaded_tokens:  # the first reading, or another process
            self._start(loaded_tokens, now_s)
            return 0
        if not self._requests:
            return 0
        moved = (loaded_tokens - self._loaded_tokens) / max(1, self._expected_tokens)
        recomputed = round(self._requests * (1.0 - moved)) if moved < MOVED_AT_LEAST_RATIO else 0
        since_s = self._since_s
        self._start(loaded_tokens, since_s)
        return recomputed

    def _start(self, loaded_tokens: float, since_s: float) -> None:
        self._since_s = since_s
        self._loaded_tokens = loaded_tokens
        self._expected_tokens = self._requests = 0
