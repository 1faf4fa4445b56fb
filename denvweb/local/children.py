"""Child processes: started, started again with backoff when they die, stopped in order, and found again after a kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from denvweb.core.backoff import Backoff
from denvweb.core.files import write_private

_BACKOFF = Backoff(first_s=0.2, cap_s=15.0)
_HEALTHY_AFTER_S = 20.0  # a child that lived this long starts from the first delay again
_LOG_MAX_BYTES = 10 * 2**20


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run. `stop_signal` asks it to end; after `stop_timeout_s` it is killed."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stop_signal: int = signal.SIGTERM
    stop_timeout_s: float = 8.0
    cwd: str = "/"


class Child:
    """One supervised process."""

    def __init__(self, spec: ChildSpec, log: Path) -> None:
        self.spec, self.log = spec, log
        self.process: subprocess.Popen[bytes] | None = None
        self.failures = 0
        self.started_mono_s = 0.0
        self.retry_at_mono_s = 0.0

    def start(self) -> None:
        """Start it now, in a session of its own: a Ctrl-C is the supervisor's to pass on, in order."""
        if self.log.exists() and self.log.stat().st_size > _LOG_MAX_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self.spec.env},
                user=self.spec.user,
                group=self.spec.user,
                extra_groups=[] if self.spec.user else None,
                start_new_session=True,
                cwd=self.spec.cwd,
            )
        self.started_mono_s = time.monotonic()

    def check(self) -> str | None:
        """Start it again when it is due; the sentence of what was noticed, or None."""
        if self.process is None:
            if time.monotonic() >= self.retry_at_mono_s:
                self.start()
                return f"{self.spec.name} started again"
            return None
        status = self.process.poll()
        if status is None:
            return None
        lived_s = time.monotonic() - self.started_mono_s
        self.failures = 1 if lived_s > _HEALTHY_AFTER_S else self.failures + 1
        delay_s = _BACKOFF.delay_s(self.failures, random.random)
        self.process, self.retry_at_mono_s = None, time.monotonic() + delay_s
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"{self.spec.name} {how} after {lived_s:.0f} s; next start in {delay_s:.1f} s (log: {self.log})"

    def ask_to_stop(self) -> None:
        """Send the stop signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(self.spec.stop_signal)

    def await_stop(self) -> None:
        """Wait for the end, and make it so when it takes too long."""
        if self.process is None:
            return
        try:
            self.process.wait(self.spec.stop_timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


class Children:
    """All of them, in the order of their start; their identities are on disk so that the next start can end what a kill -9 left."""

    def __init__(self, logs: Path, record: Path) -> None:
        self._logs, self._record = logs, record
        self._children: dict[str, Child] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._children

    def start(self, spec: ChildSpec) -> Child:
        """Start one and keep it running."""
        child = Child(spec, self._logs / f"{spec.name}.log")
        self._children[spec.name] = child
        child.start()
        self._remember()
        return child

    def check(self) -> list[str]:
        """One round over all; what was noticed."""
        noticed = [sentence for child in self._children.values() if (sentence := child.check())]
        if noticed:
            self._remember()
        return noticed

    def stop_all(self) -> None:
        """Stop the newest first: those that use others end before them."""
        for child in reversed(self._children.values()):
            child.ask_to_stop()
            child.await_stop()
        self._children.clear()
        self._remember()

    def pids(self) -> dict[str, int]:
        """Running ones by name."""
        return {name: child.process.pid for name, child in self._children.items() if child.process is not None}

    def _remember(self) -> None:
        rows = [{"name": name, "pid": pid, "started_at": started} for name, pid in self.pids().items() if (started := _started_at(pid))]
        write_private(self._record, json.dumps(rows))


def _started_at(pid: int) -> float | None:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return None


def end_leftovers(record: Path) -> list[str]:
    """End what an earlier supervisor left running.

    A pid alone is no identity (it may be somebody else's by now): its start time must fit too.
    """
    if not record.exists():
        return []
    found = []
    for row in json.loads(record.read_text(encoding="utf-8")):
        started_at = _started_at(row["pid"])
        if started_at is not None and abs(started_at - row["started_at"]) < 1.0:
            found.append((row["name"], psutil.Process(row["pid"])))
    for name, process in reversed(found):
        # PostgreSQL's SIGINT is its fast shutdown; its SIGTERM would wait for clients that no longer exist.
        process.send_signal(signal.SIGINT if name == "postgres" else signal.SIGTERM)
    _, alive = psutil.wait_procs([process for _, process in found], timeout=8)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=5)
    record.unlink()
    return [name for name, _ in found]
