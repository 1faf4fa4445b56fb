"""The timing model's decode step against InferenceX's measured points: cross-validated, with an offset and a factor for each backend.

Data: `silicon_sample.csv` of aiconfigurator-core 0.12.0 (Apache-2.0). Aggregated rows of models whose figures are known here.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from statistics import median

from fleets.domain.hardware import GPUS
from fleets.domain.timing import StepTimes
from fleets.domain.types import ModelShape

_FILE = "aic_silicon_sample_inferencex.csv"
_FOLDS = 5
_DOUBLINGS_S = (0.0, 2.5e-6, 5e-6, 7.5e-6, 10e-6, 15e-6, 20e-6)
_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625, "int4": 0.5625, "": 1.0}  # of one parameter, block scales included


def _shape(layers: int, hidden: int, kv_elements: float, params: float, active: float) -> ModelShape:
    """With weights and KV of one byte each, to be scaled by the row's precision."""
    return ModelShape(layers, hidden, 1, params, active, active, params, kv_elements)


# Parameters, and KV elements a token: layers x 2 x heads x 128 for grouped-query attention, layers x 576 for latent attention.
_MODELS = {
    "deepseek-ai/DeepSeek-R1": _shape(61, 7168, 35_136, 671e9, 37e9),
    "deepseek-ai/DeepSeek-V3": _shape(61, 7168, 35_136, 671e9, 37e9),
    "nvidia/DeepSeek-R1-NVFP4": _shape(61, 7168, 35_136, 671e9, 37e9),
    "nvidia/DeepSeek-V3.1-NVFP4": _shape(61, 7168, 35_136, 671e9, 37e9),
    "moonshotai/Kimi-K2.5": _shape(61, 7168, 35_136, 1e12, 32e9),
    "meta-llama/Llama-3.1-70B": _shape(80, 8192, 163_840, 70.6e9, 70.6e9),
    "meta-llama/Llama-3.1-8B-Instruct": _shape(32, 4096, 65_536, 8.03e9, 8.03e9),
    "nvidia/Llama-3.1-8B-Instruct-FP8": _shape(32, 4096, 65_536, 8.03e9, 8.03e9),
    "Qwen/Qwen3-32B": _shape(64, 5120, 131_072, 32.8e9, 32.8e9),
    "nvidia/Qwen3-32B-NVFP4": _shape(64, 5120, 131_072, 32.8e9, 32.8e9),
    "Qwen/Qwen3-235B-A22B-FP8": _shape(94, 4096, 96_256, 235e9, 22e9),
    "openai/gpt-oss-120b": _shape(36, 2880, 18_432, 117e9, 5.1e9),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One measured row beside the model's own seconds a token."""

    backend: str
    model_s: float
    measured_s: float
    doublings: float  # layers times two collectives times doublings of the group: what the model holds for free within 8 GPUs


@dataclass(frozen=True, slots=True)
class Fit:
    """Errors over all folds, each predicted by the others."""

    points: int
    mape: float
    median: float
    within_interval: float  # share of the points inside 0.8 to 1.25 times the prediction


def read_points(folder: Path) -> list[Point]:
    """Aggregated rows of known models."""
    file = folder / _FILE
    if not file.exists():
        return []
    with file.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["mode"] == "agg" and row["model_path"] in _MODELS]
    return [_point(row) for row in rows if float(row["silicon_tpot_ms"] or 0) > 0]


def _point(row: dict[str, str]) -> Point:
    bytes_each = _BYTES[row["precision"]]
    plain = _MODELS[row["model_path"]]
    kv_bytes = 1.0 if bytes_each < 2 else 2.0
    model = replace(plain, weight_bytes=plain.total_params * bytes_each, kv_bytes_per_token=plain.kv_bytes_per_token * kv_bytes)
    gpus = _gpus(row)
    steps = StepTimes(model, GPUS[row["system"]], gpus)
    isl, osl = float(row["isl"]), float(row["osl"])
    batch = max(1, round(float(row["batch_size"]) * max(1, int(row["attention_dp_size"] or 1))))
    pure_s = steps.decode_s(batch, batch * (isl + osl / 2))
    mixed_s = pure_s + steps.prefill_part_s(isl, 0) * batch / osl
    return Point(row["backend"], mixed_s, float(row["silicon_tpot_ms"]) / 1e3, model.layers * 2 * log2(gpus))


def _gpus(row: dict[str, str]) -> int:
    """GPUs of the engine. Some rows give the square as `tp_size` where experts are split both ways over the same GPUs."""
    tp, moe_tp, moe_ep = (int(row[name] or 1) for name in ("tp_size", "moe_tp_size", "moe_ep_size"))
    if moe_tp == moe_ep > 1 and moe_tp * moe_ep == tp:
        tp = moe_tp
    return tp * max(1, int(row["attention_dp_size"] or 1))


def cross_validated(points: Sequence[Point]) -> Fit:
    """Five folds. On four of them a collective's cost is chosen, and for each backend `measured = offset + factor * model`."""
    wrong: list[float] = []
    inside = 0
    for fold in range(_FOLDS):
        known = [point for index, point in enumerate(points) if index % _FOLDS != fold]
        doubling_s = min(_DOUBLINGS_S, key=lambda seconds: _training_error(known, seconds))
        for backend in sorted({point.backend for point in points}):
            offset_s, factor = _line([_with(point, doubling_s) for point in known if point.backend == backend])
            for point in points[fold::_FOLDS]:
                if point.backend == backend:
                    guess_s = max(1e-4, offset_s + factor * _with(point, doubling_s).model_s)
                    wrong.append(abs(guess_s / point.measured_s - 1))
                    inside += 0.8 * guess_s <= point.measured_s <= 1.25 * guess_s
    return Fit(len(points), sum(wrong) / len(wrong), median(wrong), inside / len(points))


def _with(point: Point, doubling_s: float) -> Point:
    return replace(point, model_s=point.model_s + point.doublings * doubling_s)


def _training_error(points: Sequence[Point], doubling_s: float) -> float:
    total = 0.0
    for backend in sorted({point.backend for point in points}):
        mine = [_with(point, doubling_s) for point in points if point.backend == backend]
        offset_s, factor = _line(mine)
        total += sum(abs((offset_s + factor * point.model_s) / point.measured_s - 1) for point in mine)
    return total


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """Least absolute relative error, by least squares with weights that are set anew ten times."""
    offset_s, factor = 0.0, 1.0
    weights = [1.0 / point.measured_s**2 for point in points]
    for _ in range(10):
        total = sum(weights)
        x = sum(w * p.model_s for w, p in zip(weights, points, strict=True)) / total
        y = sum(w * p.measured_s for w, p in zip(weights, points, strict=True)) / total
        above = sum(w * (p.model_s - x) * (p.measured_s - y) for w, p in zip(weights, points, strict=True))
        below = sum(w * (p.model_s - x) ** 2 for w, p in zip(weights, points, strict=True))
        factor = above / below if below else 1.0
        offset_s = y - factor * x
        weights = [1.0 / (p.measured_s**2 * max(0.02, abs((offset_s + factor * p.model_s) / p.measured_s - 1))) for p in points]
    return offset_s, factor
