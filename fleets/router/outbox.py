"""Small messages of one turn of the event loop, written together at its end.

Each write to a peer that sleeps costs the time to wake it. The first of a turn goes out at once, so that a router with little to do
adds no delay; the peers that it wakes are still awake when the others follow in a row.
"""

from __future__ import annotations

import asyncio

HELD_MAX = 16  # more are written in the middle of a long turn, so that the first of a burst do not wait for the last


class Outbox:
    """Holds writes back to the end of the turn. Whoever writes to the same transport directly flushes first."""

    __slots__ = ("_held", "_loop", "_open")

    def __init__(self) -> None:
        self._held: list[tuple[asyncio.Transport, bytes]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = False  # something went out in this turn

    def put(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write now, or at the end of the turn."""
        if self._open:
            self._held.append((transport, data))
            if len(self._held) >= HELD_MAX:
                self.flush()
            return
        self._open = True
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._turn)
        transport.write(data)

    def flush(self) -> None:
        """Write what is held now."""
        if self._held:
            held, self._held = self._held, []
            for transport, data in held:
                if not transport.is_closing():
                    transport.write(data)

    def _turn(self) -> None:
        self._open = False
        self.flush()
