"""DENV_HOME: one folder with all data, logs and credentials of a local denv."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from denvweb.core.errors import ConflictError, UnavailableError
from denvweb.core.files import write_private
from denvweb.local import embedded


@dataclass(frozen=True, slots=True)
class Home:
    """The folders, and the small files that must outlive a restart."""

    root: Path

    @property
    def data(self) -> Path:
        """PostgreSQL's and Valkey's files."""
        return self.root / "data"

    @property
    def logs(self) -> Path:
        """One log a process."""
        return self.root / "logs"

    @property
    def credentials(self) -> Path:
        """Secrets; nobody but the owner may look."""
        return self.root / "credentials"

    @property
    def run(self) -> Path:
        """What runs now, and on which port."""
        return self.root / "run"

    def agent_state(self, fleet: str) -> Path:
        """Where the agent of a fleet keeps its state."""
        return self.root / "agents" / fleet

    def router_state(self) -> Path:
        """Where routers keep their tables."""
        return self.root / "routers"

    def prepare(self) -> None:
        """Make the folders."""
        # PostgreSQL runs under an account of its own when denv runs as root, and must reach its folder.
        self.root.mkdir(parents=True, exist_ok=True, mode=0o755)
        for folder in (self.data, self.logs, self.run):
            folder.mkdir(exist_ok=True)
        self.credentials.mkdir(exist_ok=True, mode=0o700)

    def lock(self) -> IO[str]:
        """Hold this home; ConflictError names who does already. Released when the returned file is closed, or the process dies."""
        handle = (self.run / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            raise ConflictError(
                f"denv already runs from {self.root} (pid {handle.read().strip() or 'unknown'}). "
                "Stop it first, or set DENV_HOME to another folder.",
                code="already-running",
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        return handle

    def secret(self, name: str) -> str:
        """A secret that is made once."""
        path = self.credentials / name
        if not path.exists():
            write_private(path, secrets.token_urlsafe(48))
        return path.read_text(encoding="utf-8").strip()

    @property
    def _ports_file(self) -> Path:
        return self.run / "ports.json"

    def _ports(self) -> dict[str, int]:
        ports: dict[str, int] = json.loads(self._ports_file.read_text(encoding="utf-8")) if self._ports_file.exists() else {}
        return ports

    def port(self, name: str, first: int | None = None) -> int:
        """The port of a program, the same at every start; a new one counts up from `first`, or is any free one."""
        ports = self._ports()
        if name not in ports:
            taken = set(ports.values())
            ports[name] = (
                embedded.free_port()
                if first is None
                else next(port for port in range(first, 65_536) if port not in taken and embedded.all_free(port, 1))
            )
            write_private(self._ports_file, json.dumps(ports))
        return ports[name]

    def port_range(self, name: str, count: int) -> int:
        """The first of `count` ports in a row, the same at every start; a new range is one in which nobody listens now.

        Below 32,768, where Linux begins to hand out ports of its own choice.
        """
        ports = self._ports()
        if name not in ports:
            # Each home begins to look elsewhere: two that start at the same moment would find the same ports free.
            bases = range(20_000, 32_000 - count, 500)
            first = zlib.crc32(str(self.root).encode()) % len(bases)
            base = next((base for base in [*bases[first:], *bases[:first]] if embedded.all_free(base, count)), None)
            if base is None:
                raise UnavailableError(f"no {count:,} ports in a row are free between 20,000 and 32,000; end what listens there")
            ports[name] = base
            write_private(self._ports_file, json.dumps(ports))
        return ports[name]

    def remembered_ports(self, prefix: str) -> dict[str, int]:
        """The programs that were given a port before, by their names after the prefix."""
        ports = self._ports()
        return {name.removeprefix(prefix): port for name, port in ports.items() if name.startswith(prefix)}
