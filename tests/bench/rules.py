"""Other rules for the same requests, as they are commonly set up: what denv's judge is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOW_S = 60.0
LIMIT = 0.01
FLAGGER_THRESHOLD = 5  # failed checks, as in Flagger's own examples; they are not forgotten
ARGO_FAILURE_LIMIT = 3  # measurements that may fail; one more ends the analysis


@dataclass(slots=True)
class Windows:
    """The newest minute of one alarm, and whether its sample p99 (or error ratio) is over the limit: k of n over it, k > 1% of n."""

    n: int = 0
    k: float = 0.0
    failed: list[bool] = field(default_factory=list)
    began_s: float = 0.0

    def add(self, n: int, k: float, to_s: float) -> bool | None:
        """Count; the minute's result when it has ended, None before. A minute without requests has none."""
        self.n, self.k = self.n + n, self.k + k
        if to_s - self.began_s < WINDOW_S:
            return None
        result = self.k > LIMIT * self.n if self.n else None
        self.n, self.k, self.began_s = 0, 0.0, to_s
        if result is not None:
            self.failed.append(result)
        return result


@dataclass(slots=True)
class Rules:
    """When each of the rules would have rolled back, by requests of the canary and seconds; a rule that never did is missing."""

    windows: dict[str, Windows] = field(default_factory=dict)
    requests: int = 0
    tripped: dict[str, tuple[int, float]] = field(default_factory=dict)

    def look(self, found: Mapping[str, tuple[int, float]], to_s: float) -> None:
        """Take what the canary did since the look before."""
        self.requests += max((n for n, _ in found.values()), default=0)
        for name, (n, k) in found.items():
            held = self.windows.setdefault(name, Windows(began_s=to_s))
            if held.add(n, k, to_s) is None:
                continue
            failed = held.failed
            self._trip("naive p99", failed[-1], to_s)
            self._trip("three in a row", len(failed) >= 3 and all(failed[-3:]), to_s)
            self._trip("Flagger-like", sum(failed) >= FLAGGER_THRESHOLD, to_s)
            self._trip("Argo-like", sum(failed) > ARGO_FAILURE_LIMIT, to_s)

    def _trip(self, rule: str, is_over: bool, at_s: float) -> None:
        if is_over:
            self.tripped.setdefault(rule, (self.requests, at_s))


NAMES = ("naive p99", "three in a row", "Flagger-like", "Argo-like")
