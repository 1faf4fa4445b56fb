"""The simulator foretells what the simulated engine's own scheduler does, token by token."""

from __future__ import annotations

import random
from itertools import accumulate
from math import ceil

import pytest

from fleets.domain.hardware import GPUS
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.simulator.arrivals import Process, drawn
from fleets.domain.simulator.run import simulate
from fleets.domain.simulator.types import Arrival, PoolShape, Result, RouterShape, Run, StageShape
from fleets.domain.types import ModelShape, Role
from tests.virtual_engine import Seen, engine_sees

TOLERANCE = 0.01  # quantiles are kept in buckets 1% wide
DENSE = ModelShape(
    layers=80,
    hidden=8192,
    kv_heads=8,
    total_params=70e9,
    prefill_active_params=70e9,
    decode_active_params=70e9,
    weight_bytes=140e9,
    kv_bytes_per_token=164e3,
)
APART = (Role.PREFILL, Role.DECODE)
TOGETHER = (Role.AGGREGATED,)


def both(roles: tuple[Role, ...], arrivals: list[Arrival], *, kv_blocks: int = 8192, budget: int = 4096) -> tuple[Result, Seen]:
    pools = tuple(PoolShape(role, 1, 8, 64, budget, kv_blocks * 64) for role in roles)
    shape = StageShape(DENSE, GPUS["H100"], 1, pools, ConditionalPolicy(local_prefill_below=0))
    foretold = simulate(shape, arrivals, Run(router=RouterShape(hop_s=0.0, prefill_inflight=10_000, prefill_tokens=10**9)))
    seen = engine_sees(
        roles, arrivals, gpu_kind="H100", gpus=8, shape=DENSE, max_sequences=64, max_batched_tokens=budget, kv_blocks=kv_blocks
    )
    return foretold, seen


def at(values: list[float], q: float) -> float:
    return sorted(values)[ceil(q * len(values)) - 1]


@pytest.mark.parametrize("roles", [TOGETHER, APART])
@pytest.mark.parametrize("rate", [2.0, 5.0])
def test_ttft_and_gaps_are_the_engines(roles: tuple[Role, ...], rate: float) -> None:
    process = Process(rate, 1200, 50, input_spread=0.7, output_spread=0.8, gap_spread=1.5)
    foretold, seen = both(roles, list(drawn(process, 150, random.Random(int(rate)))))
    assert foretold.itl.n == len(seen.gaps_s)
    assert foretold.ttft.mean_s == pytest.approx(sum(seen.ttft_s) / len(seen.ttft_s), rel=TOLERANCE)
    assert foretold.itl.mean_s == pytest.approx(sum(seen.gaps_s) / len(seen.gaps_s), rel=TOLERANCE)
    for quantiles, values in ((foretold.ttft, seen.ttft_s), (foretold.itl, seen.gaps_s)):
        assert quantiles.p50_s == pytest.approx(at(values, 0.5), rel=TOLERANCE)
        assert quantiles.p99_s == pytest.approx(at(values, 0.99), rel=2 * TOLERANCE)


def test_both_set_sequences_back_when_memory_is_short() -> None:
    times = accumulate([0.05] * 60)
    foretold, seen = both(TOGETHER, [Arrival(at_s, 700, 150) for at_s in times], kv_blocks=260)
    assert seen.preemptions > 0
    assert foretold.pools[0].preemptions > 0
    assert foretold.ttft.mean_s == pytest.approx(sum(seen.ttft_s) / len(seen.ttft_s), rel=0.05)
