"""How long to wait before the next try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential with full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter", 2015).

    Jitter keeps a thousand clients that failed together from coming back together.
    """

    first_s: float = 0.5
    cap_s: float = 30.0
    factor: float = 2.0

    def delay_s(self, failures: int, uniform: Callable[[], float]) -> float:
        """Seconds to wait after `failures` failures in a row; `uniform` draws from [0, 1).

        Never under a tenth of the ceiling: a full-jitter draw near zero would be a busy loop.
        """
        ceiling_s = min(self.cap_s, self.first_s * self.factor ** max(0, failures - 1))
        return ceiling_s * (0.1 + 0.9 * uniform())
