"""Engine logs: one file a rank, two generations, and the last lines of one as the reason of a death.

A position counts the bytes that a log ever had. `RANK.log.base` is the position of the present file's first byte, and
`RANK.log.times` says which position was the end at which time, so that `--since` needs no dates in the lines.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

MAX_BYTES = 16 * 2**20
KEEP_S = 7 * 86400.0  # how long the log of a forgotten rank stays
_TAIL_BYTES = 8192
_TIMES_MAX_BYTES = 256 * 1024
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def _older(path: Path) -> Path:
    return path.with_suffix(".log.1")


def _base_path(path: Path) -> Path:
    return path.with_suffix(".log.base")


def _times_path(path: Path) -> Path:
    return path.with_suffix(".log.times")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _base(path: Path) -> int:
    try:
        return int(_base_path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _size(_older(path))  # of a log that an older agent rotated


def prepare(path: Path) -> int:
    """Make room for a new process: a file of at least half the limit moves away. Returns the length of what is there then."""
    length = _size(path)
    if length >= MAX_BYTES // 2:
        base = _base(path) + length
        path.replace(_older(path))
        _base_path(path).write_text(str(base), encoding="ascii")
        length = 0
    stamp(path)
    return length


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
    base, copied = _base(path), 0
    with path.open("r+b") as source, _older(path).open("wb") as copy:
        while chunk := source.read(2**20):
            copied += copy.write(chunk)
        source.truncate(0)
    _base_path(path).write_text(str(base + copied), encoding="ascii")
    return True


def sweep(folder: Path, known: frozenset[str]) -> None:
    """Rotate what is too long, note how far each log is, and remove old logs of ranks that are not `known`."""
    for path in folder.iterdir():
        rank_id = path.name.split(".log")[0]
        if path.suffix == ".log" and rank_id in known:
            rotate_in_use(path)
            stamp(path)
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
    kept = [printable(line).rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(kept[-lines:])


def printable(line: str) -> str:
    """A line without colours and control characters."""
    return _CONTROL.sub("", line)


# ---- by position ----


def span(path: Path) -> tuple[int, int]:
    """Positions of the first byte that is kept, and behind the last one."""
    base = _base(path)
    return base - min(base, _size(_older(path))), base + _size(path)


def read_at(path: Path, position: int, limit: int) -> tuple[int, bytes]:
    """Up to `limit` bytes from `position`, or from the first that are kept; and where they begin."""
    first, end = span(path)
    position = max(first, position) if position <= end else first  # beyond the end: the log began anew
    base = _base(path)
    if position < base:
        return position, _read(_older(path), position - first, min(limit, base - position))
    return position, _read(path, position - base, limit)


def _read(path: Path, offset: int, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except OSError:
        return b""


def tail_position(path: Path, lines: int, most_bytes: int = 256 * 1024) -> int:
    """Where the last `lines` lines begin, looking back at most `most_bytes`."""
    first, end = span(path)
    start = max(first, end - most_bytes)
    data = b""
    while start + len(data) < end:
        _, more = read_at(path, start + len(data), most_bytes)
        if not more:
            break
        data += more
    if lines < 1:
        return start + len(data)
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return start
    return start + at + 1


# ---- by time ----


def stamp(path: Path, now_s: float | None = None) -> None:
    """Note the position of the end, if it moved since the last note."""
    times, end = _times_path(path), span(path)[1]
    known = _times(path)
    if known and known[-1][1] == end:
        return
    if _size(times) > _TIMES_MAX_BYTES:
        kept = known[len(known) // 2 :]
        times.write_text("".join(f"{at_s:.0f} {position}\n" for at_s, position in kept), encoding="ascii")
    with times.open("a", encoding="ascii") as out:
        out.write(f"{time.time() if now_s is None else now_s:.0f} {end}\n")


def _times(path: Path) -> list[tuple[float, int]]:
    try:
        lines = _times_path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    pairs = (line.split() for line in lines)
    return [(float(pair[0]), int(pair[1])) for pair in pairs if len(pair) == 2]


def since_position(path: Path, at_s: float) -> int:
    """A position from which on lies all that was written since then, and at most half a minute more."""
    before = [position for noted_s, position in _times(path) if noted_s <= at_s]
    return before[-1] if before else span(path)[0]
