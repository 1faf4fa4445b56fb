"""SGLang with its bootstrap protocol: written against SGLang 0.5.23's `sglang.launch_server`."""

from __future__ import annotations

import json

from denvweb.core.errors import InvalidError
from fleets.domain.ports import EVENTS, replay_port
from fleets.domain.protocol import RankSpec
from fleets.domain.types import Role
from fleets.engines.base import (
    Capabilities,
    LaunchCommand,
    environment_options,
    gpu_env,
    listens,
    option_flags,
    replica_gpus,
    weights_path,
)
from fleets.engines.prometheus import mapped

_GB = 1e9
# The words of recipes for what KV is kept in, and SGLang's.
_KV_DTYPES = {"auto": "auto", "bf16": "bf16", "fp8": "fp8_e4m3", "fp4": "fp4_e2m1"}
_OWN_OPTIONS = frozenset({"kv-offload-bytes", "kv-events"})  # denv's names
_NAMES = {
    "kv_use": "sglang:token_usage",
    "running": "sglang:num_running_reqs",
    "waiting": "sglang:num_queue_reqs",
    "prefix_hit": "sglang:cache_hit_rate",
    "preemptions": "sglang:num_retracted_requests_total",
    "kv_transfers_failed": "sglang:num_transfer_failed_reqs_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "generation_tokens": "sglang:generation_tokens_total",
}


class SglangAdapter:
    """`python -m sglang.launch_server`; its decode answers nothing that comes without a prefill peer."""

    name = "sglang"
    program = "python"
    capabilities = Capabilities(disaggregate=True, local_prefill_on_decode=False, hetero_tensor_parallel=True, role_switch=True)

    def command(self, spec: RankSpec, *, speed: float = 1.0, engine_id: str = "") -> LaunchCommand:
        """`/ready` and not `/health`, which generates a token and takes a second."""
        engine = spec.engine
        model, revision = weights_path(engine.weights)
        argv = ["python", "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", engine.model, "--enable-metrics"]
        argv += ["--revision", revision] if revision else []
        argv += ["--host", spec.leader_host, "--port", str(spec.port), "--page-size", str(engine.block_tokens)]
        argv += ["--tp-size", str(replica_gpus(spec))]
        if engine.tensor_parallel < replica_gpus(spec):  # attention in groups of `tensor_parallel`, experts over all of them
            argv += ["--dp-size", str(replica_gpus(spec) // engine.tensor_parallel), "--enable-dp-attention"]
        argv += _kv_cache_flags(spec)
        if spec.count > 1:
            argv += ["--nnodes", str(spec.count), "--node-rank", str(spec.index)]
            argv += ["--dist-init-addr", f"{spec.leader_host}:{spec.leader_port + 2}"]
        if spec.role is not Role.AGGREGATED:
            argv += ["--disaggregation-mode", spec.role.value]
            argv += ["--disaggregation-bootstrap-port", str(spec.leader_port + 1)]
            argv += [] if "disaggregation-transfer-backend" in engine.options else ["--disaggregation-transfer-backend", "nixl"]
        argv += option_flags(engine.options, but=_OWN_OPTIONS)
        paths = ("/ready", "/metrics") if spec.index == 0 else ("", "")
        env = gpu_env(spec) | environment_options(engine.options)
        ports = listens(spec, "KV bootstrap" if spec.role is Role.PREFILL and spec.index == 0 else "")
        return LaunchCommand(tuple(argv), env, ready_path=paths[0], metrics_path=paths[1], listens=ports)

    def map_metrics(self, text: str) -> dict[str, float]:
        """Gauges by denv's names."""
        return mapped(text, _NAMES, {})


def _kv_cache_flags(spec: RankSpec) -> list[str]:
    """The release's `kv-cache` section; InvalidError for what SGLang has no word for."""
    engine = spec.engine
    dtype = _KV_DTYPES.get(engine.kv_dtype)
    if dtype is None:
        known = ", ".join(_KV_DTYPES)
        raise InvalidError(f"SGLang has no KV cache of {engine.kv_dtype}; write one of {known}", code="kv-dtype-unsupported")
    flags = [] if dtype == "auto" else ["--kv-cache-dtype", dtype]
    flags += [] if engine.prefix_caching else ["--disable-radix-cache"]
    if offload_bytes := int(engine.options.get("kv-offload-bytes", "0")):  # a size in GB for each rank
        flags += ["--enable-hierarchical-cache", "--hicache-size", str(max(1, round(offload_bytes / _GB / replica_gpus(spec))))]
    if engine.options.get("kv-events", "false") == "true":
        config = {"publisher": "zmq", "topic": "kv-events", "endpoint": f"tcp://*:{spec.port + EVENTS}"}
        config |= {"replay_endpoint": f"tcp://*:{replay}"} if (replay := replay_port(spec)) else {}
        flags += ["--kv-events-config", json.dumps(config)]
    return flags


ADAPTER = SglangAdapter()
