"""The default launcher: a plain process in a session of its own, watched through a pidfd (no polling, and no thread per child)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from functools import partial

from fleets.agent import processes
from fleets.agent.launchers.base import LaunchError, LaunchOrder, OnExit
from fleets.agent.ranks import ProcessIdentity

_POLL_S = 0.5  # where the kernel has no pidfd_open (before Linux 5.3, and some sandboxes)


class ProcessLauncher:
    """Launcher of local processes. One serves all nodes of an agent."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._pidfds: dict[int, int] = {}  # by pid
        self._polls: dict[int, asyncio.TimerHandle] = {}

    async def launch(self, order: LaunchOrder, on_exit: OnExit) -> ProcessIdentity:
        """Start it; its output goes straight to the file, so that it can go on without the agent."""
        try:
            with order.log_path.open("ab") as output:
                child = subprocess.Popen(
                    order.argv, env=dict(order.env), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        except OSError as error:
            raise LaunchError(f"cannot start {order.argv[0]}: {error.strerror or error}") from error
        # An unreaped child keeps its pid, so even one that ended at once has its start time there.
        process = ProcessIdentity(pid=child.pid, started_ticks=processes.started_ticks(child.pid) or 0)
        self._children[child.pid] = child
        self._watch(process, on_exit)
        return process

    def adopt(self, process: ProcessIdentity, on_exit: OnExit) -> bool:
        """Watch it if it is still the same process."""
        if not processes.is_alive(process):
            processes.kill_group(process)
            return False
        self._watch(process, on_exit)
        return True

    def terminate(self, process: ProcessIdentity) -> None:
        """SIGTERM to the engine; its helpers are its own business."""
        processes.send_signal(process, signal.SIGTERM)

    def kill(self, process: ProcessIdentity) -> None:
        """SIGKILL to its whole session."""
        processes.kill_group(process)

    def close(self) -> None:
        """Forget all watches."""
        for pidfd in self._pidfds.values():
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        for poll in self._polls.values():
            poll.cancel()
        for child in self._children.values():
            child.returncode = child.returncode or 0  # left running on purpose: Popen need not warn of it
        self._pidfds.clear()
        self._polls.clear()
        self._children.clear()

    def _watch(self, process: ProcessIdentity, on_exit: OnExit) -> None:
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._loop.call_soon(self._ended, process, on_exit)
        except OSError:
            self._poll(process, on_exit)
        else:
            self._pidfds[process.pid] = pidfd
            self._loop.add_reader(pidfd, partial(self._ended, process, on_exit))

    def _poll(self, process: ProcessIdentity, on_exit: OnExit) -> None:
        if processes.is_alive(process):
            self._polls[process.pid] = self._loop.call_later(_POLL_S, self._poll, process, on_exit)
        else:
            self._ended(process, on_exit)

    def _ended(self, process: ProcessIdentity, on_exit: OnExit) -> None:
        if (pidfd := self._pidfds.pop(process.pid, None)) is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._polls.pop(process.pid, None)
        processes.kill_group(process)  # its helpers, while the zombie still holds the group's number
        on_exit(self._reap(process.pid))

    def _reap(self, pid: int) -> int | None:
        if child := self._children.pop(pid, None):
            return child.wait()
        try:
            # An adopted engine is nobody's child, unless the agent is the first process of its container.
            reaped, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        return os.waitstatus_to_exitcode(status) if reaped else None
