"""A whole denv of real processes in a folder of its own, driven by the `denv` command as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from denvweb.cli.client import Access, Client
from denvweb.local import embedded

T = TypeVar("T")
DENV = (sys.executable, "-m", "denvweb.cli.main")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        """Its `--json` answer."""
        return json.loads(self.out)


class Instance:
    """`denv up`, started and stopped by a test."""

    def __init__(self, home: Path, *, demo: bool, port: int | None = None) -> None:
        self.home, self.demo = home, demo
        self.port = port or embedded.free_port()
        # The servers of the test run are not this instance's: it brings its own, as it would for a user.
        self.env = {
            key: value for key, value in os.environ.items() if key not in {"DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "CI"}
        }
        self.env |= {"DENV_HOME": str(home), "PYTHONUNBUFFERED": "1"}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start `denv up`; returns at once."""
        self.home.mkdir(parents=True, exist_ok=True)
        argv = [*DENV, "up", "--no-browser", "--port", str(self.port), *(["--demo"] if self.demo else [])]
        with (self.home / "up.log").open("ab") as out:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env, cwd=ROOT)

    def stop(self) -> None:
        """Ctrl-C."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    def kill(self) -> None:
        """kill -9 of the supervisor alone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def run(self, *args: str, timeout_s: float = 120.0) -> Done:
        """Run one `denv` command to its end."""
        done = subprocess.run([*DENV, *args], capture_output=True, text=True, env=self.env, cwd=ROOT, timeout=timeout_s, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    def spawn(self, *args: str) -> subprocess.Popen[str]:
        """Start a `denv` command beside the test."""
        return subprocess.Popen([*DENV, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env, cwd=ROOT)

    def client(self) -> Client:
        """A client with the token that `denv up` wrote."""
        saved = json.loads((self.home / "credentials" / "cli.json").read_text(encoding="utf-8"))
        return Client(Access(url=saved["url"], token=saved["token"]))

    def log(self) -> str:
        """What `denv up` printed so far."""
        path = self.home / "up.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def pids(self) -> dict[str, int]:
        """The supervised programs by name."""
        rows = json.loads((self.home / "run" / "children.json").read_text(encoding="utf-8"))
        return {row["name"]: row["pid"] for row in rows}

    def processes(self) -> list[psutil.Process]:
        """Every process that belongs to this home, engines included, by its environment."""
        return [
            process for process, environ in self._environs() if environ.get("DENV_HOME") == str(self.home) or _is_engine(environ, self.home)
        ]

    def engines(self, *, kind: str) -> list[psutil.Process]:
        """Simulated engine processes whose command line has `kind`, as in `--role=decode` or `follower.py`."""
        return [process for process, environ in self._environs() if _is_engine(environ, self.home) and kind in " ".join(process.cmdline())]

    def _environs(self) -> list[tuple[psutil.Process, dict[str, str]]]:
        found = []
        for process in psutil.process_iter():
            try:
                found.append((process, process.environ()))
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def until(self, look: Callable[[], T | None], *, timeout_s: float, what: str, every_s: float = 0.2) -> T:
        """Poll until `look` gives something true; a failure shows the end of the supervisor's log."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if value := look():
                    return value
                last = "not yet"
            except Exception as error:  # the thing looked at is on its way up or back
                last = repr(error)
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout_s:.0f} s ({last})\n{self.log()[-3000:]}")
            time.sleep(every_s)


def _is_engine(environ: dict[str, str], home: Path) -> bool:
    """Engines carry their agent's marks and nothing else of denv's environment."""
    return environ.get("DENV_AGENT_STATE", "").startswith(str(home))
