"""What an agent must not forget of its GPUs when it restarts: their numbers, and the Xid errors of this boot of the machine."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

from denvweb.core import wire
from denvweb.core.errors import InvalidError
from denvweb.core.files import write_private

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Kept:
    boot_id: str = ""
    uuids: tuple[str, ...] = ()  # by number
    xids: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by UUID, since the boot


class GpuMemory:
    """A file in the agent's state folder. A driver tells an Xid once, to who listens then; after a boot it counts no more."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        kept = _read(path)
        self._kept = replace(kept, boot_id=boot_id, xids=kept.xids if kept.boot_id == boot_id else {})

    @property
    def uuids(self) -> tuple[str, ...]:
        """Each GPU's UUID by its number."""
        return self._kept.uuids

    def xids(self, uuid: str) -> tuple[int, ...]:
        """Those that a GPU had since the machine booted."""
        return self._kept.xids.get(uuid, ())

    def number(self, uuids: tuple[str, ...]) -> None:
        """Keep the numbers."""
        if uuids != self._kept.uuids:
            self._keep(replace(self._kept, uuids=uuids))

    def add_xid(self, uuid: str, xid: int) -> None:
        """Keep an error."""
        if xid not in self.xids(uuid):
            self._keep(replace(self._kept, xids=self._kept.xids | {uuid: (*self.xids(uuid), xid)}))

    def _keep(self, kept: _Kept) -> None:
        self._kept = kept
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(self._path, wire.encode(kept))
        except OSError as error:
            log.warning("cannot write %s, so a restart of the agent forgets what its GPUs had: %s", self._path, error)


def _read(path: Path) -> _Kept:
    try:
        return wire.decode(path.read_bytes(), _Kept)
    except FileNotFoundError:
        return _Kept()
    except (InvalidError, OSError) as error:
        log.error("cannot read %s, going on without it: %s", path, error)
        return _Kept()
