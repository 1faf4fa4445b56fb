"""DeepInfer 0.1: a library for offline inference, so the recipe brings the command that serves it."""

from __future__ import annotations

import shlex

from denvweb.core.errors import InvalidError
from fleets.domain.protocol import RankSpec
from fleets.domain.types import Role
from fleets.engines.base import Capabilities, LaunchCommand, environment_options, gpu_env, refuse_kv_settings, replica_gpus, weights_path
from fleets.engines.prometheus import mapped
from fleets.engines.vllm import NAMES, RATIOS

_ENGINE_TYPE = {Role.PREFILL: "PROMPT", Role.DECODE: "COMPLETION", Role.AGGREGATED: "NORMAL"}


class DeepinferAdapter:
    """Runs the option `serve-command`, a server around `deepinfer.LLM` that speaks vLLM's protocol and metric names.

    The command may hold `{host} {port} {side_port} {gang_port} {leader_host} {model} {weights} {revision} {role} {engine_type}
    {rank} {ranks} {gpus} {tensor_parallel} {block_tokens}`.

    Options in capitals (`DEEPINFER_...`) become environment variables, which are DeepInfer's own flags.
    """

    name = "deepinfer"
    program = ""  # the recipe brings the command
    capabilities = Capabilities(disaggregate=True, local_prefill_on_decode=True, hetero_tensor_parallel=True, role_switch=False)

    def command(self, spec: RankSpec, *, speed: float = 1.0, engine_id: str = "") -> LaunchCommand:
        """Words are split before the values go in, so that no value can become a second word."""
        engine = spec.engine
        template = engine.options.get("serve-command", "")
        if not template:
            raise InvalidError(
                "DeepInfer has no server of its own: name yours in the option `serve-command`, for example `my-server --port {port}`",
                code="option-missing",
            )
        refuse_kv_settings(engine.options, "DeepInfer", "see what your `serve-command` can do")
        weights, revision = weights_path(engine.weights)
        values = {
            "host": spec.leader_host if spec.index == 0 else "0.0.0.0",  # a follower answers on whatever it likes
            "port": spec.port,
            "side_port": spec.leader_port + 1,
            "gang_port": spec.leader_port + 2,
            "leader_host": spec.leader_host,
            "model": engine.model,
            "weights": weights,
            "revision": revision,
            "role": spec.role.value,
            "engine_type": _ENGINE_TYPE[spec.role],
            "rank": spec.index,
            "ranks": spec.count,
            "gpus": replica_gpus(spec),
            "tensor_parallel": engine.tensor_parallel,
            "block_tokens": engine.block_tokens,
        }
        try:
            argv = tuple(word.format(**values) for word in shlex.split(template))
        except (KeyError, IndexError, ValueError) as error:
            raise InvalidError(f"the option `serve-command` does not read well: {error}", code="option-invalid") from error
        env = gpu_env(spec) | environment_options(engine.options)
        if spec.index:
            return LaunchCommand(argv, env, ready_path="", metrics_path="")
        return LaunchCommand(argv, env, listens={spec.port: "HTTP"})

    def map_metrics(self, text: str) -> dict[str, float]:
        """Gauges by denv's names, from vLLM's."""
        return mapped(text, NAMES, RATIOS)


ADAPTER = DeepinferAdapter()
