"""Replicas on a real Slurm: one job a gang, adopted by the next agent, ended as a whole, and never left behind."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from denvweb.core.backoff import Backoff
from denvweb.local.embedded import free_port
from fleets.agent import ranks, state
from fleets.agent.config import parse_config
from fleets.agent.main import Agent
from fleets.domain.protocol import RankSpec
from fleets.domain.types import RankDesired, RankState
from tests.agent_fakes import FakeControl, rank, shell_adapter_for

pytestmark = pytest.mark.timeout(180)
SAYS = "sh -c 'echo on $SLURMD_NODENAME with $CUDA_VISIBLE_DEVICES; echo ready; exec sleep 600'"


def jobs() -> dict[str, str]:
    """State by job's name."""
    out = subprocess.run(["squeue", "-h", "-o", "%j|%T"], capture_output=True, text=True, check=True).stdout
    return dict(line.split("|") for line in out.splitlines())


@asynccontextmanager
async def agent_on(control: FakeControl, folder: Path) -> AsyncIterator[Agent]:
    flags = ["--control", f"http://127.0.0.1:{control.port}", "--state-dir", str(folder), "--token", "join-1.secret"]
    config = parse_config([*flags, "--fleet", "f", "--launcher", "slurm", "--slurm-partition", "gpu"])
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


def gang(run: str = SAYS, desired: RankDesired = RankDesired.RUN) -> tuple[RankSpec, RankSpec]:
    first = rank("k-1", run, desired=desired, replica="r-1", count=2, gpus=(0, 1))
    return first, replace(first, rank_id="k-2", index=1)


async def until(holds: object) -> None:
    async with asyncio.timeout(40):
        while not holds():  # type: ignore[operator]  # a function of no arguments
            await asyncio.sleep(0.2)


@pytest.mark.usefixtures("cluster")
async def test_a_gang_is_one_job_outlives_its_agent_and_dies_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "BACKOFF", Backoff(first_s=0.2, cap_s=0.5))
    async with FakeControl(free_port()) as control:
        one, two = gang()
        async with agent_on(control, tmp_path) as agent:
            assert {name: (node.facts.gpu_kind, node.facts.gpus) for name, node in agent.nodes.items()} == {
                "f-n0": ("H200", 4),
                "f-n1": ("H200", 4),
            }
            control.want("f-n0", one)
            control.want("f-n1", two)
            first = await control.until_state("k-1", RankState.READY, 60)
            assert (await control.until_state("k-2", RankState.READY, 60)).pid == first.pid
            assert jobs() == {"denv-r-1": "RUNNING"}
            logs = [state.log_path(tmp_path, name).read_text() for name in ("k-1", "k-2")]
            assert [text.splitlines()[0].split(" with ")[0] for text in logs] == ["on n0", "on n1"]
            assert all(len(text.splitlines()[0].split(" with ")[1].split(",")) == 2 for text in logs)  # as many GPUs as the rank has
        assert jobs() == {"denv-r-1": "RUNNING"}  # the agent is gone, the job is not
        async with agent_on(control, tmp_path):
            again = await control.until_state("k-1", RankState.READY, 30)
            assert (again.pid, again.restarts) == (first.pid, 0)
            subprocess.run(["scancel", "--signal=KILL", str(first.pid)], check=True)  # from outside
            await control.until(lambda: (found := control.rank("k-2")) is not None and found.restarts == 1 and found.pid != first.pid, 60)
            await control.until_state("k-1", RankState.READY, 60)
            await control.until_state("k-2", RankState.READY, 60)
            control.want("f-n0", *gang(desired=RankDesired.STOP)[:1])
            control.want("f-n1", *gang(desired=RankDesired.STOP)[1:])
            await control.until_state("k-1", RankState.STOPPED, 60)
            await control.until_state("k-2", RankState.STOPPED, 60)
            await until(lambda: not jobs())


@pytest.mark.usefixtures("cluster")
async def test_a_rank_that_fails_says_how_and_a_stray_job_is_cancelled(tmp_path: Path) -> None:
    async with FakeControl(free_port()) as control:
        async with agent_on(control, tmp_path):
            control.want("f-n0", replace(rank("k-3", "sh -c 'echo no such model; exit 9'", gpus=(0,)), replica="r-3"))
            failed = await control.until_state("k-3", RankState.BACKOFF, 60)
            assert failed.detail.startswith("ended with code 9 after")
            assert "no such model" in failed.detail
            control.want("f-n0")
            await control.until(lambda: control.rank("k-3") is None, 30)
        script = tmp_path / "stray.sh"
        script.write_text("#!/bin/sh\nsleep 600\n")
        stray = ["sbatch", "--parsable", "--job-name=denv-stray", f"--comment=denv:{tmp_path}", "--output=/dev/null", str(script)]
        subprocess.run(stray, check=True, capture_output=True)
        subprocess.run([*stray[:2], "--job-name=other", *stray[4:]], check=True, capture_output=True)
        async with agent_on(control, tmp_path):
            await until(lambda: "denv-stray" not in jobs())
        assert "other" in jobs()
        subprocess.run(["scancel", "--name=other"], check=True)
