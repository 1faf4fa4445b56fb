"""Processes by identity, from /proc: whether the one that was started still runs, and how to end it and no other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fleets.agent.ranks import ProcessIdentity

MARK_STATE = "DENV_AGENT_STATE"  # in every engine's environment: the state folder of the agent that started it
MARK_NODE = "DENV_NODE"
MARK_RANK = "DENV_RANK_ID"
MARK_ENGINE = "DENV_ENGINE_ID"


@dataclass(frozen=True, slots=True)
class Marked:
    """An engine that was found by its environment."""

    node: str
    rank_id: str
    engine_id: str
    process: ProcessIdentity


def boot_id() -> str:
    """Changes when the machine boots; pids and monotonic times of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    rest = text[text.rindex(")") + 2 :].split()  # the command's name stands in parentheses and may hold blanks and parentheses
    return rest[0], int(rest[19])


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a live process; None when it is gone or a zombie."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else ProcessIdentity(pid=pid, started_ticks=stat[1])


def started_ticks(pid: int) -> int | None:
    """Start time of a process, also of a zombie; None when there is none."""
    stat = _stat(pid)
    return None if stat is None else stat[1]


def is_alive(process: ProcessIdentity) -> bool:
    """Whether this very process still runs, not another that got its pid."""
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, signum: int) -> bool:
    """Signal the leader of the engine's session alone; False when it is gone."""
    if not is_alive(process):
        return False
    try:
        os.kill(process.pid, signum)
    except ProcessLookupError:
        return False
    return True


def kill_group(process: ProcessIdentity) -> None:
    """End the engine with all its helpers by force. Only while the process is there, or a zombie that holds its pid."""
    stat = _stat(process.pid)
    if stat is None or stat[1] != process.started_ticks:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def find_marked(state_path: Path) -> Iterator[Marked]:
    """Every engine that an agent with this state folder started, whatever its files say.

    An agent that is killed between the start of an engine and the write of its state would else leave it behind for ever.
    Helpers of an engine inherit its environment, so only leaders of a session count.
    """
    for process in find_all_marked(state_path):
        variables = _environment(process.pid)
        if _leads_session(process.pid) and is_alive(process):
            yield Marked(_value(variables, MARK_NODE), _value(variables, MARK_RANK), _value(variables, MARK_ENGINE), process)


def find_all_marked(state_path: Path) -> Iterator[ProcessIdentity]:
    """Those engines and all their helpers."""
    wanted = f"{MARK_STATE}={state_path}".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (process := identify(int(entry.name))) and wanted in _environment(process.pid):
            yield process


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # gone, or another user's


def _value(variables: list[bytes], name: str) -> str:
    head = f"{name}=".encode()
    return next((item[len(head) :].decode(errors="replace") for item in variables if item.startswith(head)), "")


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False
