"""The simulated engine behind the adapter interface: rank 0 is the engine, the others are tiny followers."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from fleets.domain.ports import EVENTS, replay_port
from fleets.domain.protocol import RankSpec
from fleets.domain.types import Faults
from fleets.engines.base import Capabilities, LaunchCommand, gpu_env, replica_gpus
from fleets.engines.prometheus import mapped
from fleets.engines.sim.config import SGLANG
from fleets.engines.vllm import NAMES, RATIOS

FOLLOWER = Path(__file__).parent / "sim" / "follower.py"
# The recipe's flags that the simulated engine heeds: vLLM's names, which DeepInfer's and SGLang's recipes share, and its own.
_OPTIONS = {
    "max-num-seqs": "max_sequences",
    "max-num-batched-tokens": "max_batched_tokens",
    "kv-load-failure-policy": "kv_load_failure",
    "kv-lease-s": "lease_s",
    "sim-kv-blocks": "kv_blocks",
    "sim-same-domain": "same_domain",
}


class SimulatedAdapter:
    """Stands in for any engine on simulated nodes, and takes the recipe's shape and the release's faults."""

    name = "sim"
    program = ""
    capabilities = Capabilities(disaggregate=True, local_prefill_on_decode=True, hetero_tensor_parallel=True, role_switch=False)

    def command(self, spec: RankSpec, *, speed: float = 1.0, engine_id: str = "") -> LaunchCommand:
        """One JSON argument for the leader. A follower says `ready` in its log once the gang is complete."""
        if spec.index:
            words = [sys.executable, "-I", "-S", str(FOLLOWER), "--leader", f"{spec.leader_host}:{spec.leader_port + 2}"]
            words += ["--rank", str(spec.index), "--replica", spec.replica, "--deadline-s", f"{spec.start_deadline_s:g}"]
            return LaunchCommand(tuple(words), gpu_env(spec), ready_path="", metrics_path="", ready_line="ready")
        config = msgspec.json.encode(leader_fields(spec, speed=speed, engine_id=engine_id)).decode()
        return LaunchCommand((sys.executable, "-m", "fleets.engines.sim", "--config", config), gpu_env(spec))

    def map_metrics(self, text: str) -> dict[str, float]:
        """Gauges by denv's names, from vLLM's."""
        return mapped(text, NAMES, RATIOS)


def leader_fields(spec: RankSpec, *, speed: float, engine_id: str) -> dict[str, object]:
    """The engine's config as plain data, defaults left out."""
    engine = spec.engine
    values: dict[str, object] = {
        "host": spec.leader_host,
        "port": spec.port,
        "role": spec.role.value,
        "model": engine.model,
        "replica": spec.replica,
        "ranks": spec.count,
        "gpu_kind": spec.gpu_kind,
        "gpus": replica_gpus(spec),
        "tensor_parallel": engine.tensor_parallel,
        "shape": msgspec.to_builtins(engine.shape),
        "speed": speed,
        "block_tokens": engine.block_tokens,
        "prefix_caching": engine.prefix_caching,
    }
    if engine.options.get("kv-events", "false") == "true" and (again := replay_port(spec)):
        values |= {"events_port": spec.port + EVENTS, "replay_port": again}
    if engine.protocol == SGLANG:
        values["protocol"] = SGLANG
    options = {name: engine.options[flag] for flag, name in _OPTIONS.items() if flag in engine.options}
    faults = {} if engine.faults == Faults() else {"faults": msgspec.to_builtins(engine.faults)}
    return values | options | faults | ({"engine_id": engine_id} if engine_id else {})


ADAPTER = SimulatedAdapter()
