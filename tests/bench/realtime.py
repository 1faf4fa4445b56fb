"""The simulator beside real processes: simulated engines at their own speed, a router, and a client that sends a recorded trace.

Nothing is sped up: a prefill of 200 ms takes 200 ms. The client, the router and the engines share the machine's cores, so what these
cost is in the measured times and not in the foretold ones.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from denvweb.cli.replay.report import Tally
from denvweb.cli.replay.sender import Replay, Target
from denvweb.cli.replay.trace import TraceRequest, read_trace, schedule
from fleets.domain.hardware import GPUS
from fleets.domain.protocol import ConditionalPolicy, RouteReplica, RouterTable, RouteUnit
from fleets.domain.simulator.run import simulate
from fleets.domain.simulator.types import Arrival, PoolShape, Result, StageShape
from fleets.domain.types import Role
from fleets.engines.sim.config import FLASH_SHAPE
from tests.integration.engine_support import free_base, until_healthy
from tests.integration.router_bench import MODEL, router, table

APART, TOGETHER = (Role.PREFILL, Role.DECODE), (Role.AGGREGATED,)
_GPU, _GPUS, _KV_BLOCKS, _LOCAL_BELOW = "H200", 2, 12_288, 500
_BUDGET, _SEQUENCES = 8192, 256
_LONGEST_TOKENS = 32_768  # of a prompt: the text of longer ones keeps one core busy for longer than a step takes


@dataclass(frozen=True, slots=True)
class Case:
    """A trace at a rate, for about so many seconds."""

    file: str
    rate_per_s: float
    seconds: float
    roles: tuple[Role, ...]

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.file.partition('.')[0]}, {'+'.join(role.value for role in self.roles)}"


CASES = (
    Case("azure_llm_2023_code.csv", 6.0, 45.0, APART),
    Case("mooncake_conversation_trimmed.jsonl", 1.6, 60.0, APART),
    Case("azure_llm_2023_code.csv", 4.0, 45.0, TOGETHER),
)


def requests_of(case: Case, folder: Path) -> list[TraceRequest]:
    """The trace's first requests, their gaps stretched alike to the case's rate."""
    count = round(case.rate_per_s * case.seconds)
    found = [request for request in read_trace(folder / case.file) if request.input_tokens <= _LONGEST_TOKENS][:count]
    factor = (len(found) - 1) / found[-1].at_s / case.rate_per_s
    return [replace(request, at_s=request.at_s * factor) for request in found]


def foretold(case: Case, requests: Sequence[TraceRequest]) -> Result:
    """What the simulator says."""
    pools = tuple(PoolShape(role, 1, _GPUS, _SEQUENCES, _BUDGET, _KV_BLOCKS * 64) for role in case.roles)
    shape = StageShape(FLASH_SHAPE, GPUS[_GPU], 1, pools, ConditionalPolicy(local_prefill_below=_LOCAL_BELOW))
    return simulate(shape, [Arrival(one.at_s, one.input_tokens, one.output_tokens, one.blocks) for one in requests])


async def seen(case: Case, requests: Sequence[TraceRequest]) -> Tally:
    """What a client of real processes sees."""
    tally = Tally()
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(_engine(role)) for role in case.roles]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = await stack.enter_async_context(router(folder, _table(case.roles, ports), gauge_every_s=1.0))
        target = Target(f"http://127.0.0.1:{bench.app.port}", MODEL, chat=False)
        await Replay(target, tally).run(schedule(requests, speed=1.0, duration_s=None, loop=False))
    return tally


@asynccontextmanager
async def _engine(role: Role) -> AsyncIterator[int]:
    port = free_base()
    config = {
        "port": port, "role": role.value, "model": MODEL, "replica": f"r-{port}", "engine_id": f"e-{port}", "gpu_kind": _GPU,
        "gpus": _GPUS, "tensor_parallel": _GPUS, "kv_blocks": _KV_BLOCKS, "max_sequences": _SEQUENCES, "max_batched_tokens": _BUDGET,
    }  # fmt: skip
    flags = ["--config", msgspec.json.encode(config).decode()]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "fleets.engines.sim", *flags, stdout=quiet, stderr=quiet)
    try:
        await until_healthy(port)
        yield port
    finally:
        process.kill()
        await process.wait()


def _table(roles: Sequence[Role], ports: Sequence[int]) -> RouterTable:
    replicas = tuple(
        RouteReplica(f"r-{port}", role, "m@1", "127.0.0.1", port, engine_id=f"e-{port}") for role, port in zip(roles, ports, strict=True)
    )
    protocol = "vllm-nixl" if len(roles) > 1 else "none"
    return table(RouteUnit("u-1", "m@1", "m@1", "m@1", "c", True, True, protocol, replicas), below=_LOCAL_BELOW)


def errors(result: Result, tally: Tally) -> dict[str, float]:
    """Foretold over seen, less 1, of TTFT and ITL at p50 and p99."""
    pairs = {"ttft": (result.ttft, tally.ttft), "itl": (result.itl, tally.itl)}
    found = {}
    for name, (quantiles, histogram) in pairs.items():
        for q, value_s in ((0.5, quantiles.p50_s), (0.99, quantiles.p99_s)):
            real_s = histogram.quantile(q)
            if not value_s or not real_s:
                raise AssertionError(f"no {name} was seen")
            found[f"{name} p{q * 100:.0f}"] = value_s / real_s - 1
    return found
