"""Each engine's command line and figures, and what is said when a recipe lacks something."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from denvweb.core.errors import InvalidError
from fleets.domain.protocol import RankSpec
from fleets.domain.types import Faults, Role
from fleets.engines.base import ENGINES, adapter_for
from fleets.engines.sim.config import Config, parse_flags, usage
from tests.integration.engine_support import rank_spec


def spec_of(
    engine: str,
    role: Role = Role.DECODE,
    options: dict[str, str] | None = None,
    *,
    index: int = 0,
    count: int = 1,
    tensor_parallel: int = 4,
) -> RankSpec:
    base = rank_spec(index, count, 9000)
    return replace(base, role=role, engine=replace(base.engine, engine=engine, tensor_parallel=tensor_parallel, options=options or {}))


def flag(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize(("role", "kv_role"), [(Role.PREFILL, "kv_producer"), (Role.DECODE, "kv_consumer")])
def test_vllm_disaggregated(role: Role, kv_role: str) -> None:
    command = adapter_for("vllm", False).command(spec_of("vllm", role), engine_id="e-1")
    assert command.argv[:3] == ("vllm", "serve", "deepseek-ai/DeepSeek-V4.1-Flash-1017")
    assert flag(command.argv, "--revision") == "c41a7e2"
    config: dict[str, Any] = json.loads(flag(command.argv, "--kv-transfer-config"))
    assert (config["kv_connector"], config["kv_role"]) == ("NixlConnector", kv_role)
    assert "engine_id" not in config  # vLLM makes a new one at each start
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "9001"
    assert command.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert (command.ready_path, command.metrics_path) == ("/health", "/metrics")


def vllm_of(protocol: str, role: Role, options: dict[str, str] | None = None, *, count: int = 1, tensor_parallel: int = 4) -> RankSpec:
    spec = spec_of("vllm", role, options, count=count, tensor_parallel=tensor_parallel)
    return replace(spec, engine=replace(spec.engine, protocol=protocol))


def kv_config(spec: RankSpec) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(flag(adapter_for("vllm", False).command(spec, engine_id="e-1").argv, "--kv-transfer-config"))
    return config


def test_vllm_that_pushes_has_the_identity_that_the_router_names_to_decode() -> None:
    """New with each start, as vLLM's own would be. What has several identities, or one of several nodes, is not told any."""
    config = kv_config(vllm_of("vllm-nixl-push", Role.PREFILL))
    assert (config["kv_connector"], config["kv_role"], config["engine_id"]) == ("NixlPushConnector", "kv_producer", "e-1")
    assert config["kv_connector_extra_config"] == {"kv_lease_duration": 30}
    assert "engine_id" not in kv_config(vllm_of("vllm-nixl-push", Role.DECODE))
    assert "engine_id" not in kv_config(vllm_of("vllm-nixl-push", Role.PREFILL, tensor_parallel=1))
    assert kv_config(vllm_of("vllm-nixl-push", Role.PREFILL, count=2, tensor_parallel=8))["engine_id"] != "e-1"
    assert adapter_for("vllm", False).command(vllm_of("vllm-nixl-push", Role.PREFILL)).env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "9001"


def test_vllm_over_mooncake() -> None:
    vllm, prefill = adapter_for("vllm", False), vllm_of("vllm-mooncake", Role.PREFILL)
    config, command = kv_config(prefill), vllm.command(prefill)
    assert (config["kv_connector"], config["kv_role"], config["engine_id"]) == ("MooncakeConnector", "kv_producer", "e-1")
    assert config["kv_connector_extra_config"] == {"mooncake_protocol": "rdma"}
    assert command.env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == "9001" and command.listens[9001] == "KV bootstrap"
    assert command.env["VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"] == "120" and prefill.engine.kv_lease_s == 120.0
    assert command.env["VLLM_HOST_IP"] == prefill.own_host and "VLLM_NIXL_SIDE_CHANNEL_PORT" not in command.env
    told = vllm_of("vllm-mooncake", Role.DECODE, {"mooncake-protocol": "tcp", "kv-lease-s": "60"}, count=2, tensor_parallel=1)
    decode = vllm.command(told)
    assert "VLLM_MOONCAKE_BOOTSTRAP_PORT" not in decode.env and 9001 not in decode.listens
    assert kv_config(told)["kv_connector_extra_config"] == {"mooncake_protocol": "tcp"} and "--mooncake-protocol" not in decode.argv
    assert decode.env["VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"] == "60"


