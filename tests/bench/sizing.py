"""`make bench-sizing`: what timing model and simulator foretell, beside what was measured. Tables, then one JSON line.

`python -m tests.bench.sizing [TRACES]`: the folder with recorded traces and measured points; without one those parts are left out.
About six minutes, most of it in real time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fleets.domain.sizing.cases import DEEPSEEK_DAY
from fleets.domain.sizing.interval import COVERED_RATIO, DENSE, EXPERTS
from tests.bench import realtime, sizing_peer
from tests.bench.measured_silicon import Fit, Point, alone_factors, coverage, cross_validated, factors_of, fit_of, read_points, read_rows
from tests.bench.measured_vllm import HALVES, calibrated, errors, read_systems

_TRACES = Path("../shared/data/traces")
_PEER_ROWS = 400  # two minutes
_MOVED = 0.02  # that an interval's end may be off what is found anew


def _against_engine(traces: Path) -> dict[str, float]:
    """Real processes of the simulated engine behind a router, at their own speed."""
    worst = 0.0
    for case in realtime.CASES:
        if not (traces / case.file).exists():
            continue
        requests = realtime.requests_of(case, traces)
        seen = asyncio.run(realtime.seen(case, requests))
        if seen.done != len(requests):
            raise SystemExit(f"{case.name}: {seen.failed} requests failed: {seen.failures}")
        wrong = realtime.errors(realtime.foretold(case, requests), seen)
        worst = max(worst, *(abs(error) for error in wrong.values()))
        cells = "  ".join(f"{name} {error:+.1%}" for name, error in wrong.items())
        print(f"engine       {case.name:<48} {len(requests):>4} requests  {cells}")
    return {"sim_vs_engine_worst_error": worst} if worst else {}


def _against_vllm(traces: Path) -> dict[str, float]:
    """A real vLLM 0.19 on four systems: every half calibrates and every half is judged, and the worst of all sixteen counts."""
    found = []
    for system in read_systems(traces):
        for name, (half, other) in HALVES.items():
            wrong = errors(system, calibrated(system, half), other)
            found.append(wrong)
            cells = f"mean TTFT {wrong.ttft_mean:.1%}  mean TPOT {wrong.tpot_mean:.1%}  TPOT of each {wrong.tpot_mape:.1%}"
            print(f"vLLM         {system.name:<40} {name:<29} {cells}")
    if not found:
        return {}
    return {
        "vllm_ttft_mean_error": max(one.ttft_mean for one in found),
        "vllm_tpot_mean_error": max(one.tpot_mean for one in found),
        "vllm_tpot_mape": sum(one.tpot_mape for one in found) / len(found),
    }


def _against_silicon(traces: Path) -> dict[str, float]:
    """InferenceX: each point predicted from the others, and each interval made without what it is judged on."""
    points = read_points(traces)
    if not points:
        return {}
    fit, inside = cross_validated(points), coverage(points)
    print(f"InferenceX   {len(points):,} points: TPOT {fit.mape:.1%} off on average, median {fit.median:.1%}")
    for kind, mine, used in (
        ("dense", [point for point in points if point.dense], DENSE),
        ("experts", [point for point in points if not point.dense], EXPERTS),
    ):
        ends = factors_of(mine)
        print(f"intervals    {kind:<8} {COVERED_RATIO:.0%} of measured are {ends.fast:.2f} to {ends.slow:.2f} times the prediction")
        if max(abs(ends.fast - used.fast), abs(ends.slow - used.slow)) > _MOVED:
            raise SystemExit(f"the interval of {kind} has moved: write {ends} into fleets/domain/sizing/interval.py")
    print(f"             cover {inside.other_folds:.1%} of points not in them, {inside.other_families:.1%} of families not in them")
    print(f"             {'  '.join(f'{family} {share:.0%}' for family, share in sorted(inside.by_family.items()))}")
    alone = sorted(alone_factors(traces))
    middle = alone[len(alone) // 2]
    print(f"dense TTFT   Llama 70B on 1 to 8 H100 and H200: {alone[0]:.2f} to {alone[-1]:.2f} times the measured, median {middle:.2f}")
    return {
        "silicon_points": len(points),
        "silicon_tpot_mape": fit.mape,
        "interval_coverage": inside.other_families,
        "interval_coverage_other_folds": inside.other_folds,
        "dense_ttft_factor_median": middle,
    } | _beside_peer(traces, points, fit)


def _beside_peer(traces: Path, points: Sequence[Point], fit: Fit) -> dict[str, float]:
    """aiconfigurator on a sample of the same rows; both are judged on those that it can say a TPOT for."""
    if not sizing_peer.installed():
        print(f"\n*** NOT COMPARED WITH aiconfigurator: it is not in {sizing_peer.HOME}, where `make bench-sizing` installs it ***\n")
        return {}
    asked = sizing_peer.sample(read_rows(traces), _PEER_ROWS)
    answers_s = sizing_peer.tpot_s(asked)
    both = [point for point in points if point.id in answers_s]
    if not both:
        raise SystemExit("aiconfigurator says a TPOT for none of the rows")
    ours, theirs = fit_of(both, fit.guesses_s), fit_of(both, answers_s)
    fitted = cross_validated([replace(point, model_s=answers_s[point.id], doublings=0.0) for point in both])
    print(f"TPOT         on the {len(both)} of {len(asked)} sampled points that both predict:")
    for name, one in (
        ("denv, cross-validated", ours),
        ("aiconfigurator 0.12.0, HYBRID", theirs),
        ("aiconfigurator, with an offset and a factor as ours", fitted),
    ):
        print(f"             {name:<52} {one.mape:.1%} off on average, median {one.median:.1%}")
    return {
        "both_points": len(both),
        "silicon_tpot_mape_both": ours.mape,
        "silicon_tpot_median_error_both": ours.median,
        "aiconfigurator_tpot_mape_both": theirs.mape,
        "aiconfigurator_tpot_median_error_both": theirs.median,
        "aiconfigurator_tpot_mape_fitted": fitted.mape,
    }


def main() -> None:
    """All parts."""
    logging.disable(logging.WARNING)  # the router has no control plane here, and would say so each second
    traces = Path(sys.argv[1]) if len(sys.argv) > 1 else _TRACES
    figures = _against_vllm(traces) | _against_silicon(traces) | _against_engine(traces)
    figures["deepseek_nodes"] = DEEPSEEK_DAY.nodes
    day = DEEPSEEK_DAY
    print(f"DeepSeek     {day.prefill_nodes:.1f} + {day.decode_nodes:.1f} = {day.nodes:.1f} nodes; 226.75 were reported")
    print(json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()}))


if __name__ == "__main__":
    main()
