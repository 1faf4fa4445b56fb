"""Real processes: told from others, watched, adopted, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleets.agent import logs, processes
from fleets.agent.cleanup import kill_leftovers
from fleets.agent.launchers.base import LaunchError, LaunchOrder
from fleets.agent.launchers.process import ProcessLauncher
from fleets.agent.ranks import ProcessIdentity


@pytest.fixture
async def launcher() -> AsyncIterator[ProcessLauncher]:
    made = ProcessLauncher()
    yield made
    made.close()


@pytest.fixture
def strangers() -> Iterator[list[int]]:
    """Pids of processes that are not the launcher's children; ended after the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if processes.identify(pid):
            os.killpg(pid, signal.SIGKILL)


def stranger(pids: list[int], env: dict[str, str] | None = None, command: str = "sleep 60") -> ProcessIdentity:
    """A process in its own session whose parent is gone, as an engine is for the agent that comes after."""
    script = (
        f"import os, subprocess; p = subprocess.Popen(['sh', '-c', 'exec {command}'], start_new_session=True, stdout=subprocess.DEVNULL);"
        "print(p.pid, flush=True); os._exit(0)"
    )
    found = subprocess.run([sys.executable, "-I", "-S", "-c", script], env=env, stdout=subprocess.PIPE, text=True, check=True)
    pids.append(int(found.stdout))
    identity = processes.identify(pids[-1])
    assert identity is not None
    return identity


def order(tmp_path: Path, *argv: str) -> LaunchOrder:
    return LaunchOrder(rank_id="k-1", argv=argv, env=dict(os.environ), log_path=tmp_path / "k-1.log")


async def ended(launcher: ProcessLauncher, what: LaunchOrder) -> int | None:
    done: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    await launcher.launch(what, done.set_result)
    return await asyncio.wait_for(done, 5)


async def test_an_end_is_told_with_its_code_and_the_log_is_kept(launcher: ProcessLauncher, tmp_path: Path) -> None:
    assert await ended(launcher, order(tmp_path, "sh", "-c", "echo one; echo two >&2; exit 7")) == 7
    assert logs.tail(tmp_path / "k-1.log") == "one\ntwo"
    assert await ended(launcher, order(tmp_path, "sh", "-c", "kill -9 $$")) == -9
    assert await ended(launcher, order(tmp_path, "true")) == 0


async def test_a_command_that_is_not_there_is_a_launch_error(launcher: ProcessLauncher, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot start no-such-engine: No such file or directory"):
        await launcher.launch(order(tmp_path, "no-such-engine"), lambda code: None)


async def test_helpers_of_an_engine_end_with_it(launcher: ProcessLauncher, tmp_path: Path) -> None:
    pid_file = tmp_path / "helper"
    assert await ended(launcher, order(tmp_path, "sh", "-c", f"sleep 60 & echo $! > {pid_file}; exit 1")) == 1
    helper = int(pid_file.read_text())
    async with asyncio.timeout(5):
        while processes.identify(helper):
            await asyncio.sleep(0.01)


async def test_a_process_that_is_not_a_child_is_adopted_and_its_end_seen(launcher: ProcessLauncher, strangers: list[int]) -> None:
    process = stranger(strangers)
    done: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    assert launcher.adopt(process, done.set_result)
    launcher.terminate(process)
    assert await asyncio.wait_for(done, 5) is None
    assert not processes.is_alive(process)


async def test_a_process_that_got_an_old_pid_is_left_alone(launcher: ProcessLauncher, strangers: list[int]) -> None:
    process = stranger(strangers)
    of_before = replace(process, started_ticks=process.started_ticks - 100)
    assert not launcher.adopt(of_before, lambda code: None)
    launcher.terminate(of_before)
    launcher.kill(of_before)
    await asyncio.sleep(0.05)
    assert processes.is_alive(process)


async def test_where_pidfds_are_missing_ends_are_polled(launcher: ProcessLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert await ended(launcher, order(tmp_path, "sh", "-c", "exit 4")) == 4


def test_leftovers_are_found_by_their_mark_and_ended(tmp_path: Path, strangers: list[int]) -> None:
    marked_env = {**os.environ, processes.MARK_STATE: str(tmp_path), processes.MARK_RANK: "k-1", processes.MARK_NODE: "n"}
    marked, other = stranger(strangers, marked_env), stranger(strangers)
    (found,) = processes.find_marked(tmp_path)
    assert (found.node, found.rank_id, found.process) == ("n", "k-1", marked)
    assert kill_leftovers(tmp_path) == 1
    assert not processes.is_alive(marked)
    assert processes.is_alive(other)
    assert kill_leftovers(tmp_path) == 0


def test_logs_are_cut_while_in_use_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 100)
    path = tmp_path / "k-1.log"
    with path.open("ab") as writer:
        writer.write(b"x" * 150)
        writer.flush()
        (tmp_path / "k-gone.log").write_text("old")
        os.utime(tmp_path / "k-gone.log", (0, 0))
        logs.sweep(tmp_path, frozenset({"k-1"}))
        writer.write(b"after\n")
    assert path.read_bytes() == b"after\n"
    assert (tmp_path / "k-1.log.1").stat().st_size == 150
    assert not (tmp_path / "k-gone.log").exists()
    path.write_bytes(b"y" * 60)
    assert logs.prepare(path) == 0
    assert not path.exists()
    path.write_bytes(b"ready\n")
    assert logs.prepare(path) == 6
    assert not logs.has_line(path, "ready", 6)
    assert logs.has_line(path, "ready", 0)
