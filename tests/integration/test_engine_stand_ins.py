"""Engines that cannot run on this machine, from the adapter's command line to the agent's gauges, with a stand-in for the engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleets.agent import probes
from fleets.agent.http import HttpClient
from fleets.domain.types import Role
from fleets.engines.base import adapter_for, with_program
from tests.integration.engine_support import free_base, rank_spec

STAND_IN = str(Path(__file__).parent / "engine_stand_in.py")
OPTIONS = {
    "sglang": {"attention-backend": "fa3"},
    "trtllm": {"config": "/etc/trtllm.yaml"},
    "deepinfer": {"serve-command": "deepinfer-server --host {host} --port {port} --engine-type {engine_type}"},
}
GAUGES = {"running": 3.0, "waiting": 2.0, "kv_use": 0.25}


@pytest.mark.parametrize("engine", OPTIONS)
async def test_it_is_started_watched_and_ended(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_SCRAPE_EVERY_S", 0.1)
    port = free_base()
    base = rank_spec(0, 1, port)
    spec = replace(base, role=Role.PREFILL, engine=replace(base.engine, engine=engine, tensor_parallel=4, options=OPTIONS[engine]))
    adapter = adapter_for(engine, False)
    command = adapter.command(spec)
    program = adapter.program or command.argv[0]
    argv = with_program(command.argv, program, (sys.executable, STAND_IN, engine))
    process = subprocess.Popen(argv)
    client, ready, gauges = HttpClient(), asyncio.Event(), asyncio.Queue[dict[str, float]]()
    what = probes.Watch(
        spec,
        command,
        tmp_path / "log",
        0,
        adapter.map_metrics,
        on_ready=ready.set,
        on_gauges=gauges.put_nowait,
        on_hung=pytest.fail,
    )
    watch = asyncio.create_task(probes.watch(client, what, ready=False))
    try:
        async with asyncio.timeout(10):
            await ready.wait()
            told = await gauges.get()
    finally:
        watch.cancel()
        process.terminate()
        client.close()
    assert told.items() >= GAUGES.items()
    assert process.wait(5) == 0
