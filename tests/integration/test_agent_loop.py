"""An agent against a control plane that a test holds in its hands."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from denvweb.core.backoff import Backoff
from denvweb.core.errors import ConflictError, ForbiddenError
from denvweb.local.embedded import free_port
from fleets.agent import cleanup, diff, processes, ranks, state
from fleets.agent.config import Config, parse_config
from fleets.agent.main import Agent
from fleets.domain.protocol import LogAsk, RankSpec
from fleets.domain.types import RankDesired, RankState
from tests.agent_fakes import STUBBORN, FakeControl, rank, shell_adapter_for

NODE = "f-d01-n01"
FLAGS = ("--token", "join-1.secret", "--simulated", "fleet=f,kind=GB200,domains=1,nodes=1,gpus=4")


@pytest.fixture
async def control() -> AsyncIterator[FakeControl]:
    async with FakeControl(free_port()) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    yield
    cleanup.kill_leftovers(tmp_path)


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "BACKOFF", Backoff(first_s=0.02, cap_s=0.05))


def config_of(control: FakeControl, tmp_path: Path, *flags: str) -> Config:
    return parse_config(["--control", f"http://127.0.0.1:{control.port}", "--state-dir", str(tmp_path), *(flags or FLAGS)])


@asynccontextmanager
async def agent_on(config: Config) -> AsyncIterator[Agent]:
    """An agent in this process; leaving is as SIGTERM."""
    state.prepare(config.state_path)
    agent = Agent(config, adapters=shell_adapter_for)
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            raise error


@asynccontextmanager
async def agent_process(config_flags: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """An agent as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.agent_fakes", *config_flags, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while processes.identify(pid):
            await asyncio.sleep(0.01)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def test_the_life_of_a_rank_as_the_control_plane_sees_it(control: FakeControl, tmp_path: Path) -> None:
    async with agent_on(config_of(control, tmp_path)):
        control.want(NODE, rank("k-1", desired=RankDesired.HOLD))
        claimed = await control.until_state("k-1", RankState.CLAIMED)
        assert (claimed.pid, claimed.restarts) == (0, 0)
        control.want(NODE, rank("k-1"))
        ready = await control.until_state("k-1", RankState.READY)
        assert ready.pid
        assert ready.engine_id
        control.want(NODE, rank("k-1", desired=RankDesired.DRAIN, release="m@2"))
        assert (await control.until_state("k-1", RankState.DRAINING)).pid == ready.pid
        control.want(NODE, rank("k-1", desired=RankDesired.STOP))
        stopped = await control.until_state("k-1", RankState.STOPPED)
        assert (stopped.pid, stopped.engine_id) == (0, "")
        await gone(ready.pid)
        control.want(NODE)
        await control.until(lambda: control.rank("k-1") is None)
        assert state.load(tmp_path, NODE, processes.boot_id()).runs == {}


async def test_one_process_stands_for_many_nodes(control: FakeControl, tmp_path: Path) -> None:
    """Pokes bring changes at once, though the nodes sync by the clock only every 30 s."""
    control.sync_every_s = 30.0
    flags = (
        "--token",
        "join-1.secret",
        "--simulated",
        "fleet=a,kind=GB200,domains=2,nodes=9,gpus=4,span",
        "--simulated",
        "fleet=b,kind=H200,domains=4,gpus=8",
    )
    async with agent_on(config_of(control, tmp_path, *flags)) as agent:
        await control.until(lambda: len(control.facts) == 22 and control.listeners == 1)
        assert control.joins == 1
        facts = control.facts.values()
        assert {"a-d01-n01", "a-d02-n09", "b-d04-n01"} <= set(control.facts)
        assert control.facts["a-d02-n09"].fabric_spans_nodes
        assert not control.facts["b-d01-n01"].fabric_spans_nodes
        taken = [port for node in facts for port in range(node.port_base, node.port_base + node.port_count)]
        assert len(taken) == len(set(taken))
        assert len({node.credential for node in agent.nodes.values()}) == 22
        for name in control.facts:
            control.want(name, rank(f"k-{name}"))
        await control.until(lambda: all((found := control.rank(f"k-{name}")) and found.state is RankState.READY for name in control.facts))
        assert len(list((tmp_path / "nodes").glob("*.json"))) == 22


