"""The release file that a sizing asks for."""

from __future__ import annotations

import re

from denvweb.cli.sizing_inputs import Question
from denvweb.core.errors import InvalidError
from fleets.domain.sizing.types import Sizing
from fleets.domain.types import Role
from releases.domain.spec import ReleaseFile, parse

_NAME = re.compile(r"[^a-z0-9-]+")


def release_text(asked: Question, sizing: Sizing, *, weights: str = "", fleet: str = "") -> str:
    """YAML that `denv release -f` takes. Of a measured stage it has the names and weights; else those to be filled in are marked."""
    recipe, need = asked.recipe, asked.need
    model = asked.stage.model if asked.stage else _NAME.sub("-", recipe.name.partition("/")[0])
    spec = asked.release.spec["release"] if asked.release else {}
    found_weights = weights or str(spec.get("weights", ""))
    fleets = fleet or (", ".join(asked.stage.fleets) if asked.stage else "")
    lines = [
        f"# By `denv size`, for {need.process.rate_per_s:.1f} requests/s of {need.process.input_tokens:,.0f} prompt and "
        f"{need.process.output_tokens:,.0f} output tokens.",
        f"# {sizing.shape.text}, {sizing.gpus} GPUs. {sizing.why}.",
        "release:",
        f"  model: {model}",
        f"  weights: {found_weights or f'hf://your-org/{model}@your-revision  # fill in'}",
        f"  recipe: {recipe.name}",
        "  topology:",
        *_topology(sizing),
        "  engine:",
        *_options(sizing),
        "stages:",
        f"  {asked.stage.name if asked.stage else 'prod'}:",
        f"    fleets: [{fleets or asked.serving.gpu.name.lower()}]{'' if fleets else '  # fill in'}",
        f"    replicas: {sizing.shape.units}",
        f"    alarms: {{ {_alarms(asked)}error-rate: 1% }}",
    ]
    text = "\n".join(lines) + "\n"
    parsed = parse(text)
    if not isinstance(parsed, ReleaseFile):
        raise InvalidError("; ".join(error.text("the release") for error in parsed), code="spec-invalid")
    return text


def _topology(sizing: Sizing) -> list[str]:
    if sizing.pools[0].role is Role.AGGREGATED:
        pool = sizing.pools[0]
        return ["    mode: aggregated", f"    aggregated: {{ gpus: {pool.gpus}, replicas: {pool.replicas} }}"]
    policy = sizing.shape.conditional
    pools = [f"    {pool.role.value}: {{ gpus: {pool.gpus}, replicas: {pool.replicas} }}" for pool in sizing.pools]
    conditional = f"{{ local-prefill-below: {policy.local_prefill_below}, prefill-queue-above: {policy.prefill_queue_above} }}"
    return ["    mode: disaggregated", *pools, "    placement: same-domain", f"    conditional: {conditional}"]


def _options(sizing: Sizing) -> list[str]:
    """Batch sizes, as they were simulated."""
    lines = []
    for pool in sizing.pools:
        options = []
        if pool.role is not Role.PREFILL:
            options.append(f"max-num-seqs: {pool.max_sequences}")
        if pool.role is not Role.DECODE:
            options.append(f"max-num-batched-tokens: {pool.max_batched_tokens}")
        lines.append(f"    {pool.role.value}: {{ {', '.join(options)} }}")
    return lines


def _alarms(asked: Question) -> str:
    limits = asked.need.limits
    parts = [("ttft-p99", limits.ttft_s), ("itl-p99", limits.itl_s)]
    return "".join(f"{name}: {limit * 1000:g}ms, " for name, limit in parts if limit is not None)
