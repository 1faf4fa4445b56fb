"""Engine logs: one file a rank, two generations, and the last lines of one as the reason of a death."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

MAX_BYTES = 16 * 2**20
KEEP_S = 7 * 86400.0  # how long the log of a forgotten rank stays
_TAIL_BYTES = 8192
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def _older(path: Path) -> Path:
    return path.with_suffix(".log.1")


def prepare(path: Path) -> int:
    """Make room for a new process: a file of at least half the limit moves away. Returns the length of what is there then."""
    if not path.exists():
        return 0
    length = path.stat().st_size
    if length < MAX_BYTES // 2:
        return length
    path.replace(_older(path))
    return 0


def has_line(path: Path, head: str, offset: int) -> bool:
    """Whether a line after `offset` begins with `head`."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return any(line.strip().startswith(head.encode()) for line in file)
    except OSError:
        return False


def rotate_in_use(path: Path) -> bool:
    """Cut a file over the limit while its engine goes on writing: copy, then truncate (the engine appends, so it follows)."""
    if path.stat().st_size < MAX_BYTES:
        return False
    with path.open("r+b") as source, _older(path).open("wb") as copy:
        while chunk := source.read(2**20):
            copy.write(chunk)
        source.truncate(0)
    return True


def sweep(folder: Path, known: frozenset[str]) -> None:
    """Rotate what is too long, and remove old logs of ranks that are not `known`."""
    for path in folder.iterdir():
        rank_id = path.name.split(".log")[0]
        if path.suffix == ".log" and rank_id in known:
            rotate_in_use(path)
        elif rank_id not in known and time.time() - path.stat().st_mtime > KEEP_S:
            path.unlink(missing_ok=True)


def tail(path: Path, lines: int = 5) -> str:
    """The last lines, printable; empty when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    kept = [_CONTROL.sub("", line).rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(kept[-lines:])
