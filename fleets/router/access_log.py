"""The access log: one line of JSON for each request, written when it ends."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import orjson

from fleets.router.telemetry import now
from fleets.router.tracing import trace_id_of

if TYPE_CHECKING:
    from fleets.router.job import Job

HELD_MAX = 4096  # lines that wait for a disk that takes none; older ones are let go, and counted


class AccessLog:
    """Keeps lines until the next turn of `flush`, so that a request costs no write of its own.

    `path` `-` is standard output. A file that cannot be written costs lines, never requests: `lost` counts them.
    """

    def __init__(self, path: str, *, stage: str) -> None:
        self._path = path
        self._stage = stage
        self._file: IO[bytes] | None = None
        self._lines: list[bytes] = []
        self._failing = False
        self.lost = 0

    def request(self, job: Job) -> None:
        """A request that was taken is over."""
        self._lines.append(orjson.dumps(self._fields(job)))

    def refused(self, *, status: int, code: str, path: str, peer: str, request_id: bytes, client: str = "") -> None:
        """A request was answered without being taken."""
        self._lines.append(orjson.dumps({
            "at": _stamp(), "stage": self._stage, "request_id": request_id.decode("latin-1"), "client": client, "peer": peer,
            "path": path, "status": status, "error": code,
        }))  # fmt: skip

    def _fields(self, job: Job) -> dict[str, Any]:
        key = job.series.key if job.series is not None else None
        usage, ended_s = job.usage, now()
        return {
            "at": _stamp(),
            "stage": self._stage,
            "request_id": job.request_id.decode("latin-1"),
            "trace_id": trace_id_of(job.traceparent),
            "client": job.client_name,
            "peer": job.client.peer,
            "path": job.head.path,
            "status": job.status,
            "error": job.error,
            "cancelled": job.cancelled,
            "stream": job.ask.stream,
            "release": key.decode_release if key else "",
            "prefill_release": key.prefill_release if key else "",
            "unit": key.unit if key else "",
            "route": str(key.route.value) if key else "",
            "reason": str(job.reason),
            "probe": job.made_here,
            "queue_ms": _ms(job.start_s, job.queued_s),
            "prefill_ms": _ms(job.queued_s, job.prefill_s),
            "ttft_ms": _ms(job.start_s, job.first_s),
            "e2e_ms": _ms(job.start_s, ended_s),
            "tokens_in": usage.prompt if usage else None,
            "tokens_cached": usage.cached if usage else None,
            "tokens_out": usage.completion if usage else None,
        }

    def flush(self) -> None:
        """Write what waits. What a full disk does not take is kept for a while."""
        if not self._lines:
            return
        data = b"\n".join(self._lines) + b"\n"
        try:
            if self._file is None:
                self._file = self._opened()
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self._trouble(error)
            return
        self._lines.clear()
        self._failing = False

    def _opened(self) -> IO[bytes]:
        if self._path == "-":
            return sys.stdout.buffer
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)

    def _trouble(self, error: OSError) -> None:
        """A partly written batch may come twice: two lines are better than none."""
        over = len(self._lines) - HELD_MAX
        if over > 0:
            del self._lines[:over]
            self.lost += over
        if not self._failing:
            self._failing = True
            logging.getLogger("fleets.router.access_log").warning("the access log %s takes no lines: %s", self._path, error)
        self._close_file()

    def reopen(self) -> None:
        """Write what waits, and open the file anew: somebody has moved it away."""
        self.flush()
        self._close_file()

    def close(self) -> None:
        """Write what waits, and end."""
        self.flush()
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None and self._path != "-":
            file.close()


def _stamp() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")


def _ms(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else round((end_s - start_s) * 1000, 3)
