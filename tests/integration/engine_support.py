"""What the tests of engines share: free ports, and a rank as the control plane asks for it."""

from __future__ import annotations

import asyncio
import random
import socket

from fleets.domain.protocol import RankSpec
from fleets.domain.types import EngineSpec, Faults, RankDesired, Role
from fleets.engines.sim.config import FLASH_SHAPE


def free_base() -> int:
    """Three ports in a row that nobody has now; begun at random, so that two test runs side by side rarely meet."""
    start = random.randrange(21_000, 31_000)
    for base in range(start, start + 1000, 3):
        try:
            for port in range(base, base + 3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise AssertionError("no free ports")


async def until_healthy(port: int) -> None:
    """Wait until an engine on this machine says that it is ready; TimeoutError after 20 s."""
    async with asyncio.timeout(20):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            head = await reader.read(12)
            writer.close()
            if head.endswith(b"200"):
                return
            await asyncio.sleep(0.05)


def rank_spec(index: int, count: int, port: int, *, replica: str = "r-1", faults: Faults | None = None) -> RankSpec:
    engine = EngineSpec(
        engine="deepinfer",
        recipe="deepseek-v4.1-flash/deepinfer@1",
        model="ds-flash",
        weights="hf://deepseek-ai/DeepSeek-V4.1-Flash-1017@c41a7e2",
        protocol="vllm-nixl",
        shape=FLASH_SHAPE,
        tensor_parallel=8,
        options={"sim-kv-blocks": "4096", "max-num-seqs": "256"},
        faults=faults or Faults(),
    )
    return RankSpec(
        rank_id=f"k-{index}",
        replica=replica,
        unit="u-1",
        stage="ds-flash/prod-us",
        release="ds-flash@1",
        role=Role.DECODE,
        index=index,
        count=count,
        gpus=(0, 1, 2, 3),
        port=port + 4 * index,
        leader_host="127.0.0.1",
        leader_port=port,
        gpu_kind="GB200",
        desired=RankDesired.RUN,
        engine=engine,
        start_deadline_s=20.0,
    )
