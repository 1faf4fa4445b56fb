"""Engines are not started on ports that somebody else holds: vLLM would neither serve nor end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from fleets.agent import ports
from fleets.agent.launchers.base import LaunchError
from fleets.domain.ports import port_count
from fleets.domain.types import Role
from fleets.engines.base import adapter_for
from tests.integration.test_engine_commands import rank


async def test_who_holds_a_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        name = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
        with pytest.raises(LaunchError, match=rf"port {port} \(KV handshakes\) is taken by process {os.getpid()} \({name}\)"):
            await ports.require_free("127.0.0.1", {port: "KV handshakes"})
    await ports.require_free("127.0.0.1", {port: "KV handshakes"})
    await ports.require_free("192.0.2.1", {port: "an address of another machine"})


async def test_an_engine_that_has_just_ended_gets_time_to_let_go() -> None:
    held = socket.create_server(("127.0.0.1", 0))
    waiting = asyncio.create_task(ports.require_free("127.0.0.1", {held.getsockname()[1]: "HTTP"}))
    await asyncio.sleep(0)
    assert not waiting.done()
    held.close()
    await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize(("gpus", "node_gpus", "tensor"), [(4, 8, 4), (8, 8, 2), (16, 8, 2), (16, 8, 16)])
def test_vllm_says_every_port_that_it_takes(gpus: int, node_gpus: int, tensor: int) -> None:
    """Those in its flags and environment, none outside the rank's own, and none twice."""
    for index in range(max(1, gpus // node_gpus)):
        spec = rank("qwen3-235b/vllm@1", Role.DECODE, gpus, node_gpus, index)
        engine = replace(spec.engine, tensor_parallel=tensor, options=spec.engine.options | {"kv-events": "true"})
        command = adapter_for("vllm", False).command(replace(spec, engine=engine))
        groups = max(1, len(spec.gpus) // tensor)
        first_group = index * len(spec.gpus) // tensor
        kv = int(command.env["VLLM_NIXL_SIDE_CHANNEL_PORT"])
        config = json.loads(command.argv[command.argv.index("--kv-events-config") + 1])
        events, again = config["endpoint"], config.get("replay_endpoint", "")
        taken = [kv + first_group + group for group in range(groups)]
        taken += [int(events.rpartition(":")[2]) + (first_group + group if groups > 1 else 0) for group in range(groups)]
        taken += [spec.port] if index == 0 else []
        taken += [spec.port + 2] if index == 0 and spec.count > 1 else []
        taken += [int(again.rpartition(":")[2])] if again else []
        assert bool(again) == (spec.count == 1 and groups == 1)
        assert sorted(taken) == sorted(command.listens) and len(set(taken)) == len(taken)
        assert set(taken) <= set(range(spec.port, spec.port + port_count(len(spec.gpus), tensor)))
