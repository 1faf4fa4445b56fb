"""`make bench-simulator`: how fast the simulator is, and how near to the simulated engine and to a real vLLM. Table, then one JSON line.

`python -m tests.bench.simulator [TRACES] [REQUESTS]`: the folder with recorded traces (without it those parts are left out), and how
many requests to time.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

from denvweb.cli.replay.trace import read_trace
from fleets.domain.hardware import GPUS
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.simulator.arrivals import Process, at_rate, drawn
from fleets.domain.simulator.run import simulate
from fleets.domain.simulator.types import Arrival, PoolShape, RouterShape, Run, StageShape
from fleets.domain.sizing.cases import DEEPSEEK_DAY
from fleets.domain.types import Role
from fleets.engines.sim.config import FLASH_SHAPE
from tests.bench.measured_silicon import cross_validated, read_points
from tests.bench.measured_vllm import Errors, calibrated, errors, read_systems
from tests.virtual_engine import engine_sees

_TRACES = Path("../shared/data/traces")
_EVEN, _ODD = slice(0, None, 2), slice(1, None, 2)
_FIRST, _SECOND = slice(0, 150), slice(150, 300)


def _stage(units: int) -> StageShape:
    """Units of an NVL72, as the demo has them."""
    pools = (PoolShape(Role.PREFILL, 2, 4, 64, 16_384), PoolShape(Role.DECODE, 1, 64, 2048))
    return StageShape(FLASH_SHAPE, GPUS["GB200"], units, pools)


def _speed(requests: int) -> dict[str, float]:
    """Wall and CPU seconds for so many requests on two units, and requests a second on 100,000 GPUs."""
    process = Process(60.0, 4000, 300, input_spread=1.0, output_spread=1.0)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    simulate(_stage(2), drawn(process, requests, random.Random(1)))
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    units, count = 1389, 20_000
    large = Process(30.0 * units, 4000, 300, input_spread=1.0, output_spread=1.0)
    large_s = time.process_time()
    result = simulate(_stage(units), drawn(large, count, random.Random(1)))
    large_s = time.process_time() - large_s
    assert result.completed == count
    print(f"speed            {requests:,} requests in {wall_s:.1f} s ({cpu_s:.1f} s of CPU): {requests / cpu_s:,.0f} a CPU second")
    print(f"100,008 GPUs     {count:,} requests on {units:,} units: {count / large_s:,.0f} a CPU second")
    return {
        "requests_per_s": requests / wall_s,
        "requests_per_cpu_s": requests / cpu_s,
        "million_requests_s": wall_s * 1e6 / requests,
        "million_requests_cpu_s": cpu_s * 1e6 / requests,
        "requests_per_cpu_s_100k_gpus": count / large_s,
    }


def _at(values: Sequence[float], q: float) -> float:
    return sorted(values)[ceil(q * len(values)) - 1]


def _engine_cases(traces: Path) -> Iterator[tuple[str, list[Arrival]]]:
    yield "drawn", list(drawn(Process(20.0, 3000, 150, gap_spread=1.5, input_spread=0.8, output_spread=0.8), 200, random.Random(5)))
    for name in ("azure_llm_2023_code.csv", "azure_llm_2023_conv.csv"):
        if (traces / name).exists():
            arrivals = [Arrival(one.at_s, one.input_tokens, one.output_tokens) for one in read_trace(traces / name)[:200]]
            yield name.removesuffix(".csv"), at_rate(arrivals, 20.0)


def _against_engine(traces: Path) -> dict[str, float]:
    """The simulated engine's own scheduler on a virtual clock, prefill and decode apart and together."""
    worst = {"ttft": 0.0, "itl": 0.0}
    for name, arrivals in _engine_cases(traces):
        for roles in ((Role.AGGREGATED,), (Role.PREFILL, Role.DECODE)):
            pools = tuple(PoolShape(role, 1, 4, 1024, 8192, 12_288 * 64) for role in roles)
            shape = StageShape(FLASH_SHAPE, GPUS["GB200"], 1, pools, ConditionalPolicy(local_prefill_below=0))
            mine = simulate(shape, arrivals, Run(router=RouterShape(prefill_inflight=100_000, hop_s=0.0)))
            seen = engine_sees(roles, arrivals, kv_blocks=12_288)
            cells = []
            for metric, quantiles, values in (("ttft", mine.ttft, seen.ttft_s), ("itl", mine.itl, seen.gaps_s)):
                for q, value in ((0.5, quantiles.p50_s), (0.99, quantiles.p99_s)):
                    error = abs((value or 0.0) / _at(values, q) - 1)
                    worst[metric] = max(worst[metric], error)
                    cells.append(f"{metric} p{q * 100:.0f} {error:.1%}")
            print(f"engine           {name:<22} {'+'.join(role.value for role in roles):<16} {'  '.join(cells)}")
    return {
        "ttft_error_vs_sim_engine": worst["ttft"],
        "itl_error_vs_sim_engine": worst["itl"],
        "sim_vs_engine_worst_error": max(worst.values()),
    }


def _line(label: str, found: Errors) -> str:
    return f"{label}: mean TTFT {found.ttft_mean:.1%}, mean TPOT {found.tpot_mean:.1%}, TPOT of each {found.tpot_mape:.1%}"


def _against_vllm(traces: Path) -> dict[str, float]:
    """A real vLLM 0.19 on four systems; judged on requests that the calibration did not see."""
    others, later = [], []
    for system in read_systems(traces):
        others.append(errors(system, calibrated(system, _EVEN), _ODD))
        later.append(errors(system, calibrated(system, _FIRST), _SECOND))
        print(f"vLLM             {system.name}")
        print(f"                 {_line('calibrated on every other request ', others[-1])}")
        print(f"                 {_line('calibrated on the first half       ', later[-1])}")
    if not others:
        print("vLLM             no recorded requests here")
        return {}
    return {
        "vllm_ttft_mean_error": max(one.ttft_mean for one in others),
        "vllm_tpot_mean_error": max(one.tpot_mean for one in others),
        "tpot_mape_vs_measured": sum(one.tpot_mape for one in others) / len(others),
        "vllm_ttft_mean_error_second_half": max(one.ttft_mean for one in later),
        "vllm_tpot_mean_error_second_half": max(one.tpot_mean for one in later),
    }


def _against_silicon(traces: Path) -> dict[str, float]:
    """The timing model beside InferenceX's aggregated points, each predicted from the others."""
    points = read_points(traces)
    if not points:
        print("InferenceX       no measured points here")
        return {}
    fit = cross_validated(points)
    inside = f"{fit.within_interval:.0%} within 0.8 to 1.25 times"
    print(f"InferenceX       {fit.points:,} aggregated points: TPOT {fit.mape:.1%} off on average, median {fit.median:.1%}, {inside}")
    return {"silicon_points": float(fit.points), "silicon_tpot_mape": fit.mape, "silicon_within_interval": fit.within_interval}


def main() -> None:
    """All parts."""
    traces = Path(sys.argv[1]) if len(sys.argv) > 1 else _TRACES
    requests = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    figures = _against_engine(traces) | _against_vllm(traces) | _against_silicon(traces) | _speed(requests)
    figures["deepseek_nodes"] = DEEPSEEK_DAY.nodes
    print(f"DeepSeek's day   {DEEPSEEK_DAY.prefill_nodes:.1f} + {DEEPSEEK_DAY.decode_nodes:.1f} = {DEEPSEEK_DAY.nodes:.1f} nodes of 226.75")
    print(json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()}))


if __name__ == "__main__":
    main()
