"""The simulator against requests that a real vLLM 0.19 served: calibrated on one half of each system, judged on the other.

Data: casys-kaist/LLMServingSim `bench/examples` (MIT), 300 requests each on four systems.

Two ranks that share their experts wait for each other at every layer, so they are one replica here with the budgets of both, as
attention data parallelism is everywhere in denv.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

from fleets.domain.hardware import GpuKind
from fleets.domain.simulator.replica import Clock, Job, Replica
from fleets.domain.simulator.tally import Tally
from fleets.domain.simulator.types import Arrival, PoolShape
from fleets.domain.timing import Calibration, StepTimes, memory_fit
from fleets.domain.types import ModelShape, Role
from tests.bench.least_squares import fitted

BLOCK_TOKENS = 16  # vLLM's
# NVIDIA's data sheets: dense BF16, memory, bandwidth, PCIe to the next GPU. Neither has NVLink.
_GPUS = {
    "rtx4090": GpuKind("RTX 4090", "nvidia", 165e12, 330e12, None, 25.25e9, 1.008e12, 8, 32e9, 3e9, False),
    "rtxpro6000": GpuKind("RTX PRO 6000", "nvidia", 503e12, 1006e12, 2012e12, 96e9, 1.792e12, 8, 64e9, 3e9, False),
}

# Every other request, and the earlier and later half; each calibrates and is judged in its turn.
EVEN, ODD = slice(0, None, 2), slice(1, None, 2)
FIRST, SECOND = slice(0, 150), slice(150, 300)
HALVES: Mapping[str, tuple[slice, slice]] = {
    "even, judged on odd": (EVEN, ODD),
    "odd, judged on even": (ODD, EVEN),
    "first half, judged on second": (FIRST, SECOND),
    "second half, judged on first": (SECOND, FIRST),
}

# Where the search begins, and how far (in natural logarithms) a constant is from there without surprise. The pull is weak: what the
# requests say outweighs it a hundredfold. It decides only between constants that can take each other's place in one half.
_PRIOR = {
    "overhead_s": (2.5e-3, 0.5),
    "memory_factor": (1.2, 0.3),
    "prefill_compute_ratio": (0.6, 1.0),
    "decode_compute_ratio": (0.8, 1.0),
}
_PULL = 0.03
_TTFT_WEIGHT = 0.1  # of each request's TTFT, which mostly is its wait; the means count in full


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
    ranks = int(engine["data_parallel_size"])
    gpus = int(engine["tensor_parallel_size"]) * ranks
    kv_tokens = meta.get("kv_cache", {}).get("num_kv_tokens") or memory_fit(model, gpu, gpus).kv_tokens
    sequences, budget = ranks * engine["max_num_seqs"], ranks * engine["max_num_batched_tokens"]
    begin_s = rows[0]["queued_ts"]
    return System(
        name,
        model,
        gpu,
        gpus,
        PoolShape(Role.AGGREGATED, 1, gpus, sequences, budget, int(kv_tokens), BLOCK_TOKENS),
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
        found[id(job.arrival)] = (job.first_s - job.arrival.at_s, (now - job.first_s) / max(1, job.output - 1))

    steps = StepTimes(system.model, system.gpu, system.gpus, calibration)
    replica = Replica(clock, system.pool, steps, system.pool.kv_tokens or 0, Tally(), lambda tokens: 0.0, done, done)
    for arrival in system.arrivals:
        clock.at(arrival.at_s, replica.add, Job(arrival))
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
    """The constants that fit one half best: each request's TTFT and TPOT, and both means, in logarithms."""
    truth = system.measured[half]

    def residuals(at: Sequence[float]) -> list[float]:
        guess = foretold(system, _calibration(at))[half]
        each = 1 / sqrt(len(truth))
        left = [each * log(mine[1] / real[1]) for mine, real in zip(guess, truth, strict=True) if real[1] > 0]
        left += [each * _TTFT_WEIGHT * log(mine[0] / real[0]) for mine, real in zip(guess, truth, strict=True)]
        left += [log(sum(row[i] for row in guess) / sum(row[i] for row in truth)) for i in (0, 1)]
        return left + [_PULL * (value - log(start)) / spread for value, (start, spread) in zip(at, _PRIOR.values(), strict=True)]

    return _calibration(fitted(residuals, [log(start) for start, _ in _PRIOR.values()]))


def _calibration(at: Sequence[float]) -> Calibration:
    return Calibration(**{name: exp(value) for name, value in zip(_PRIOR, at, strict=True)})