async def test_an_engine_that_dies_is_started_again(control: FakeControl, tmp_path: Path) -> None:
    async with agent_on(config_of(control, tmp_path)):
        control.want(NODE, rank("k-1"))
        first = await control.until_state("k-1", RankState.READY)
        os.kill(first.pid, signal.SIGKILL)
        await control.until(lambda: (found := control.rank("k-1")) is not None and found.restarts == 1 and found.state is RankState.READY)
        again = control.rank("k-1")
        assert again is not None
        assert again.pid != first.pid
        assert again.engine_id != first.engine_id


async def test_a_crash_loop_stops_with_its_reason(control: FakeControl, tmp_path: Path) -> None:
    async with agent_on(config_of(control, tmp_path)):
        control.want(
            NODE,
            rank("k-1", run="sh -c 'echo loading; echo no kernel for sm_100 >&2; exit 1'"),
            rank("k-2", run="no-such-engine", gpus=(1,), port=29004),
        )
        failed = await control.until_state("k-1", RankState.FAILED)
        assert failed.restarts == 5
        assert failed.detail.startswith("given up after 6 deaths in a row, the last: ended with code 1 after")
        assert failed.detail.endswith("loading\nno kernel for sm_100")
        assert "cannot start no-such-engine" in (await control.until_state("k-2", RankState.FAILED)).detail


async def test_what_ignores_sigterm_is_killed(control: FakeControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff, "KILL_AFTER_S", 0.3)
    async with agent_on(config_of(control, tmp_path)):
        control.want(NODE, rank("k-1", run=STUBBORN))
        pid = (await control.until_state("k-1", RankState.READY)).pid
        control.want(NODE, rank("k-1", desired=RankDesired.STOP))
        stopped = await control.until_state("k-1", RankState.STOPPED)
        assert "SIGTERM and was killed" in stopped.detail
        await gone(pid)


async def test_a_start_over_its_deadline_counts_as_a_death(control: FakeControl, tmp_path: Path) -> None:
    async with agent_on(config_of(control, tmp_path)):
        control.want(NODE, rank("k-1", run="sleep 600", start_deadline_s=0.15))
        failed = await control.until_state("k-1", RankState.FAILED)
        assert "not ready within its start deadline" in failed.detail


async def test_a_gpu_goes_to_the_next_rank_when_the_last_has_left_it(control: FakeControl, tmp_path: Path) -> None:
    slow_to_end = "sh -c 'trap \"sleep 0.3; exit 0\" TERM; echo ready; while :; do sleep 0.05; done'"
    async with agent_on(config_of(control, tmp_path)):
        control.want(NODE, rank("k-1", run=slow_to_end))
        await control.until_state("k-1", RankState.READY)
        control.want(NODE, rank("k-2"))
        waiting = await control.until_state("k-2", RankState.CLAIMED)
        assert "waits for GPU 0, held by k-1" in waiting.detail
        await control.until_state("k-2", RankState.READY)
        assert control.rank("k-1") is None


async def test_the_control_plane_is_not_needed_to_keep_engines_running(control: FakeControl, tmp_path: Path) -> None:
    config = config_of(control, tmp_path)
    async with agent_on(config):
        control.want(NODE, rank("k-1"), rank("k-2", gpus=(1,), port=29004))
        first = await control.until_state("k-1", RankState.READY)
        await control.until_state("k-2", RankState.READY)
        await control.stop()
        os.kill(first.pid, signal.SIGKILL)
        await gone(first.pid)
    async with agent_on(config) as agent:  # a new agent, and still nobody to ask
        runs = agent.nodes[NODE].keeper.runs
        await until(lambda: len(runs) == 2 and all(run.state is RankState.READY for run in agent.nodes[NODE].keeper.runs.values()))
        await control.start()
        await control.until(lambda: (found := control.rank("k-1")) is not None and found.pid not in (0, first.pid))
        await control.until(lambda: control.listeners == 1)
        control.want(NODE)
        await control.until(lambda: control.rank("k-1") is None and control.rank("k-2") is None)
        assert control.joins == 1


