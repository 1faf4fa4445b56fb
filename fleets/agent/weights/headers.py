"""The checkpoint in a folder, from its headers alone: a few kilobytes of hundreds of gigabytes are read."""

from __future__ import annotations

from pathlib import Path

import msgspec

from denvweb.core.errors import InvalidError
from fleets.domain.safetensors import Checkpoint, Tensor, checkpoint, header_length, read_header


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """None where there are no safetensors or no `config.json`, or they cannot be read: an engine may know them all the same."""
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict)
        tensors = [tensor for path in sorted(folder.glob("*.safetensors")) for tensor in _tensors(path)]
        return checkpoint(config, tensors) if tensors else None
    except (OSError, InvalidError, msgspec.MsgspecError):
        return None


def _tensors(path: Path) -> tuple[Tensor, ...]:
    with path.open("rb") as file:
        return read_header(file.read(header_length(file.read(8))))
