"""TensorRT-LLM's `trtllm-serve` on its PyTorch backend."""

from __future__ import annotations

from denvweb.core.errors import InvalidError
from fleets.domain.protocol import RankSpec
from fleets.domain.types import Role
from fleets.engines.base import (
    Capabilities,
    LaunchCommand,
    environment_options,
    gpu_env,
    listens,
    option_flags,
    refuse_kv_settings,
    replica_gpus,
    weights_path,
)
from fleets.engines.prometheus import mapped

_ROLE = {Role.PREFILL: "CONTEXT", Role.DECODE: "GENERATION"}
_OWN_OPTIONS = frozenset({"launcher"})  # denv's name
_NAMES = {
    "kv_use": "trtllm_kv_cache_utilization",
    "running": "trtllm_num_requests_running",
    "waiting": "trtllm_num_requests_waiting",
    "prefix_hit": "trtllm_kv_cache_hit_rate",
    "prompt_tokens": "trtllm_prompt_tokens_total",
    "generation_tokens": "trtllm_generation_tokens_total",
}


class TrtllmAdapter:
    """One `trtllm-serve` per replica; over several nodes it wants an MPI launcher that the recipe names as `launcher`."""

    name = "trtllm"
    program = "trtllm-serve"
    capabilities = Capabilities(disaggregate=True, local_prefill_on_decode=True, hetero_tensor_parallel=True, role_switch=False)

    def command(self, spec: RankSpec, *, speed: float = 1.0, engine_id: str = "") -> LaunchCommand:
        """Its KV transport is in a YAML file that has to lie on the node, named by the recipe's option `config`."""
        engine = spec.engine
        model, _ = weights_path(engine.weights)
        refuse_kv_settings(engine.options, "TensorRT-LLM", "set it in the file that `config` names")
        launcher = engine.options.get("launcher", "")
        if spec.count > 1 and not launcher:
            raise InvalidError(
                "TensorRT-LLM over several nodes needs the option `launcher`, for example `mpirun ...`", code="option-missing"
            )
        argv = [*launcher.split(), "trtllm-serve", model, "--host", spec.leader_host, "--port", str(spec.port), "--backend", "pytorch"]
        argv += ["--tp_size", str(engine.tensor_parallel)]
        if replica_gpus(spec) > engine.tensor_parallel:
            argv += ["--ep_size", str(replica_gpus(spec))]
        if spec.role in _ROLE:
            if "config" not in engine.options:
                raise InvalidError(
                    "TensorRT-LLM needs the option `config` with a cache_transceiver_config to disaggregate", code="option-missing"
                )
            argv += ["--server_role", _ROLE[spec.role]]
        argv += option_flags(engine.options, but=_OWN_OPTIONS)
        env = gpu_env(spec) | environment_options(engine.options)
        return LaunchCommand(tuple(argv), env, metrics_path="/prometheus/metrics", listens=listens(spec))

    def map_metrics(self, text: str) -> dict[str, float]:
        """Gauges by denv's names."""
        return mapped(text, _NAMES, {})


ADAPTER = TrtllmAdapter()
