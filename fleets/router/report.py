"""Reports to the control plane: each window is counted there exactly once, however often it had to be sent."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

from denvweb.core import ids, wire
from denvweb.core.errors import UnavailableError
from fleets.domain.protocol import ProbeResult, RouterReport
from fleets.router.control import Control

log = logging.getLogger("fleets.router.report")

AWAY_WINDOW_S = 10.0  # windows are this long while the control plane is away ...
BACKLOG_MAX = 60  # ... and after so many of them one grows until it comes back
DEADLINE_S = 5.0


class Reporter:
    """Cuts windows, and sends them in order until each is acknowledged.

    `fill` makes a report of everything since its last call (its seq is set here). A report that may have reached the control
    plane is never changed: it goes out again with the same seq and content.
    """

    def __init__(self, control: Control, fill: Callable[[tuple[ProbeResult, ...]], RouterReport]) -> None:
        self._control = control
        self._fill = fill
        self._waiting: deque[RouterReport] = deque()
        self._probes: list[ProbeResult] = []
        self._seq = 0
        self._cut_s = 0.0
        self.boot = ids.random_id("boot")

    @property
    def waiting(self) -> int:
        """Reports that are not acknowledged."""
        return len(self._waiting)

    def probed(self, result: ProbeResult) -> None:
        """To be told with the next window; of one unit only the newest."""
        self._probes = [held for held in self._probes if held.unit != result.unit] + [result]

    def cut(self, *, last: bool = False) -> None:
        """End the window that runs, if it is time."""
        now_s = time.monotonic()
        away = len(self._waiting) > 0
        if not last and away and (len(self._waiting) >= BACKLOG_MAX or now_s - self._cut_s < AWAY_WINDOW_S):
            return
        self._cut_s = now_s
        self._seq += 1
        probes, self._probes = tuple(self._probes), []
        self._waiting.append(replace(self._fill(probes), boot=self.boot, seq=self._seq))

    async def send(self) -> None:
        """Send all that waits, oldest first; UnavailableError leaves the rest for later."""
        while self._waiting:
            report = self._waiting[0]
            status, body = await self._control.post("/router/v1/report", wire.encode(report), deadline_s=DEADLINE_S)
            if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY):
                log.error("the control plane refuses report %d for good: %s", report.seq, body[:300].decode("utf-8", "replace"))
            elif status != HTTPStatus.OK:
                raise UnavailableError(f"the control plane gave status {status} for a report")
            self._waiting.popleft()
