"""`make bench-autoscale`: the scaling policy on two recorded traces, beside every static shape and a planner that goes by means.

The policy is the product's own (`fleets.domain.scaling`), the stage is the product's simulator on a virtual clock. One serving unit of
Llama 3.1 70B in a quarter of an NVL72 domain; a replica has 2 GPUs and takes a minute to come. Table, then one JSON line.

`python -m tests.bench.autoscale [TRACES]`: the folder with the recorded traces.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from denvweb.cli.replay.trace import read_trace
from fleets.domain.hardware import GPUS
from fleets.domain.scaling.policy import TURN_S, decide
from fleets.domain.scaling.types import Bounds, Knob, Memory, Plant, Signals
from fleets.domain.scaling.yardstick import Traffic, decode_sequences, local_prefill_most, prefill_tokens_per_s
from fleets.domain.simulator.elastic import Elastic, Ledger, Means, Wish, simulate_elastic
from fleets.domain.simulator.run import simulate
from fleets.domain.simulator.types import Arrival, Limits, PoolShape, Result, Run, StageShape
from fleets.domain.timing import StepTimes
from fleets.domain.types import Role
from releases.catalog import catalog
from tests.bench.means_planner import MeansPlanner

_TRACES = Path("../shared/data/traces")
GPU = GPUS["GB200"]
MODEL = catalog()["llama-3.1-70b/vllm@1"].model_shape()
REPLICA_GPUS = 2
BUDGET = 18
BRING_UP_S = 60.0
INTERVALS_S = (30.0, 180.0)  # of the planner by means; 180 is Dynamo's own, 30 gives it more of a chance


@dataclass(frozen=True, slots=True)
class Case:
    """One trace and what its users are promised."""

    name: str
    file: str
    limits: Limits


CASES = (
    Case("Azure code", "azure_llm_2023_code.csv", Limits(ttft_s=2.0, itl_s=0.05)),
    Case("Mooncake conversation", "mooncake_conversation_trimmed.jsonl", Limits(ttft_s=10.0, itl_s=0.05)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One way to run a case. `turns` is the most changes of direction of one number within five minutes."""

    label: str
    good: float
    gpu_hours: float
    shape: StageShape  # that it begins with
    gpus_most: int
    fewest: int
    turns: int
    result: Result


@dataclass
class Policy:
    """The product's policy, with its memory."""

    plant: Plant
    memory: Memory = field(default_factory=Memory)
    sentences: list[str] = field(default_factory=list)

    def __call__(self, signals: Signals, means: Means) -> Wish:
        decision = decide(self.plant, signals, self.memory)
        self.memory = decision.memory
        if decision.moves(signals.counts):
            self.sentences.append(f"{signals.at_s:6.0f} s  {decision.sentence}")
        return Wish(decision.counts, decision.local_prefill_below)


def arrivals_of(path: Path) -> list[Arrival]:
    """A trace as the simulator takes it."""
    return [Arrival(one.at_s, one.input_tokens, one.output_tokens, one.blocks) for one in read_trace(path)]


def shape(prefills: int, decodes: int) -> StageShape:
    """One unit."""
    pools = (PoolShape(Role.PREFILL, prefills, REPLICA_GPUS, 64, 8192), PoolShape(Role.DECODE, decodes, REPLICA_GPUS, 512))
    return StageShape(MODEL, GPU, 1, pools)


def plant_of(limits: Limits) -> Plant:
    """What the policy is told: nothing of the trace."""
    most = BUDGET // REPLICA_GPUS - 1
    traffic = Traffic()
    return Plant(
        bounds={Knob.UNITS: Bounds(1, 1), Knob.PREFILL: Bounds(1, most), Knob.DECODE: Bounds(1, most)},
        gpus={Knob.PREFILL: REPLICA_GPUS, Knob.DECODE: REPLICA_GPUS},
        budget=BUDGET,
        ttft_limit_s=limits.ttft_s,
        itl_limit_s=limits.itl_s,
        prefill_tokens_per_s=prefill_tokens_per_s(MODEL, GPU, REPLICA_GPUS, traffic),
        decode_sequences=decode_sequences(MODEL, GPU, REPLICA_GPUS, limits.itl_s, traffic),
        bring_up_s=BRING_UP_S,
        local_prefill_below=1000,
        local_prefill_most=local_prefill_most(MODEL, GPU, REPLICA_GPUS, limits.itl_s, traffic),
    )


def static_rows(arrivals: Sequence[Arrival], limits: Limits) -> list[Row]:
    """Every shape inside the budget. More decode than carries everything, or more prefill, is not tried."""
    hours = arrivals[-1].at_s / 3600
    rows: list[Row] = []
    slots = BUDGET // REPLICA_GPUS
    for decodes in range(1, slots):
        for prefills in range(1, slots - decodes + 1):
            kind = shape(prefills, decodes)
            result = simulate(kind, arrivals, Run(limits=limits))
            rows.append(Row(f"{prefills}P{decodes}D, static", result.goodput_ratio, kind.gpus * hours, kind, kind.gpus, 1, 0, result))
    return rows


