"""Faults on demand. Ratios are met exactly over any run of requests, and the same ones fail every time."""

from __future__ import annotations

import os
from collections.abc import Callable

from fleets.domain.types import Faults

EXIT_CRASH = 9


class Share:
    """Says yes to an exact share of its calls, evenly spread."""

    def __init__(self) -> None:
        self._owed = 0.0

    def hit(self, ratio: float) -> bool:
        """Whether this call is one of them."""
        self._owed += min(1.0, max(0.0, ratio))
        if self._owed < 1.0 - 1e-9:
            return False
        self._owed -= 1.0
        return True


class FaultBox:
    """The faults in force, which may change while the engine runs."""

    def __init__(self, faults: Faults, crash: Callable[[int], None] = os._exit) -> None:
        self.now = faults
        self._requests = 0
        self._crash = crash
        self._errors, self._hangs, self._kv_failures = Share(), Share(), Share()

    def replace(self, faults: Faults) -> None:
        """From now on these; `crash_after_requests` counts from here."""
        self.now = faults
        self._requests = 0

    def request_arrives(self) -> str:
        """Nothing, `error` or `hang`; ends the process when its time has come."""
        self._requests += 1
        if self.now.crash_after_requests is not None and self._requests > self.now.crash_after_requests:
            self._crash(EXIT_CRASH)
        if self._errors.hit(self.now.error_ratio):
            return "error"
        return "hang" if self._hangs.hit(self.now.hang_ratio) else ""

    def kv_fails(self) -> bool:
        """Whether this KV transfer does not come about."""
        return self._kv_failures.hit(self.now.kv_fail_ratio)

    def moved(self, kv: bytes) -> bytes:
        """KV bytes as they arrive: all bits flipped under `kv_corrupt`."""
        if not self.now.kv_corrupt:
            return kv
        return (int.from_bytes(kv, "little") ^ ((1 << 8 * len(kv)) - 1)).to_bytes(len(kv), "little")
