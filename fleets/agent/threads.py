"""Calls that may hang with the hardware, in threads that the end of the process does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(call: Callable[[], T]) -> T:
    """As asyncio.to_thread, but in a thread of its own: one that hangs in a driver holds up neither others nor the exit."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # without an error there is a value

    def work() -> None:
        value, failure = None, None
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001  # it is raised where the call is awaited
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, name="gpu-driver", daemon=True).start()
    return await answer
