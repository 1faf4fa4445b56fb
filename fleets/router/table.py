"""The routing table: followed by long-poll, kept on disk, and never taken back to an older one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from denvweb.core import wire
from denvweb.core.errors import InvalidError, UnavailableError
from fleets.domain.protocol import RouterTable
from fleets.router.control import Control

log = logging.getLogger("fleets.router.table")

WAIT_S = 20.0


class TableKeeper:
    """Holds the newest table and hands each one on."""

    def __init__(self, *, stage: str, path: Path, apply: Callable[[RouterTable], None]) -> None:
        self._stage = stage
        self._path = path
        self._apply = apply
        self.current: RouterTable | None = None

    @property
    def generation(self) -> int:
        """Of the table in force; 0 without one."""
        return self.current.generation if self.current else 0

    def load(self) -> bool:
        """Start from the table on disk, so that a router serves while the control plane is down."""
        try:
            table = wire.decode(self._path.read_bytes(), RouterTable)
        except FileNotFoundError:
            return False
        except (InvalidError, OSError) as error:
            log.warning("the table in %s cannot be used: %s", self._path, error)
            return False
        return self.take(table, keep=False)

    def take(self, table: RouterTable, *, keep: bool = True) -> bool:
        """Put a table in force unless it is another stage's or no newer than the one that is."""
        held = self.current
        if table.stage != self._stage:
            log.warning("refused a table of stage %s", table.stage)
            return False
        if held is not None and (table.epoch, table.generation) <= (held.epoch, held.generation):
            if (table.epoch, table.generation) != (held.epoch, held.generation):
                log.warning("refused an older table: %d of epoch %d", table.generation, table.epoch)
            return False
        self._apply(table)
        self.current = table
        log.info("table %d of epoch %d in force: weights %s, %d units", table.generation, table.epoch, table.weights, len(table.units))
        if keep:
            self._save(table)
        return True

    def _save(self, table: RouterTable) -> None:
        """Written beside and moved over, so that a crash leaves the old one or the new one."""
        beside = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("wb") as file:
                file.write(wire.encode(table))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            log.warning("the table could not be kept in %s: %s", self._path, error)

    async def poll(self, control: Control) -> bool:
        """One long-poll; True when a newer table is in force. UnavailableError when the control plane does not answer."""
        query = f"/router/v1/table?stage={self._stage}&generation={self.generation}&wait_s={WAIT_S:g}"
        status, body = await control.get(query, deadline_s=WAIT_S + 10)
        if status == HTTPStatus.NO_CONTENT:
            return False
        if status != HTTPStatus.OK:
            raise UnavailableError(f"the control plane gave status {status} for the table: {body[:200].decode('utf-8', 'replace')}")
        return self.take(wire.decode(body, RouterTable))
