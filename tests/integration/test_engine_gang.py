"""Gangs of real processes: they form, answer, and die together."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fleets.domain.protocol import RankSpec
from fleets.domain.types import Faults
from fleets.engines.base import adapter_for
from tests.integration.engine_support import free_base, rank_spec

Process = asyncio.subprocess.Process
Launch = Callable[..., Awaitable[Process]]


@pytest.fixture
async def launch() -> AsyncIterator[Launch]:
    processes: list[Process] = []

    async def begin(spec: RankSpec) -> Process:
        command = adapter_for(spec.engine.engine, True).command(spec, speed=20.0)
        process = await asyncio.create_subprocess_exec(*command.argv, stdout=asyncio.subprocess.PIPE, env=os.environ | dict(command.env))
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line_with(process: Process, words: str) -> str:
    """The next line of a process's log that holds some words."""
    assert process.stdout is not None
    async with asyncio.timeout(15):
        while words not in (line := (await process.stdout.readline()).decode()):
            assert line, f"it ended without saying {words!r}"
    return line


async def statuses(processes: Sequence[Process]) -> list[int]:
    async with asyncio.timeout(10):
        return [await process.wait() for process in processes]


async def until_closed(client: httpx.AsyncClient) -> None:
    """Until an engine takes no connection any more."""
    async with asyncio.timeout(10):
        with suppress(httpx.TransportError):
            while True:
                await client.get("/health")


def resident_bytes(process: Process) -> int:
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def test_a_gang_forms_serves_and_dies_with_any_of_its_ranks(launch: Launch) -> None:
    port = free_base()
    first = await launch(rank_spec(2, 3, port))  # followers may be there before their leader
    leader = await launch(rank_spec(0, 3, port))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10, verify=False) as client:
        await line_with(leader, "listens on")
        assert (await client.get("/health")).status_code == 503
        second = await launch(rank_spec(1, 3, port))
        for process in (leader, first, second):
            await line_with(process, "ready")
        assert (await client.get("/health")).status_code == 200
        body = {"model": "ds-flash", "prompt": "hello", "max_tokens": 4}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert resident_bytes(leader) < 45e6
    assert resident_bytes(first) < 15e6
    second.send_signal(signal.SIGKILL)
    assert await statuses([leader, first]) == [3, 3]


async def test_a_gang_heals_when_its_ranks_are_started_again(launch: Launch) -> None:
    port = free_base()
    leader, follower = await launch(rank_spec(0, 2, port)), await launch(rank_spec(1, 2, port))
    await line_with(follower, "ready")
    leader.kill()
    assert await statuses([follower]) == [3]
    again = await launch(rank_spec(1, 2, port))
    await launch(rank_spec(0, 2, port))
    await line_with(again, "ready")


async def test_a_follower_of_another_replica_is_refused(launch: Launch) -> None:
    port = free_base()
    leader = await launch(rank_spec(0, 2, port))
    await line_with(leader, "listens on")
    stranger = await launch(rank_spec(1, 2, port, replica="r-2"))
    await line_with(stranger, "refuses")
    assert await statuses([stranger]) == [5]
    assert leader.returncode is None


async def test_a_drained_leader_ends_in_peace_though_its_follower_goes_first(launch: Launch) -> None:
    port = free_base()
    leader, follower = await launch(rank_spec(0, 2, port)), await launch(rank_spec(1, 2, port))
    await line_with(leader, "ready")
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10, verify=False) as client:
        body = {"model": "ds-flash", "prompt": "hello", "max_tokens": 8000, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            leader.terminate()
            await until_closed(client)  # it has heard, with a second or two of its stream to go; else the follower's end could come first
            follower.kill()
            rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert await statuses([leader]) == [0]


async def test_a_crash_on_demand_ends_the_process_in_the_middle_of_its_work(launch: Launch) -> None:
    port = free_base()
    leader = await launch(rank_spec(0, 1, port, faults=Faults(crash_after_requests=1)))
    await line_with(leader, "ready")
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10, verify=False) as client:
        body = {"model": "ds-flash", "prompt": "hello", "max_tokens": 4}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/completions", json=body)
    assert await statuses([leader]) == [9]


async def test_weights_that_do_not_fit_end_the_start_with_the_arithmetic(launch: Launch) -> None:
    spec = rank_spec(0, 1, free_base())
    process = await launch(replace(spec, gpu_kind="H100", gpus=(0,), engine=replace(spec.engine, options={})))
    assert "out of GPU memory: weights take 302 GB" in await line_with(process, "weights")
    assert await statuses([process]) == [2]
