"""The timing model's decode step against InferenceX's measured points: cross-validated, with an offset and a factor for each backend.

Data: `silicon_sample.csv` of aiconfigurator-core 0.12.0 (Apache-2.0), 5,221 rows. Of those with roles 1,328 do not say how many sequences
a decode replica has, so nobody can predict them.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from statistics import median

from fleets.domain.hardware import GPUS
from fleets.domain.sizing.interval import COVERED_RATIO, Factors
from fleets.domain.timing import StepTimes, is_dense
from fleets.domain.types import ModelShape

_FILE = "aic_silicon_sample_inferencex.csv"
_FOLDS = 5
_DOUBLINGS_S = (0.0, 2.5e-6, 5e-6, 7.5e-6, 10e-6, 15e-6, 20e-6)
_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625, "int4": 0.5625, "": 1.0}  # of one parameter, block scales included


def _shape(layers: int, hidden: int, kv_elements: float, params: float, active: float) -> ModelShape:
    """With weights and KV of one byte each, to be scaled by the row's precision."""
    return ModelShape(layers, hidden, 1, params, active, active, params, kv_elements)


# Parameters, and KV elements a token: layers x 2 x heads x 128 for grouped-query attention, layers x 576 for latent attention; only one
# layer in four of Qwen 3.5 attends to all tokens. Models that differ in how they were trained are one family.
_MODELS = {
    "deepseek-ai/DeepSeek-R1": ("DeepSeek-V3", _shape(61, 7168, 35_136, 671e9, 37e9)),
    "deepseek-ai/DeepSeek-V3": ("DeepSeek-V3", _shape(61, 7168, 35_136, 671e9, 37e9)),
    "nvidia/DeepSeek-R1-NVFP4": ("DeepSeek-V3", _shape(61, 7168, 35_136, 671e9, 37e9)),
    "nvidia/DeepSeek-V3.1-NVFP4": ("DeepSeek-V3", _shape(61, 7168, 35_136, 671e9, 37e9)),
    "moonshotai/Kimi-K2.5": ("Kimi-K2", _shape(61, 7168, 35_136, 1e12, 32e9)),
    "meta-llama/Llama-3.1-70B": ("Llama-70B", _shape(80, 8192, 163_840, 70.6e9, 70.6e9)),
    "meta-llama/Llama-3.1-8B-Instruct": ("Llama-8B", _shape(32, 4096, 65_536, 8.03e9, 8.03e9)),
    "nvidia/Llama-3.1-8B-Instruct-FP8": ("Llama-8B", _shape(32, 4096, 65_536, 8.03e9, 8.03e9)),
    "Qwen/Qwen3-32B": ("Qwen3-32B", _shape(64, 5120, 131_072, 32.8e9, 32.8e9)),
    "nvidia/Qwen3-32B-NVFP4": ("Qwen3-32B", _shape(64, 5120, 131_072, 32.8e9, 32.8e9)),
    "Qwen/Qwen3-235B-A22B-FP8": ("Qwen3-235B", _shape(94, 4096, 96_256, 235e9, 22e9)),
    "Qwen/Qwen3.5-397B-A17B": ("Qwen3.5-397B", _shape(60, 4096, 15_360, 397e9, 17e9)),
    "openai/gpt-oss-120b": ("gpt-oss-120b", _shape(36, 2880, 18_432, 117e9, 5.1e9)),
    "MiniMaxAI/MiniMax-M2.5": ("MiniMax-M2", _shape(62, 3072, 126_976, 230e9, 10e9)),
    "zhipuai/GLM-5": ("GLM-5", _shape(78, 6144, 44_928, 744e9, 40e9)),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One measured row beside the model's own seconds a token."""

    id: str
    family: str
    dense: bool
    backend: str
    model_s: float
    measured_s: float
    doublings: float  # layers times two collectives times doublings of the group: what the model holds for free within 8 GPUs

    @property
    def factor(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.model_s


@dataclass(frozen=True, slots=True)
class Fit:
    """Errors over all folds, each predicted by the others."""

    mape: float
    median: float
    guesses_s: Mapping[str, float]  # by the row's id


def fit_of(points: Sequence[Point], guesses_s: Mapping[str, float]) -> Fit:
    """Errors of guesses that are there already, over the points that have one."""
    wrong = [abs(guesses_s[point.id] / point.measured_s - 1) for point in points if point.id in guesses_s]
    return Fit(sum(wrong) / len(wrong), median(wrong), guesses_s)


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Every row that says how many sequences decode together: all aggregated ones, and 274 of those with roles."""
    file = folder / _FILE
    if not file.exists():
        return []
    with file.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["batch_size"] or row["decode_batch_size"]]
    return [row for row in rows if float(row["silicon_tpot_ms"] or 0) > 0]


def read_points(folder: Path) -> list[Point]:
    """The rows of `read_rows`, in their order."""
    return [_point(row) for row in read_rows(folder)]


def _point(row: dict[str, str]) -> Point:
    apart = row["mode"] == "disagg"
    model, family = _model(row)
    prefix = "decode_" if apart else ""
    ranks = max(1, int(row[f"{prefix}attention_dp_size"] or 1))
    gpus = _gpus(row, prefix) * ranks
    steps = StepTimes(model, GPUS[row["system"]], gpus)
    isl, osl = float(row["isl"]), float(row["osl"])
    batch = max(1, round(float(row[f"{prefix}batch_size"]) * ranks))
    model_s = steps.decode_s(batch, batch * (isl + osl / 2))
    if not apart:
        model_s += steps.prefill_part_s(isl, 0) * batch / osl
    measured_s, doublings = float(row["silicon_tpot_ms"]) / 1e3, model.layers * 2 * log2(gpus)
    return Point(row["id"], family, is_dense(model), row["backend"], model_s, measured_s, doublings)


def _model(row: dict[str, str]) -> tuple[ModelShape, str]:
    """In the row's precision, and its family. KV has 8 bits where weights have no more."""
    family, plain = _MODELS[row["model_path"]]
    bytes_each = _BYTES[row["precision"]]
    kv_bytes = plain.kv_bytes_per_token * (1.0 if bytes_each < 2 else 2.0)
    return replace(plain, weight_bytes=plain.total_params * bytes_each, kv_bytes_per_token=kv_bytes), family


def _gpus(row: dict[str, str], prefix: str) -> int:
    """GPUs that share one sequence. Some rows give the square as `tp_size` where experts are split both ways over the same GPUs."""
    tp, moe_tp, moe_ep = (int(row[prefix + name] or 1) for name in ("tp_size", "moe_tp_size", "moe_ep_size"))
    return moe_tp if moe_tp == moe_ep > 1 and moe_tp * moe_ep == tp else tp


def cross_validated(points: Sequence[Point]) -> Fit:
    """Five folds. On four of them a collective's cost is chosen, and for each backend `measured = offset + factor * model`."""
    guesses: dict[str, float] = {}
    for fold in range(_FOLDS):
        known = [point for index, point in enumerate(points) if index % _FOLDS != fold]
        doubling_s = min(_DOUBLINGS_S, key=lambda seconds: _training_error(known, seconds))
        for backend in sorted({point.backend for point in points}):
            offset_s, factor = _line([_with(point, doubling_s) for point in known if point.backend == backend])
            for point in points[fold::_FOLDS]:
                if point.backend == backend:
                    guesses[point.id] = max(1e-4, offset_s + factor * _with(point, doubling_s).model_s)
    return fit_of(points, guesses)


def alone_factors(folder: Path) -> list[float]:
    """Predicted over measured TTFT of Llama 70B at the lowest measured load, which is little more than its prefill."""
    file = folder / _FILE
    with file.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["model_path"] == "meta-llama/Llama-3.1-70B"]
    found = []
    for row in rows:
        if row["mode"] == "agg" and row["system"] in ("h100_sxm", "h200_sxm") and float(row["batch_size"]) <= 4 and int(row["isl"]) >= 2000:
            model, _ = _model(row)
            steps = StepTimes(model, GPUS[row["system"]], _gpus(row, "") * max(1, int(row["attention_dp_size"] or 1)))
            found.append(steps.prefill_s(int(row["isl"])) * 1e3 / float(row["silicon_ttft_ms"]))
    return found


# ---- intervals ----


def factors_of(points: Sequence[Point]) -> Factors:
    """Both ends of the interval that the points ask for. Each family counts alike."""
    sizes = Counter(point.family for point in points)
    ranked = sorted((point.factor, 1 / sizes[point.family]) for point in points)
    edge = (1 - COVERED_RATIO) / 2 * len(sizes)
    return Factors(_at_weight(ranked, edge), _at_weight(ranked, len(sizes) - edge))


def _at_weight(ranked: Sequence[tuple[float, float]], wanted: float) -> float:
    total = 0.0
    for factor, weight in ranked:
        total += weight
        if total >= wanted - 1e-9:
            return factor
    return ranked[-1][0]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of the points inside an interval that was made without them: without their fold, and without their whole family."""

    other_folds: float
    other_families: float
    by_family: Mapping[str, float]


def coverage(points: Sequence[Point]) -> Coverage:
    """Dense models and mixtures of experts have intervals of their own."""
    folds: list[bool] = []
    families: dict[str, list[bool]] = {}
    for dense in (True, False):
        mine = [point for point in points if point.dense is dense]
        for fold in range(_FOLDS):
            ends = factors_of([point for index, point in enumerate(mine) if index % _FOLDS != fold])
            folds += [ends.fast <= point.factor <= ends.slow for point in mine[fold::_FOLDS]]
        for family in sorted({point.family for point in mine}):
            ends = factors_of([point for point in mine if point.family != family])
            families[family] = [ends.fast <= point.factor <= ends.slow for point in mine if point.family == family]
    inside = [one for each in families.values() for one in each]
    return Coverage(_share(folds), _share(inside), {family: _share(each) for family, each in families.items()})


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values)


# ---- fits ----


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