async def test_engines_of_an_agent_that_was_killed_are_adopted_and_orphans_ended(control: FakeControl, tmp_path: Path) -> None:
    flags = ["--control", f"http://127.0.0.1:{control.port}", "--state-dir", str(tmp_path), *FLAGS]
    control.want(NODE, rank("k-stays"), rank("k-goes", gpus=(1,), port=29004))
    async with agent_process(flags) as process:
        stays = await control.until_state("k-stays", RankState.READY)
        goes = await control.until_state("k-goes", RankState.READY)
        process.kill()
        await process.wait()
    assert processes.identify(stays.pid)
    control.want(NODE, rank("k-stays"))
    control.reports.clear()
    async with agent_process(flags) as process:
        await control.until_acted(NODE)
        adopted = await control.until_state("k-stays", RankState.READY)
        assert (adopted.pid, adopted.engine_id, adopted.restarts) == (stays.pid, stays.engine_id, 0)
        await gone(goes.pid)
        os.kill(stays.pid, signal.SIGKILL)  # its end is seen, though it is not a child
        await control.until(
            lambda: (found := control.rank("k-stays")) is not None and found.restarts == 1 and found.state is RankState.READY
        )
        process.terminate()
        await process.wait()
    found = control.rank("k-stays")
    assert found is not None
    assert processes.identify(found.pid), "an agent that is stopped leaves its engines running"
    assert cleanup.kill_leftovers(tmp_path) == 1
    await gone(found.pid)


@pytest.mark.parametrize("lost", ["file", "runs"])
async def test_engines_are_found_though_the_state_on_disk_is_lost(control: FakeControl, tmp_path: Path, lost: str) -> None:
    config = config_of(control, tmp_path)
    control.want(NODE, rank("k-1"), rank("k-2", gpus=(1,), port=29004))
    async with agent_on(config):
        first = await control.until_state("k-1", RankState.READY)
        orphan = await control.until_state("k-2", RankState.READY)
    path = state.node_path(tmp_path, NODE)
    if lost == "file":
        path.write_text("{ not json")
    else:
        state.save(tmp_path, replace(state.load(tmp_path, NODE, processes.boot_id()), runs={}))
    control.want(NODE, rank("k-1"))
    control.reports.clear()
    async with agent_on(config):
        found = await control.until_state("k-1", RankState.READY)
        assert (found.pid, found.engine_id) == (first.pid, first.engine_id)
        await gone(orphan.pid)


async def test_engines_end_with_the_agent_when_asked(control: FakeControl, tmp_path: Path) -> None:
    async with agent_on(config_of(control, tmp_path, *FLAGS, "--stop-engines-on-exit")):
        control.want(NODE, rank("k-1"))
        pid = (await control.until_state("k-1", RankState.READY)).pid
    assert processes.identify(pid) is None
    kept = state.load(tmp_path, NODE, processes.boot_id()).runs["k-1"]
    assert (kept.process, kept.deaths) == (None, 0)


async def test_credentials_are_kept_private_and_used_again(control: FakeControl, tmp_path: Path) -> None:
    config = config_of(control, tmp_path)
    async with agent_on(config):
        await control.until(lambda: control.syncs >= 1)
    assert stat.S_IMODE(state.node_path(tmp_path, NODE).stat().st_mode) == 0o600
    before = control.syncs
    async with agent_on(replace(config, token="")):
        await control.until(lambda: control.syncs > before)
    assert control.joins == 1


async def test_refused_credentials_are_replaced_by_one_join_when_there_is_a_token(control: FakeControl, tmp_path: Path) -> None:
    names = ["f-d01-n01", "f-d01-n02", "f-d01-n03"]
    state.prepare(tmp_path)
    for name in names:
        state.save(tmp_path, state.NodeState(node=name, credential="node-x.of-another-installation"))
    flags = ("--token", "join-1.secret", "--simulated", "fleet=f,kind=GB200,domains=1,nodes=3,gpus=4")
    async with agent_on(config_of(control, tmp_path, *flags)):
        await control.until(lambda: set(control.reports) == set(names))
    assert control.joins == 1


