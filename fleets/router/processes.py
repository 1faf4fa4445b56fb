"""Several router processes on one port: the kernel spreads connections over them (SO_REUSEPORT), and each reports under its own name.

Each follows the table by itself, so that one that dies or hangs holds back none of the others; the parent only starts, restarts
and ends them. They see each other's load and prompts on a board (fleets.router.board).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence

from denvweb.core.backoff import Backoff
from denvweb.core.errors import InvalidError
from fleets.router.board import board_folder
from fleets.router.config import Config

log = logging.getLogger("fleets.router.processes")

KILL_AFTER_S = 10.0  # beyond the drain deadline
STEADY_S = 30.0  # a process that ran for so long did not fail at start
_BACKOFF = Backoff(first_s=0.2, cap_s=10.0)


def argv_of(config: Config, argv: Sequence[str], index: int, board: str) -> list[str]:
    """The flags of one of the processes: the last value of a flag holds."""
    peer = ["--peers", str(config.processes), "--peer-index", str(index), "--peer-board", board]
    return [*argv, "--processes", "1", "--reuse-port", *peer, "--name", f"{config.label}-{index}"]


class Processes:
    """The parent of the router processes."""

    def __init__(self, config: Config, argv: Sequence[str]) -> None:
        if not config.port:
            raise InvalidError("--processes needs a --port that they can share", code="port-missing")
        self._config = config
        self._argv = argv
        self._stopping = asyncio.Event()
        self._env = {**os.environ, "PYTHONHASHSEED": str(1 + random.SystemRandom().randrange(2**32 - 1))}
        self.running: dict[int, asyncio.subprocess.Process] = {}

    async def run(self) -> int:
        """Keep them running until SIGTERM or SIGINT; the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        with tempfile.NamedTemporaryFile(prefix="denv-router-", dir=board_folder()) as board:
            return await self._run(board.name)

    async def _run(self, board: str) -> int:
        keepers = [asyncio.create_task(self._keep(index, board)) for index in range(self._config.processes)]
        await self._stopping.wait()
        for process in self.running.values():
            process.terminate()
        done, late = await asyncio.wait(keepers, timeout=self._config.drain_deadline_s + KILL_AFTER_S)
        for process in self.running.values():
            process.kill()
        if late:
            await asyncio.wait(late)
        return max((keeper.result() for keeper in (*done, *late)), default=0)

    def _reload(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGHUP)

    async def _keep(self, index: int, board: str) -> int:
        """Run one, and again when it ends by itself; its last exit status."""
        loop, failed = asyncio.get_running_loop(), 0
        while True:
            started_s = loop.time()
            command = [sys.executable, "-m", "fleets.router.main", *argv_of(self._config, self._argv, index, board)]
            process = self.running[index] = await asyncio.create_subprocess_exec(*command, env=self._env)
            status = await process.wait()
            del self.running[index]
            if self._stopping.is_set():
                return status
            failed = 0 if loop.time() - started_s > STEADY_S else failed + 1
            log.warning("router process %d ended with status %d; it is started again", index, status)
            try:
                await asyncio.wait_for(self._stopping.wait(), _BACKOFF.delay_s(failed, random.random))
            except TimeoutError:
                continue
            return 0
