"""Supervised children: started again, stopped in order, and found again after a kill -9 of their supervisor."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from denvweb.core.errors import ConflictError
from denvweb.local.children import Children, ChildSpec, end_leftovers
from denvweb.local.home import Home

SLEEPER = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)")


def make(tmp_path: Path) -> Children:
    return Children(tmp_path, tmp_path / "children.json")


def wait_until_gone(pid: int) -> None:
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=5)


def test_a_killed_child_is_started_again(tmp_path: Path) -> None:
    children = make(tmp_path)
    child = children.start(ChildSpec("sleeper", SLEEPER))
    first = children.pids()["sleeper"]
    os.kill(first, signal.SIGKILL)
    assert child.process is not None
    child.process.wait(5)
    said = children.check()
    assert "SIGKILL" in said[0]
    assert "next start in" in said[0]
    deadline = time.monotonic() + 5
    while "sleeper" not in children.pids() and time.monotonic() < deadline:
        children.check()
    assert children.pids()["sleeper"] != first
    children.stop_all()


def test_the_wait_grows_while_it_keeps_dying(tmp_path: Path) -> None:
    children = make(tmp_path)
    child = children.start(ChildSpec("dying", (sys.executable, "-c", "raise SystemExit(4)")))
    for expected in (1, 2):
        assert child.process is not None
        child.process.wait(5)
        assert "status 4" in children.check()[0]
        assert child.failures == expected
        child.retry_at_mono_s = 0.0
        children.check()
    children.stop_all()


def test_stop_all_leaves_nothing(tmp_path: Path) -> None:
    children = make(tmp_path)
    for name in ("a", "b"):
        children.start(ChildSpec(name, SLEEPER))
    pids = list(children.pids().values())
    children.stop_all()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert json.loads((tmp_path / "children.json").read_text()) == []


def test_leftovers_of_a_killed_supervisor_end_at_the_next_start(tmp_path: Path) -> None:
    children = make(tmp_path)
    child = children.start(ChildSpec("left", SLEEPER))
    pid = children.pids()["left"]
    assert end_leftovers(tmp_path / "children.json") == ["left"]
    assert child.process is not None
    child.process.wait(5)
    wait_until_gone(pid)
    assert not psutil.pid_exists(pid)


def test_a_pid_that_is_somebody_elses_now_is_left_alone(tmp_path: Path) -> None:
    record = tmp_path / "children.json"
    record.write_text(json.dumps([{"name": "web", "pid": os.getpid(), "started_at": 1.0}]))
    assert end_leftovers(record) == []


def test_one_denv_a_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    with home.lock(), pytest.raises(ConflictError, match=f"pid {os.getpid()}"):
        home.lock()
    home.lock().close()


def test_ports_stay_the_same_and_are_nobody_elses(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        first = home.port("router a/b", other.getsockname()[1])
        second = home.port("router c/d", other.getsockname()[1])
        assert other.getsockname()[1] < first < second
    assert home.port("router a/b", 8081) == first
    assert home.remembered_ports("router ") == {"a/b": first, "c/d": second}
