"""Sends the logs that people read: the control plane asks with a snapshot, and the agent posts pieces for as long as it is told to."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from denvweb.core.backoff import Backoff
from denvweb.core.errors import DenvError
from fleets.agent import logs, state
from fleets.agent.redact import redact
from fleets.domain.protocol import LogAsk, LogPiece, LogPieceReply

log = logging.getLogger(__name__)

PIECE_BYTES = 64 * 1024
_LOOK_EVERY_S = 0.4
_SILENCE_S = 5.0  # a piece without text asks whether anybody still reads
_UNFINISHED_S = 2.0  # a line without an end is sent as it is once nothing was added for so long
_ASKS_MOST = 32  # of one node at once
_SEND_BACKOFF = Backoff(first_s=0.5, cap_s=5.0)


class PieceLink(Protocol):
    """The way to the control plane."""

    async def log_piece(self, credential: str, piece: LogPiece) -> LogPieceReply:
        """Deliver one piece; DenvError when it cannot be."""


class LogTails:
    """The logs of one node that are read now."""

    def __init__(
        self, state_path: Path, link: PieceLink, credential: Callable[[], str], secrets: Callable[[str], Sequence[str]] = lambda rank_id: ()
    ) -> None:
        """`secrets` are the values that a rank's engine was given."""
        self._state_path = state_path
        self._link = link
        self._credential = credential
        self._secrets = secrets
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def want(self, asks: Sequence[LogAsk]) -> None:
        """Send these; those under way go on by themselves until they are told to end."""
        for ask in asks:
            if ask.ask not in self._tasks and len(self._tasks) < _ASKS_MOST:
                self._tasks[ask.ask] = task = asyncio.create_task(self._send(ask))
                task.add_done_callback(partial(self._ended, ask.ask))

    def _ended(self, ask: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(ask, None)
        if not task.cancelled() and (error := task.exception()):
            log.error("sending a log failed", exc_info=error)

    async def close(self) -> None:
        """Send no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, ask: LogAsk) -> None:
        path = state.log_path(self._state_path, ask.rank_id)
        if not path.exists() and not ask.follow:
            await self._deliver(LogPiece(ask.ask, 0, 0, done=True, detail="its engine was never started on this node"))
            return
        position = _first(path, ask)
        end, silent_s = logs.span(path)[1], 0.0
        while True:
            start, data = logs.read_at(path, position, PIECE_BYTES)
            if silent_s < _UNFINISHED_S and (ask.follow or start + len(data) < end):
                data = _whole_lines(data)  # the rest of the line comes soon, or its engine died over it
            last = not ask.follow and start + len(data) >= end
            if data or last or silent_s >= _SILENCE_S:
                piece = LogPiece(ask.ask, start, start + len(data), self._text(ask.rank_id, data), done=last)
                if not await self._deliver(piece) or last:
                    return
                position, silent_s = piece.end, 0.0
            if len(data) < PIECE_BYTES // 2:
                await asyncio.sleep(_LOOK_EVERY_S)
                silent_s += _LOOK_EVERY_S

    def _text(self, rank_id: str, data: bytes) -> str:
        lines = data.decode(errors="replace").split("\n")
        return redact("\n".join(logs.printable(line) for line in lines), self._secrets(rank_id))

    async def _deliver(self, piece: LogPiece) -> bool:
        """Until it is taken; False when nobody reads any more, or the control plane will not have it."""
        failures = 0
        while True:
            try:
                reply = await self._link.log_piece(self._credential(), piece)
            except DenvError as error:
                failures += 1
                if failures > 6 or error.code == "refused":
                    log.info("a log is not sent any more: %s", error)
                    return False
                await asyncio.sleep(_SEND_BACKOFF.delay_s(failures, random.random))
                continue
            if reply.taken or not reply.go_on:
                return reply.go_on
            await asyncio.sleep(_SILENCE_S / 5)


def _first(path: Path, ask: LogAsk) -> int:
    if ask.position is not None:
        return ask.position
    if ask.since_at is not None:
        return logs.since_position(path, ask.since_at)
    return logs.tail_position(path, ask.tail_lines)


def _whole_lines(data: bytes) -> bytes:
    """Up to the last line's end; a full piece without any is sent as it is."""
    at = data.rfind(b"\n")
    return data[: at + 1] if at >= 0 else data if len(data) >= PIECE_BYTES else b""
