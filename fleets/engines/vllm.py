"""vLLM with NixlConnector (pull): written against vLLM 0.33's `vllm serve` and its nixl_integration examples."""

from __future__ import annotations

import json

from fleets.domain.protocol import RankSpec
from fleets.domain.types import Role
from fleets.engines.base import Capabilities, LaunchCommand, gpu_env, option_flags, replica_gpus, weights_path
from fleets.engines.prometheus import mapped

_KV_ROLE = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}

NAMES = {
    "kv_use": "vllm:kv_cache_usage_perc",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "preemptions": "vllm:num_preemptions_total",
    "kv_transfers": "vllm:nixl_xfer_time_seconds_count",
    "kv_transfer_bytes": "vllm:nixl_bytes_transferred_sum",
    "kv_transfers_failed": "vllm:nixl_num_failed_transfers_total",
    "kv_expired": "vllm:nixl_num_kv_expired_reqs_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
}
RATIOS = {"prefix_hit": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")}
_OWN_OPTIONS = frozenset({"kv-lease-s", "kv-load-failure-policy"})  # denv's names: they go into --kv-transfer-config


class VllmAdapter:
    """`vllm serve`, one process per rank."""

    name = "vllm"
    capabilities = Capabilities(disaggregate=True, local_prefill_on_decode=True, hetero_tensor_parallel=True, role_switch=False)

    def command(self, spec: RankSpec, *, speed: float = 1.0, engine_id: str = "") -> LaunchCommand:
        """Prefill and decode differ in `kv_role` only, and vLLM takes even that as advice."""
        engine = spec.engine
        model, revision = weights_path(engine.weights)
        argv = ["vllm", "serve", model, "--host", spec.leader_host, "--port", str(spec.port), "--served-model-name", engine.model]
        argv += ["--revision", revision] if revision else []
        argv += ["--block-size", str(engine.block_tokens), *_parallel_flags(spec)]
        argv += [] if engine.kv_dtype == "auto" else ["--kv-cache-dtype", engine.kv_dtype]
        argv += ["--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching"]
        env = gpu_env(spec)
        if spec.role in _KV_ROLE:
            argv += ["--kv-transfer-config", json.dumps(_kv_config(spec, engine_id))]
            env |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": spec.leader_host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(spec.leader_port + 1)}
        argv += option_flags(engine.options, but=_OWN_OPTIONS)
        return LaunchCommand(tuple(argv), env) if spec.index == 0 else LaunchCommand(tuple(argv), env, ready_path="", metrics_path="")

    def map_metrics(self, text: str) -> dict[str, float]:
        """Gauges by denv's names."""
        return mapped(text, NAMES, RATIOS)


def _kv_config(spec: RankSpec, engine_id: str) -> dict[str, object]:
    """An engine id that changes with every start: a restarted prefill under its old id is refused by its peers for good."""
    options = spec.engine.options
    config: dict[str, object] = {
        "kv_connector": "NixlConnector",
        "kv_role": _KV_ROLE[spec.role],
        "kv_load_failure_policy": options.get("kv-load-failure-policy", "fail"),
        "kv_connector_extra_config": {"kv_lease_duration": int(options.get("kv-lease-s", "30"))},
    }
    return config | ({"engine_id": engine_id} if engine_id else {})


def _parallel_flags(spec: RankSpec) -> list[str]:
    """Tensor parallelism inside nodes and data parallelism over them, or one tensor-parallel group over several nodes."""
    tensor, here, total = spec.engine.tensor_parallel, len(spec.gpus), replica_gpus(spec)
    flags = ["--tensor-parallel-size", str(tensor)]
    headless = ["--headless"] if spec.index else []
    if tensor > here:
        nodes = ["--nnodes", str(spec.count), "--node-rank", str(spec.index), "--master-addr", spec.leader_host]
        return [*flags, *nodes, "--master-port", str(spec.leader_port + 2), *headless]
    if total == tensor:
        return flags
    local = here // tensor
    flags += ["--data-parallel-size", str(total // tensor), "--data-parallel-size-local", str(local)]
    if spec.count > 1:
        flags += ["--data-parallel-address", spec.leader_host, "--data-parallel-rpc-port", str(spec.leader_port + 2)]
        flags += ["--data-parallel-start-rank", str(spec.index * local)] if spec.index else []
    return flags + headless


ADAPTER = VllmAdapter()
