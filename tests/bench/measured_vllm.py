"""The simulator against requests that a real vLLM 0.19 served: calibrated on the first half of each system, judged on the second.

Data: casys-kaist/LLMServingSim `bench/examples` (MIT), 300 requests each on four systems.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any

from fleets.domain.hardware import GpuKind
from fleets.domain.simulator.replica import Clock, Job, Replica
from fleets.domain.simulator.tally import Tally
from fleets.domain.simulator.types import Arrival, PoolShape
from fleets.domain.timing import Calibration, StepTimes, memory_fit
from fleets.domain.types import ModelShape, Role

# NVIDIA's data sheets: dense BF16, memory, bandwidth, PCIe. Neither has NVLink.
_GPUS = {
    "rtx4090": GpuKind("RTX 4090", "nvidia", 165e12, 330e12, None, 25.25e9, 1.008e12, 1, 32e9, 3e9, False),
    "rtxpro6000": GpuKind("RTX PRO 6000", "nvidia", 503e12, 1006e12, 2012e12, 96e9, 1.792e12, 1, 64e9, 3e9, False),
}


def _dense(layers: int, hidden: int, kv_heads: int, params: float) -> ModelShape:
    return ModelShape(layers, hidden, kv_heads, params, params, params, 2 * params, 2 * 2 * layers * kv_heads * 128)


_MODELS = {
    "meta-llama/Llama-3.1-8B": _dense(32, 4096, 8, 8.03e9),
    "Qwen/Qwen3-32B": _dense(64, 5120, 8, 32.8e9),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ModelShape(48, 2048, 4, 30.5e9, 3.3e9, 3.3e9, 61e9, 2 * 2 * 48 * 4 * 128),
}


@dataclass(frozen=True, slots=True)
class System:
    """One measured system. Rows are (arrival, TTFT, TPOT)."""

    name: str
    model: ModelShape
    gpu: GpuKind
    gpus: int
    replicas: int
    pool: PoolShape
    arrivals: tuple[Arrival, ...]
    measured: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors over one half."""

    ttft_mean: float
    tpot_mean: float
    tpot_mape: float


def read_systems(folder: Path) -> Iterator[System]:
    """Every system whose files are there."""
    for meta_file in sorted(folder.glob("vllm_measured_*.meta.json")):
        meta = json.loads(meta_file.read_text())
        rows = [json.loads(line) for line in meta_file.with_name(meta_file.name.replace(".meta.json", ".requests.jsonl")).open()]
        name = meta_file.name.removeprefix("vllm_measured_").removesuffix(".meta.json")
        model, gpu = _MODELS[meta["model"]], _GPUS[name.partition("_")[0]]
        yield _system(name, model, gpu, meta, sorted(rows, key=lambda row: float(row["queued_ts"])))


def _system(name: str, model: ModelShape, gpu: GpuKind, meta: dict[str, Any], rows: Sequence[dict[str, float]]) -> System:
    engine = meta["engine_kwargs"]
    gpus = int(engine["tensor_parallel_size"])
    kv_tokens = meta.get("kv_cache", {}).get("num_kv_tokens") or memory_fit(model, gpu, gpus).kv_tokens
    pool = PoolShape(Role.AGGREGATED, 1, gpus, engine["max_num_seqs"], engine["max_num_batched_tokens"], int(kv_tokens))
    begin_s = rows[0]["queued_ts"]
    return System(
        name,
        model,
        gpu,
        gpus,
        int(engine["data_parallel_size"]),
        pool,
        tuple(Arrival(row["queued_ts"] - begin_s, int(row["input_toks"]), int(row["output_toks"])) for row in rows),
        tuple(
            (row["first_token_ts"] - row["queued_ts"], (row["last_token_ts"] - row["first_token_ts"]) / max(1, row["output_toks"] - 1))
            for row in rows
        ),
    )


def foretold(system: System, calibration: Calibration) -> list[tuple[float, float]]:
    """(TTFT, TPOT) of every request, by the simulator's replica."""
    clock, found = Clock(), dict[int, tuple[float, float]]()

    def done(now: float, job: Job) -> None:
        job.decode.running -= 1
        at_s = job.arrival.at_s
        found[id(job.arrival)] = (job.first_s - at_s, (now - job.first_s) / max(1, job.output - 1))

    steps = StepTimes(system.model, system.gpu, system.gpus, calibration)
    kv_tokens = system.pool.kv_tokens or 0
    replicas = [Replica(clock, system.pool, steps, kv_tokens, Tally(), lambda tokens: 0.0, done, done) for _ in range(system.replicas)]

    def arrive(now: float, job: Job) -> None:
        """vLLM's data-parallel front end sends to the rank with the fewest requests."""
        job.decode = min(replicas, key=lambda replica: replica.running)
        job.decode.running += 1
        job.decode.add(now, job)

    for arrival in system.arrivals:
        clock.at(arrival.at_s, arrive, Job(arrival))
    clock.run()
    return [found[id(arrival)] for arrival in system.arrivals]


def errors(system: System, calibration: Calibration, half: slice) -> Errors:
    """How far off, over one half of the requests."""
    truth, guess = system.measured[half], foretold(system, calibration)[half]
    count = len(truth)
    means = [sum(row[i] for row in rows) / count for rows in (truth, guess) for i in (0, 1)]
    mape = sum(abs(mine[1] - real[1]) / real[1] for mine, real in zip(guess, truth, strict=True)) / count
    return Errors(abs(means[2] / means[0] - 1), abs(means[3] / means[1] - 1), mape)


def calibrated(system: System, half: slice) -> Calibration:
    """The constants that fit one half best, by a pattern search over their logarithms from several starts."""
    starts = [Calibration(2e-3, memory, prefill, decode, 2e-5) for memory in (0.8, 1.2) for prefill in (0.3, 0.7) for decode in (0.4, 0.9)]
    return min((_descended(system, start, half) for start in starts), key=lambda found: _loss(system, found, half))


def _descended(system: System, best: Calibration, half: slice) -> Calibration:
    loss = _loss(system, best, half)
    factor = 1.6
    while factor > 1.01:
        improved = False
        for name in ("overhead_s", "memory_factor", "prefill_compute_ratio", "decode_compute_ratio", "sequence_s"):
            for times in (factor, 1 / factor):
                trial = replace(best, **{name: getattr(best, name) * times})
                trial_loss = _loss(system, trial, half)
                if trial_loss < loss:
                    best, loss, improved = trial, trial_loss, True
        if not improved:
            factor = factor**0.5
    return best


def _loss(system: System, calibration: Calibration, half: slice) -> float:
    """Of logarithms, so that ten times too slow is no worse than ten times too fast."""
    truth, guess = system.measured[half], foretold(system, calibration)[half]
    count = len(truth)
    ttft, tpot = (abs(log(sum(row[i] for row in guess) / sum(row[i] for row in truth))) for i in (0, 1))
    each = sum(abs(log(mine[1] / real[1])) for mine, real in zip(guess, truth, strict=True) if real[1] > 0) / count
    return ttft + 2 * tpot + each
