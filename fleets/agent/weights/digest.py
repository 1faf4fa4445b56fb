"""The digest of weights in a folder: of the one file, or of the list that `sha256sum` makes of several."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from denvweb.core.errors import InvalidError

DIGEST = re.compile(r"sha256[-:]([0-9a-f]{12,64})")
_PIECE_BYTES = 4 * 2**20


def expected(pin: str) -> str:
    """The hexadecimal digits of `sha256-1f0c...`, 12 of them at least; InvalidError when the pin is none."""
    match = DIGEST.fullmatch(pin)
    if match is None:
        raise InvalidError(f"`{pin}` is no digest; write sha256- and at least 12 digits of it", code="weights-digest")
    return match[1]


def weight_files(path: Path) -> list[Path]:
    """The file itself; of a folder its safetensors, or else all of its files, by name."""
    if path.is_file():
        return [path]
    files = sorted(each for each in path.rglob("*") if each.is_file())
    return [each for each in files if each.suffix == ".safetensors"] or files


def digest_of(path: Path, on_bytes: Callable[[int], None] = lambda count: None) -> str:
    """SHA-256 of the one weight file, else of the lines `DIGEST  NAME` of all, as `sha256sum *.safetensors | sha256sum` has it."""
    files = weight_files(path)
    if not files:
        raise InvalidError(f"there are no weights in {path}", code="weights-missing")
    digests = [(_sha256(each, on_bytes), each.relative_to(path).as_posix() if path.is_dir() else each.name) for each in files]
    if len(digests) == 1:
        return digests[0][0]
    return hashlib.sha256("".join(f"{digest}  {name}\n" for digest, name in digests).encode()).hexdigest()


def _sha256(path: Path, on_bytes: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            on_bytes(len(piece))
    return digest.hexdigest()
