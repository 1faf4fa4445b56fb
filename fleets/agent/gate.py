"""How many engines may be in the first moments of their start at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_HOLD_MAX_S = 2.0  # a gang's leader waits for its followers, which may stand behind it in this very queue


class StartGate:
    """A semaphore whose places are given back when the engine is up, or after two seconds at the latest."""

    def __init__(self, places: int = 8) -> None:
        self._places = asyncio.Semaphore(places)

    async def take(self) -> Callable[[], None]:
        """Wait for a place; call what is returned when the engine is ready or dead (twice does no harm)."""
        await self._places.acquire()
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            if not given_back:
                given_back = True
                timer.cancel()
                self._places.release()

        timer = asyncio.get_running_loop().call_later(_HOLD_MAX_S, give_back)
        return give_back
