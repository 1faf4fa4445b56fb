"""Did the KV really move? A decode engine that cannot fetch it may compute everything again and still answer with status 200.

The answer itself does not tell: decode passes on what prefill said of its cache. So what a decode replica was sent is compared with
what its own metrics say it has loaded from elsewhere. Each request is judged once: at the reading after its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleets.router.telemetry import Series

MOVED_AT_LEAST_RATIO = 0.5  # blocks are cut and decode may hold a part already; nothing at all is what is looked for


class Ledger:
    """One decode replica's remote requests against its counter of tokens loaded from elsewhere."""

    __slots__ = ("_expected_tokens", "_loaded_tokens", "_requests", "_since_s")
    _requests: dict[Series, int]  # that are not judged, by whose figures they are

    def __init__(self) -> None:
        self._since_s: float | None = None  # when the counter was first read; None: not yet
        self._loaded_tokens = 0.0
        self._expected_tokens = 0
        self._requests = {}

    @property
    def tells(self) -> bool:
        """Whether the engine says what it loads; of one that does not, no request is judged."""
        return self._since_s is not None

    def ended(self, series: Series, *, sent_s: float, tokens: int) -> None:
        """A remote request that was sent at `sent_s` ended well; its decode had `tokens` to load."""
        if self._since_s is not None and sent_s > self._since_s:  # an earlier one may have loaded before the first reading
            self._expected_tokens += tokens
            self._requests[series] = self._requests.get(series, 0) + 1

    def read(self, loaded_tokens: float | None, *, now_s: float) -> Mapping[Series, tuple[int, int]]:
        """The counter's present value (None: the engine has none).

        Returns, by series, how many requests are judged by it, and how many of them were computed again.
        """
        if loaded_tokens is None:
            self._since_s = None
            return {}
        if self._since_s is None or loaded_tokens < self._loaded_tokens:  # the first reading, or another process
            self._start(loaded_tokens, now_s)
            return {}
        if not self._requests:
            return {}
        moved = (loaded_tokens - self._loaded_tokens) / max(1, self._expected_tokens)
        lost = max(0.0, 1.0 - moved) if moved < MOVED_AT_LEAST_RATIO else 0.0
        judged = {series: (count, round(count * lost)) for series, count in self._requests.items()}
        self._start(loaded_tokens, self._since_s)
        return judged

    def _start(self, loaded_tokens: float, since_s: float) -> None:
        self._since_s = since_s
        self._loaded_tokens = loaded_tokens
        self._expected_tokens = 0
        self._requests = {}
