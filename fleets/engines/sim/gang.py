"""Rank 0's side of a gang: followers connect and stay connected; one that goes takes the whole replica along.

Lines: a follower says `join REPLICA RANK PID`; rank 0 answers `ok HEARTBEAT_S` or `no REASON`, `go` once all are here, and then
`beat` at each heartbeat, which a follower answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

_SILENCE_BEATS = 6
_HELLO_S = 10.0


class Gang:
    """All ranks of one replica but this one."""

    def __init__(
        self, *, replica: str, ranks: int, heartbeat_s: float, on_complete: Callable[[], None], on_broken: Callable[[str], None]
    ) -> None:
        self._replica, self._ranks, self._heartbeat_s = replica, ranks, heartbeat_s
        self._on_complete, self._on_broken = on_complete, on_broken
        self._links: dict[int, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self.complete = ranks == 1

    @property
    def missing(self) -> int:
        """Followers that are not here yet."""
        return self._ranks - 1 - len(self._links)

    async def start(self, host: str, port: int) -> None:
        """Listen, if there is anybody to wait for."""
        if self._ranks > 1:
            self._server = await asyncio.start_server(self._serve, host, port)

    def close(self) -> None:
        """Listen no more, and let all followers go."""
        if self._server is not None:
            self._server.close()
        for writer in self._links.values():
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = 0
        try:
            async with asyncio.timeout(_HELLO_S):
                words = (await reader.readline()).split()
            rank, reason = self._admit(words)
            if reason:
                writer.write(f"no {reason}\n".encode())
                return
            self._links[rank] = writer
            writer.write(f"ok {self._heartbeat_s:g}\n".encode())
            if not self.missing:
                self._completed()
            await self._listen(reader)
        except (OSError, ValueError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # gone, silent or talking nonsense: it has left the gang; or this engine ends
        finally:
            if rank and self._links.get(rank) is writer:
                del self._links[rank]
                if self.complete:
                    self._on_broken(f"rank {rank} is gone")
            with suppress(OSError):
                writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Return when the follower has gone; TimeoutError when it is silent."""
        while True:
            async with asyncio.timeout(self._heartbeat_s * _SILENCE_BEATS):
                if not await reader.readline():
                    return

    def _admit(self, words: list[bytes]) -> tuple[int, str]:
        if len(words) != 4 or words[0] != b"join":
            return 0, "that is no greeting"
        rank = int(words[2])
        if words[1].decode() != self._replica:
            return 0, f"this is {self._replica}"
        if not 0 < rank < self._ranks:
            return 0, f"the replica has {self._ranks} ranks"
        if self.complete and rank in self._links:
            return 0, "that rank is here already"
        if rank in self._links:
            self._links.pop(rank).close()  # its first process died before the gang was complete
        return rank, ""

    def _completed(self) -> None:
        self.complete = True
        for writer in self._links.values():
            writer.write(b"go\n")
        self._beat()
        self._on_complete()

    def _beat(self) -> None:
        for writer in self._links.values():
            with suppress(OSError):
                writer.write(b"beat\n")
        asyncio.get_running_loop().call_later(self._heartbeat_s, self._beat)
