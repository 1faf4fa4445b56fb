"""What the router was told: every table that it put in force, as it lies on its disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from denvweb.core import wire
from denvweb.core.errors import InvalidError
from fleets.domain.protocol import RouterTable

_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Seen:
    """A table and when it was first seen, seconds since the epoch."""

    at: float
    table: RouterTable

    @property
    def weights(self) -> dict[str, int]:
        """By release, those over zero."""
        return {release: weight for release, weight in self.table.weights.items() if weight > 0}

    def capacity(self, release: str) -> int:
        """Units that could take a request for this release: routable, and with a replica in every role that the unit has."""
        return sum(unit.routable and bool(unit.replicas) for unit in self.table.units if unit.release == release)


@dataclass
class Watch:
    """Follows the router's table."""

    folder: Path
    tables: list[Seen] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looks while the block runs."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _run(self) -> None:
        last = b""
        while not self._over.wait(_EVERY_S):
            for path in self.folder.rglob("*.json"):
                data = path.read_bytes()
                if data == last:
                    continue
                last = data
                try:
                    table = wire.decode(data, RouterTable)
                except InvalidError:
                    continue  # another file of the router's
                self.tables.append(Seen(time.time(), table))
