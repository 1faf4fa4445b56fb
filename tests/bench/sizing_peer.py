"""aiconfigurator 0.12.0 on InferenceX's rows: what it is asked, and what it answers.

`make bench-sizing` installs it in an environment of its own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

HOME = Path(__file__).resolve().parents[2] / "build" / "aiconfigurator"
_SEED = 8
_BUDGET_S = 180.0
# The models that it has under another name. A fine-tuned or quantized one has the shape of the one that it was made from.
_NAMES = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/DeepSeek-R1-NVFP4": "nvidia/DeepSeek-V3.1-NVFP4",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}

Row: TypeAlias = Mapping[str, str]
Arguments: TypeAlias = dict[str, str | int]


def installed() -> bool:
    """Whether `make bench-sizing` could install it."""
    return (HOME / "bin" / "aiconfigurator").exists()


def sample(rows: Sequence[Row], count: int) -> list[Row]:
    """So many rows, the same each time: each mode, engine, GPU, model and precision has its share of them.

    In random order, so that the first of them are a sample too.
    """
    mixed = random.Random(_SEED)
    shuffled = mixed.sample(list(rows), len(rows))
    ranked = sorted(shuffled, key=lambda row: tuple(row[name] for name in ("mode", "backend", "system", "model_path", "precision")))
    count = min(count, len(ranked))
    chosen = [ranked[index * len(ranked) // count] for index in range(count)]
    return mixed.sample(chosen, count)


def arguments(row: Row) -> Arguments:
    """Of `cli_estimate`: the row's own deployment in HYBRID, which fills what was not measured with formulas."""
    asked: Arguments = {
        "model_path": _NAMES.get(row["model_path"], row["model_path"]),
        "system_name": row["system"],
        "backend_name": row["backend"],
        "database_mode": "HYBRID",
        "mode": row["mode"],
        "isl": int(row["isl"]),
        "osl": int(row["osl"]),
    }
    asked |= {name: row[name] for name in ("gemm_quant_mode", "moe_quant_mode") if row[name]}
    for prefix in ("prefill_", "decode_") if row["mode"] == "disagg" else ("",):
        asked |= _replica(row, prefix)
    return asked


def _replica(row: Row, prefix: str) -> Arguments:
    """The square that some rows give as `tp_size` is undone, as for our own prediction: experts are split one way over those GPUs."""
    names = ["batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"]
    sizes = {name: max(1, round(float(row[prefix + name] or 1))) for name in names + (["num_workers"] if prefix else [])}
    if sizes["moe_tp_size"] == sizes["moe_ep_size"] > 1 and sizes["moe_tp_size"] ** 2 == sizes["tp_size"]:
        sizes |= {"tp_size": sizes["moe_ep_size"], "moe_tp_size": 1}
    return {prefix + name: size for name, size in sizes.items()}


def tpot_s(rows: Sequence[Row]) -> dict[str, float]:
    """Its TPOT for each row that it can say one for, by the row's id; as many rows as it gets through in three minutes."""
    script = Path(__file__).with_name("sizing_peer_ask.py")
    asked = "\n".join(json.dumps({"id": row["id"], "arguments": arguments(row)}) for row in rows)
    command = [str(HOME / "bin" / "python"), "-I", str(script), str(_BUDGET_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(asked)
        process.stdin.close()
        found = answers(_shown(process.stdout, len(rows)))
    if process.returncode:
        raise SystemExit(f"aiconfigurator ended with exit status {process.returncode}: remove {HOME} to have it installed anew")
    return found


def answers(lines: Iterable[str]) -> dict[str, float]:
    """Seconds a token by the row's id, of the lines that have one above zero."""
    found = {}
    for line in lines:
        answer = json.loads(line)
        if answer.get("tpot_ms", 0.0) > 0:
            found[answer["id"]] = answer["tpot_ms"] / 1e3
    return found


def _shown(lines: Iterable[str], count: int) -> Iterable[str]:
    """The same lines; every hundredth is told of."""
    for done, line in enumerate(lines, 1):
        if done % 100 == 0 or done == count:
            print(f"aiconfigurator {done:,} of {count:,} rows", file=sys.stderr, flush=True)
        yield line
