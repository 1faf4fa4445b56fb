"""`make bench-simulator`: how fast the simulator is. Table, then one JSON line; what it foretells is judged by `make bench-sizing`.

`python -m tests.bench.simulator [REQUESTS]`: how many requests to time, a million otherwise.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

from fleets.domain.hardware import GPUS
from fleets.domain.simulator.arrivals import Process, drawn
from fleets.domain.simulator.run import simulate
from fleets.domain.simulator.types import PoolShape, StageShape
from fleets.domain.types import Role
from fleets.engines.sim.config import FLASH_SHAPE


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
    if result.completed != count:
        raise SystemExit(f"only {result.completed:,} of {count:,} requests were completed")
    print(f"speed            {requests:,} requests in {wall_s:.1f} s ({cpu_s:.1f} s of CPU): {requests / cpu_s:,.0f} a CPU second")
    print(f"100,008 GPUs     {count:,} requests on {units:,} units: {count / large_s:,.0f} a CPU second")
    return {
        "requests_per_s": requests / wall_s,
        "requests_per_cpu_s": requests / cpu_s,
        "million_requests_s": wall_s * 1e6 / requests,
        "million_requests_cpu_s": cpu_s * 1e6 / requests,
        "requests_per_cpu_s_100k_gpus": count / large_s,
    }


def main() -> None:
    """Both sizes."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    before = os.getloadavg()[0]
    figures = _speed(requests)
    print(f"load average     {before:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores")
    print(json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()}))


if __name__ == "__main__":
    main()
