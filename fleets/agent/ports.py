"""Whether an engine's ports are free before it is started: some engines neither serve nor end when one is not."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fleets.agent.launchers.base import LaunchError

WAIT_S = 2.0  # for an engine that has just ended to let go of its ports
_LOOK_EVERY_S = 0.1
_LISTENING = "0A"  # a state in /proc/net/tcp


async def require_free(host: str, listens: Mapping[int, str]) -> None:
    """Return when nobody listens on any of `listens` (what each port is for) at `host`; LaunchError names the port and its holder."""
    left = WAIT_S
    while taken := [port for port in listens if _is_taken(host, port)]:
        if left <= 0:
            port = taken[0]
            raise LaunchError(
                f"port {port} ({listens[port]}) is taken{_holder(port)}; end that program, or start the agent with another --port-base",
                code="port-taken",
            )
        await asyncio.sleep(_LOOK_EVERY_S)
        left -= _LOOK_EVERY_S


def _is_taken(host: str, port: int) -> bool:
    """As the engine would find out. A host that is not this machine's own says nothing."""
    try:
        with socket.create_server((host, port), reuse_port=False):
            return False
    except OSError as error:
        return error.errno == errno.EADDRINUSE


def _holder(port: int) -> str:
    """` by process 4711 (redis-server)`, or nothing where it cannot be seen."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not inodes:
        return ""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # it ended, or is somebody else's
            if any(os.readlink(entry.path) in inodes for entry in os.scandir(folder)):
                name = (folder.parent / "comm").read_text(encoding="utf-8", errors="replace").strip()
                return f" by process {folder.parent.name} ({name})"
    return ""


def _listening_inodes(port: int) -> list[str]:
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found.append(fields[9])
    return found
