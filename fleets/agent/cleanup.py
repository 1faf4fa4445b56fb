"""Ends engines that an agent left behind: for a supervisor that starts afresh and wants none of the last run's."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from fleets.agent import processes, state
from fleets.agent.ranks import ProcessIdentity

_TERM_S = 3.0
_POLL_S = 0.05


def kill_leftovers(state_dir: Path | str) -> int:
    """End every engine that the state files name or that bears this folder's mark; returns how many there were.

    SIGTERM first, SIGKILL after 3 s, also to helpers that outlived their engine. Each is known by pid and start time, so a
    process that got an old pid is left alone. No agent may be running on the folder.
    """
    state_path = Path(state_dir).absolute()
    engines = [process for process in _recorded(state_path) if processes.send_signal(process, signal.SIGTERM)]
    end_s = time.monotonic() + _TERM_S
    while any(processes.is_alive(process) for process in engines) and time.monotonic() < end_s:
        time.sleep(_POLL_S)
    for process in engines:
        processes.kill_group(process)
    for helper in processes.find_all_marked(state_path):
        processes.send_signal(helper, signal.SIGKILL)
    return len(engines)


def _recorded(state_path: Path) -> set[ProcessIdentity]:
    boot_id = processes.boot_id()
    named = {
        run.process
        for node in state.load_all(state_path)
        if node.boot_id == boot_id
        for run in node.runs.values()
        if run.process is not None
    }
    return named | {marked.process for marked in processes.find_marked(state_path)}