@pytest.mark.parametrize(("count", "tensor_parallel"), [(1, 1), (2, 8)])
def test_a_mooncake_prefill_that_the_router_could_not_name_is_refused(count: int, tensor_parallel: int) -> None:
    spec = vllm_of("vllm-mooncake", Role.PREFILL, count=count, tensor_parallel=tensor_parallel)
    with pytest.raises(InvalidError, match="one tensor-parallel group on one node"):
        adapter_for("vllm", False).command(spec)


def test_mooncake_is_refused_where_there_is_no_accelerator() -> None:
    with pytest.raises(InvalidError, match="compute on CPUs"):
        adapter_for("vllm", False).command(replace(vllm_of("vllm-mooncake", Role.DECODE), gpu_kind="CPU"))


@pytest.mark.parametrize(
    ("protocol", "connector", "said"),
    [
        ("vllm-nixl", "MooncakeConnector", "a recipe of protocol vllm-mooncake"),
        ("vllm-nixl-push", "NixlConnector", "a recipe of protocol vllm-nixl;"),
        ("vllm-mooncake", "LMCacheConnectorV1", "the router does not drive it"),
    ],
)
def test_a_connector_of_another_protocol_is_refused_with_the_recipe_that_it_needs(protocol: str, connector: str, said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        adapter_for("vllm", False).command(vllm_of(protocol, Role.DECODE, {"kv-connector": connector}))
    own = {"vllm-nixl": "NixlPullConnector", "vllm-nixl-push": "NixlPushConnector", "vllm-mooncake": "MooncakeConnector"}[protocol]
    assert kv_config(vllm_of(protocol, Role.DECODE, {"kv-connector": own}))["kv_connector"] == own


def test_mooncakes_figures_have_the_same_names() -> None:
    page = 'vllm:mooncake_bytes_transferred_sum{engine="0"} 4096.0\nvllm:mooncake_num_kv_expired_reqs_total{engine="0"} 2.0\n'
    assert adapter_for("vllm", False).map_metrics(page) == {"kv_transfer_bytes": 4096.0, "kv_expired": 2.0}


def test_vllm_aggregated_has_no_connector_and_takes_the_recipes_flags() -> None:
    argv = adapter_for("vllm", False).command(spec_of("vllm", Role.AGGREGATED, {"max-num-seqs": "64", "enable-expert-parallel": ""})).argv
    assert "--kv-transfer-config" not in argv
    assert flag(argv, "--max-num-seqs") == "64"
    assert "--enable-expert-parallel" in argv


def test_vllm_over_nodes_is_one_tensor_parallel_group_or_data_parallel_ranks() -> None:
    vllm = adapter_for("vllm", False)
    wide = vllm.command(spec_of("vllm", index=1, count=2, tensor_parallel=8))
    assert (flag(wide.argv, "--nnodes"), flag(wide.argv, "--node-rank"), flag(wide.argv, "--master-port")) == ("2", "1", "9002")
    assert "--headless" in wide.argv
    assert wide.ready_path == ""
    many = vllm.command(spec_of("vllm", index=3, count=16, tensor_parallel=1)).argv
    assert (flag(many, "--data-parallel-size"), flag(many, "--data-parallel-size-local")) == ("64", "4")
    assert flag(many, "--data-parallel-start-rank") == "12"


def test_sglang_disaggregated() -> None:
    command = adapter_for("sglang", False).command(spec_of("sglang", count=2, tensor_parallel=1))
    assert flag(command.argv, "--disaggregation-mode") == "decode"
    assert flag(command.argv, "--disaggregation-bootstrap-port") == "9001"
    assert (flag(command.argv, "--tp-size"), flag(command.argv, "--dp-size")) == ("8", "8")
    assert command.ready_path == "/ready"


def test_trtllm_wants_its_transport_in_a_file() -> None:
    trtllm = adapter_for("trtllm", False)
    with pytest.raises(InvalidError, match="config"):
        trtllm.command(spec_of("trtllm", Role.PREFILL))
    command = trtllm.command(spec_of("trtllm", Role.PREFILL, {"config": "/etc/trtllm.yaml"}))
    assert flag(command.argv, "--server_role") == "CONTEXT"
    assert command.metrics_path == "/prometheus/metrics"


def test_deepinfer_runs_the_command_that_the_recipe_brings() -> None:
    deepinfer = adapter_for("deepinfer", False)
    with pytest.raises(InvalidError, match="serve-command"):
        deepinfer.command(spec_of("deepinfer"))
    options = {"serve-command": "my-server --port {port} --type {engine_type} --of {model}", "DEEPINFER_ENABLE_MTP_VARLEN": "1"}
    command = deepinfer.command(spec_of("deepinfer", Role.DECODE, options))
    assert command.argv == ("my-server", "--port", "9000", "--type", "COMPLETION", "--of", "ds-flash")
    assert command.env["DEEPINFER_ENABLE_MTP_VARLEN"] == "1"
    with pytest.raises(InvalidError, match="does not read well"):
        deepinfer.command(spec_of("deepinfer", Role.DECODE, {"serve-command": "my-server {colour}"}))


def test_simulated_nodes_run_the_simulated_engine_whatever_the_recipe_names() -> None:
    options = {"max-num-seqs": "256", "kv-load-failure-policy": "recompute", "attention-backend": "flashmla"}
    spec = spec_of("deepinfer", Role.DECODE, options, count=16)
    spec = replace(spec, engine=replace(spec.engine, faults=Faults(slow_factor=3.0)))
    command = adapter_for("deepinfer", True).command(spec, speed=2.0, engine_id="e-9")
    config = parse_flags(command.argv[3:])
    assert (config.gpus, config.ranks, config.model, config.speed, config.engine_id) == (64, 16, "ds-flash", 2.0, "e-9")
    assert config.faults.slow_factor == 3.0
    assert (config.shape, config.max_sequences, config.kv_load_failure) == (spec.engine.shape, 256, "recompute")
    assert sum(len(word) for word in command.argv) < 4096
    follower = adapter_for("deepinfer", True).command(spec_of("deepinfer", index=5, count=16))
    assert flag(follower.argv, "--leader") == "127.0.0.1:9002"
    assert (follower.ready_path, follower.ready_line) == ("", "ready")


def test_the_simulated_engine_takes_the_protocol_of_its_recipe() -> None:
    spec = spec_of("sglang", Role.DECODE)
    spec = replace(spec, engine=replace(spec.engine, protocol="sglang-bootstrap"))
    assert parse_flags(adapter_for("sglang", True).command(spec).argv[3:]).protocol == "sglang-bootstrap"


def test_unknown_engines_are_named_with_the_known_ones() -> None:
    with pytest.raises(InvalidError, match=", ".join(ENGINES)):
        adapter_for("llama.cpp", False)


@pytest.mark.parametrize(
    "words", [["--speed", "0"], ["--port"], ["--colour", "red"], ["--gpu-kind", "abacus"], ["--config", "{"], ["--port", "x"]]
)
def test_wrong_flags_of_the_simulated_engine_are_refused(words: list[str]) -> None:
    with pytest.raises(InvalidError):
        parse_flags(words)


def test_single_flags_go_over_the_config() -> None:
    assert parse_flags(["--config", '{"port": 1, "role": "decode"}', "--port", "2"]) == Config(port=2, role=Role.DECODE)
    assert "--lease-s" in usage()


VLLM_PAGE = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 200.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 50.0
vllm:nixl_num_failed_transfers_total{engine="0",model_name="tiny"} 1.0
broken line
vllm:num_requests_waiting{engine="0",model_name="a b } c"} 4.0
"""


def test_metrics_are_mapped_to_our_names() -> None:
    assert adapter_for("vllm", False).map_metrics(VLLM_PAGE) == {
        "running": 5.0,
        "waiting": 4.0,
        "kv_use": 0.25,
        "prefix_hit": 0.25,
        "kv_transfers_failed": 1.0,
    }
    assert adapter_for("sglang", False).map_metrics("sglang:token_usage 0.5\nsglang:num_running_reqs NaNa\n") == {"kv_use": 0.5}


def test_looking_up_an_adapter_is_light() -> None:
    """Agents do it: it must not pull in the engine, an event loop or a web framework."""
    code = "import sys; from fleets.engines.base import adapter_for; adapter_for('vllm', True); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20).stdout.split()
    assert not {"asyncio", "uvloop", "httptools", "fleets.engines.sim.server", "django"} & set(modules)