async def test_a_refused_token_is_an_error_that_says_so(control: FakeControl, tmp_path: Path) -> None:
    config = replace(config_of(control, tmp_path), token="join-1.wrong")
    state.prepare(config.state_path)
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(Agent(config, adapters=shell_adapter_for).run(), 5)
    assert caught.group_contains(ForbiddenError, match="the join token is not valid")


async def test_gauges_come_from_the_engine_itself(control: FakeControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleets.agent.probes._SCRAPE_EVERY_S", 0.05)
    served = tmp_path / "served"
    served.mkdir()
    (served / "health").write_text("ok")
    (served / "metrics").write_text("running 3\n")
    spec = rank("k-1", run=f"{sys.executable} -m http.server {{port}} --bind 127.0.0.1 --directory {served}", port=free_port())
    spec = replace(spec, engine=replace(spec.engine, options={**spec.engine.options, "ready-path": "/health", "metrics-path": "/metrics"}))
    control.sync_every_s = 0.2
    async with agent_on(config_of(control, tmp_path)):
        control.want(NODE, spec)
        await control.until_state("k-1", RankState.READY)
        await control.until(lambda: (found := control.rank("k-1")) is not None and found.gauges == {"running": 3.0})


def test_two_agents_do_not_share_a_state_folder(tmp_path: Path) -> None:
    state.prepare(tmp_path)
    lock = state.StateLock(tmp_path)
    with pytest.raises(ConflictError, match=f"another agent \\(process {os.getpid()}\\) works with"):
        state.StateLock(tmp_path)
    lock.release()
    state.StateLock(tmp_path).release()


def test_a_boot_of_the_machine_ends_what_ran(tmp_path: Path) -> None:
    state.prepare(tmp_path)
    run = ranks.launched(ranks.claimed(rank("k-1"), 0.0), ranks.ProcessIdentity(os.getpid(), 1), "e", 0.0)
    state.save(tmp_path, state.NodeState(node=NODE, credential="c.s", boot_id="before", runs={"k-1": run}))
    kept = state.load(tmp_path, NODE, "now")
    assert (kept.runs, kept.credential) == ({}, "c.s")


async def test_an_engine_starts_from_weights_whose_digest_is_right_and_from_no_others(control: FakeControl, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()[:16]

    def of(name: str, pin: str, gpu: int) -> RankSpec:
        spec = rank(name, "sh -c 'echo ready; exec sleep 600'", gpus=(gpu,), port=29000 + 8 * gpu)
        return replace(spec, engine=replace(spec.engine, weights=f"file://{model}@sha256-{pin}"))

    flags = ["--token", "join-1.secret", "--gpus", "2", "--gpu-kind", "GB200", "--name", "n1"]
    async with agent_on(config_of(control, tmp_path, *flags)):
        control.want("n1", of("k-1", digest, 0), of("k-2", "0" * 16, 1))
        await control.until_state("k-1", RankState.READY)
        failed = await control.until_state("k-2", RankState.FAILED)
        assert failed.detail == f"the weights at {model} are others than the release names: sha256-{digest}, not sha256-{'0' * 16}"
        control.want("n1")
        await control.until(lambda: control.rank("k-1") is None)


async def test_a_log_that_is_asked_for_comes_in_pieces_and_goes_on_with_the_next_agent(control: FakeControl, tmp_path: Path) -> None:
    writes = rank("k-1", "sh -c 'echo ready; echo hf_abcdefghijklmnopqrst; while :; do echo more; sleep 0.1; done'")
    async with agent_on(config_of(control, tmp_path)):
        control.want(NODE, writes)
        await control.until_state("k-1", RankState.READY)
        control.asks = (LogAsk("a-1", "k-1", follow=True),)
        control.want(NODE, writes)
        await control.until(lambda: len(control.pieces) > 1)
    assert control.pieces[0].text.startswith("ready\n[hidden]\n")
    seen = control.pieces[-1].end
    control.asks, control.pieces = (LogAsk("a-1", "k-1", follow=True, position=seen),), []
    async with agent_on(config_of(control, tmp_path)):
        control.want(NODE, writes)
        await control.until(lambda: bool(control.pieces))
        assert control.pieces[0].start == seen
        assert set(control.pieces[0].text.split()) == {"more"}
        control.asks = ()
        control.want(NODE)
        await control.until(lambda: control.rank("k-1") is None)