def elastic_row(label: str, arrivals: Sequence[Arrival], limits: Limits, control: Policy | MeansPlanner, begin: StageShape) -> Row:
    """One that changes, from the same shape as the static one that it is compared with."""
    elastic = Elastic(control, BUDGET, BRING_UP_S)
    result, ledger = simulate_elastic(begin, arrivals, elastic, Run(limits=limits))
    fewest = min(ledger.fewest.values(), default=1)
    return Row(label, result.goodput_ratio, ledger.gpu_s / 3600, begin, ledger.gpus_most, fewest, turns_within(ledger, TURN_S), result)


def turns_within(ledger: Ledger, span_s: float) -> int:
    """The most changes of direction of one number within any `span_s`."""
    most = 0
    for knob in (Knob.PREFILL, Knob.DECODE):
        moves = [(at_s, later[knob] - counts[knob]) for (_, counts), (at_s, later) in pairwise(_of(ledger, knob))]
        moves = [(at_s, move) for at_s, move in moves if move]
        turned = [at_s for (_, before), (at_s, move) in pairwise(moves) if (before > 0) != (move > 0)]
        most = max([most, *(sum(at_s <= other < at_s + span_s for other in turned) for at_s in turned)])
    return most


def _of(ledger: Ledger, knob: Knob) -> list[tuple[float, Mapping[Knob, int]]]:
    return [(at_s, {knob: counts[knob]}) for at_s, counts in ledger.history]


def best_static(rows: Sequence[Row], *, gpu_hours: float = 0.0) -> Row:
    """Of those with at least so many GPU-hours: most requests inside both limits, then the fewest GPUs."""
    return max((row for row in rows if row.gpu_hours >= gpu_hours), key=lambda row: (row.good, -row.gpu_hours))


def means_planner(plant: Plant, interval_s: float) -> MeansPlanner:
    """With the true profile of a replica."""
    steps = StepTimes(MODEL, GPU, REPLICA_GPUS)
    return MeansPlanner(
        plant,
        interval_s,
        lambda tokens: steps.prefill_s(max(1, round(tokens))),
        lambda batch: steps.decode_s(max(1, round(batch)), batch * 2000),
    )


def _line(row: Row) -> str:
    ttft_s, itl_s = row.result.ttft.p99_s or 0.0, row.result.itl.p99_s or 0.0
    return (
        f"{row.label:<36} {row.good:7.2%} inside both limits   {row.gpu_hours:6.2f} GPU-hours   at most {row.gpus_most:2} GPUs   "
        f"{row.turns} turns in 5 min   TTFT p99 {ttft_s:6.2f} s   ITL p99 {itl_s * 1000:5.1f} ms"
    )


def run_case(case: Case, traces: Path) -> dict[str, float]:
    """All ways of one case, printed; the figures of the JSON line."""
    arrivals, limits = arrivals_of(traces / case.file), case.limits
    plant = plant_of(limits)
    statics = static_rows(arrivals, limits)
    best = best_static(statics)
    ours = elastic_row("denv's policy", arrivals, limits, Policy(plant), best.shape)
    planners = [
        elastic_row(f"by means, every {every:.0f} s", arrivals, limits, means_planner(plant, every), best.shape) for every in INTERVALS_S
    ]
    keeping = [row for row in statics if row.result.meets(limits)]
    cheapest = min(keeping, key=lambda row: (row.gpu_hours, -row.good), default=best)
    planner = max(planners, key=lambda row: row.good)
    minutes = arrivals[-1].at_s / 60
    print(
        f"{case.name}: {len(arrivals):,} requests in {minutes:.0f} min, TTFT {limits.ttft_s} s, ITL {limits.itl_s} s, {BUDGET} GPUs at most"
    )
    for row in (
        ours,
        replace(best, label=f"{best.label}, the best"),
        replace(cheapest, label=f"{cheapest.label}, the least that keeps p99"),
        *planners,
    ):
        print("  " + _line(row))
    assert ours.gpus_most <= BUDGET and ours.fewest >= 1
    return {
        "goodput": ours.good,
        "goodput_vs_best_static": ours.good / best.good,
        "goodput_vs_means_planner": ours.good / planner.good,
        "gpu_hours_vs_best_static": ours.gpu_hours / best.gpu_hours,
        "gpu_hours_vs_least_static": ours.gpu_hours / cheapest.gpu_hours,
        "reversals_per_5min": float(ours.turns),
    }


def main() -> None:
    """All cases; the JSON line has the worst of each figure, and each case's own."""
    traces = Path(sys.argv[1]) if len(sys.argv) > 1 else _TRACES
    found = {case.name: run_case(case, traces) for case in CASES if (traces / case.file).exists()}
    if not found:
        print(f"no recorded traces in {traces}")
        return
    worst_is_high = {"gpu_hours_vs_best_static", "gpu_hours_vs_least_static", "reversals_per_5min"}
    names = next(iter(found.values()))
    figures: dict[str, object] = {
        name: float(f"{(max if name in worst_is_high else min)(case[name] for case in found.values()):.4g}") for name in names
    }
    figures["cases"] = {name: {key: float(f"{value:.4g}") for key, value in case.items()} for name, case in found.items()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
