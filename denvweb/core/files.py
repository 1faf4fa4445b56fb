"""Files that hold secrets or state: there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace a file at once, readable by its owner only; a text is written in UTF-8.

    `durable` also waits for the disk: a credential must survive a power cut, a list of processes need not.
    """
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content.encode() if isinstance(content, str) else content)
        if durable:
            out.flush()
            os.fsync(out.fileno())
    fresh.replace(path)


def write_whole(path: Path, text: str) -> None:
    """Write a file that anybody may read, in UTF-8: whoever is interrupted leaves the old one or none, never a part."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
