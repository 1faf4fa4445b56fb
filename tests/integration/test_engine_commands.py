"""The command line of every rank that a recipe of the catalogue can bring, word for word, as it was agreed on.

`DENV_WRITE_COMMANDS=1 pytest tests/integration/test_engine_commands.py` writes the file anew; its diff is what to review.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from denvweb.core.errors import InvalidError
from fleets.domain.protocol import RankSpec
from fleets.domain.types import RankDesired, Role
from fleets.engines.base import adapter_for, with_program
from releases.catalog import catalog
from releases.domain.spec_types import KvCacheSpec, Mode, ReleaseSpec, Topology
from releases.domain.units import engine_spec

AGREED = Path(__file__).parent / "engine_commands.json"
# (role, GPUs of the replica, GPUs of a node): what fits one node, and what spans several.
SHAPES = {
    "tiny/vllm-cpu-push@1": ((Role.PREFILL, 1, 4), (Role.DECODE, 1, 4)),
    "tiny/vllm-cpu@1": ((Role.PREFILL, 1, 4), (Role.DECODE, 1, 4), (Role.AGGREGATED, 1, 4)),
    "llama-3.1-70b/vllm@1": ((Role.PREFILL, 2, 8), (Role.DECODE, 4, 8), (Role.AGGREGATED, 4, 8), (Role.DECODE, 8, 4)),
    "qwen3-235b/vllm@1": ((Role.PREFILL, 4, 8), (Role.DECODE, 8, 8), (Role.DECODE, 16, 8)),
    "deepseek-v4.1-flash/vllm@1": ((Role.PREFILL, 4, 4), (Role.DECODE, 16, 8), (Role.DECODE, 64, 4), (Role.AGGREGATED, 8, 8)),
    "llama-3.1-70b/sglang@1": ((Role.PREFILL, 2, 8), (Role.DECODE, 8, 4), (Role.AGGREGATED, 4, 8)),
    "qwen3-235b/sglang@1": ((Role.PREFILL, 4, 8), (Role.DECODE, 16, 8)),
}


def rank(recipe_name: str, role: Role, gpus: int, node_gpus: int, index: int, kv: KvCacheSpec | None = None) -> RankSpec:
    recipe = catalog()[recipe_name]
    weights = "file:///models/tiny@sha256-1" if recipe_name.startswith("tiny") else "hf://org/model@abc1234"
    release = ReleaseSpec("model", weights, recipe_name, Topology(Mode.AGGREGATED), kv_cache=kv or KvCacheSpec())
    here = min(gpus, node_gpus)
    return RankSpec(
        rank_id=f"k-{index}",
        replica="r-1",
        unit="u-1",
        stage="model/prod",
        release="model@1",
        role=role,
        index=index,
        count=max(1, gpus // node_gpus),
        gpus=tuple(range(here)),
        port=20_000 + 100 * index,
        leader_host="10.0.0.1",
        leader_port=20_000,
        host=f"10.0.0.{1 + index}",
        gpu_kind="CPU" if recipe_name.startswith("tiny") else "H200",
        desired=RankDesired.RUN,
        engine=engine_spec(release, recipe, role, gpus),
    )


def lines(spec: RankSpec) -> dict[str, object]:
    command = adapter_for(spec.engine.engine, False).command(spec)
    return {"env": dict(sorted(command.env.items())), "argv": list(command.argv)}


def every_command() -> dict[str, dict[str, object]]:
    found = {}
    for name, shapes in SHAPES.items():
        for role, gpus, node_gpus in shapes:
            count = max(1, gpus // node_gpus)
            for index in sorted({0, count - 1}):
                spec = rank(name, role, gpus, node_gpus, index)
                found[f"{name} {role.value} {gpus} GPUs, rank {index} of {count}"] = lines(spec)
    wanted = KvCacheSpec(dtype="fp8", block_tokens=32, prefix_caching=False, offload_bytes=64 * 2**30, events=True)
    found["llama-3.1-70b/vllm@1 with every kv-cache setting"] = lines(rank("llama-3.1-70b/vllm@1", Role.AGGREGATED, 4, 8, 0, wanted))
    found["llama-3.1-70b/sglang@1 with every kv-cache setting"] = lines(rank("llama-3.1-70b/sglang@1", Role.AGGREGATED, 4, 8, 0, wanted))
    return found


def test_the_command_lines_are_those_agreed_on() -> None:
    found = every_command()
    if os.environ.get("DENV_WRITE_COMMANDS"):
        AGREED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    agreed = json.loads(AGREED.read_text(encoding="utf-8"))
    assert sorted(found) == sorted(agreed)
    for name, command in found.items():
        assert command == agreed[name], name


def test_ports_of_data_parallel_groups_do_not_meet() -> None:
    """vLLM adds the group's number to the KV port; no group's may be the HTTP, gang or another group's port."""
    wide = rank("qwen3-235b/vllm@1", Role.DECODE, 16, 8, 1)
    wide = replace(wide, engine=replace(wide.engine, tensor_parallel=2))
    command = adapter_for("vllm", False).command(wide)
    first = int(command.env["VLLM_NIXL_SIDE_CHANNEL_PORT"])
    ports = {first + group for group in range(4, 8)}  # groups 4 to 7 are on the second node
    assert ports == {20_104, 20_105, 20_106, 20_107}
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.2"


def test_kv_settings_that_an_engine_lacks_are_refused() -> None:
    spec = rank("llama-3.1-70b/vllm@1", Role.DECODE, 4, 8, 0)
    with pytest.raises(InvalidError, match="int3"):
        adapter_for("vllm", False).command(replace(spec, engine=replace(spec.engine, kv_dtype="int3")))
    offloaded = rank("llama-3.1-70b/vllm@1", Role.DECODE, 4, 8, 0, KvCacheSpec(offload_bytes=2**30))
    with pytest.raises(InvalidError, match="connector"):
        adapter_for("vllm", False).command(offloaded)


@pytest.mark.parametrize(
    ("option", "value"),
    [("kv-lease-s", "5"), ("kv-lease-s", "soon"), ("kv-load-failure-policy", "shrug"), ("kv-connector", "MooncakeConnector")],
)
def test_options_that_vllm_or_the_router_would_choke_on_are_refused(option: str, value: str) -> None:
    spec = rank("llama-3.1-70b/vllm@1", Role.DECODE, 4, 8, 0)
    with pytest.raises(InvalidError, match=option):
        adapter_for("vllm", False).command(replace(spec, engine=replace(spec.engine, options={option: value})))


def test_groups_that_span_nodes_leave_no_port_for_events() -> None:
    spec = rank("qwen3-235b/vllm@1", Role.DECODE, 32, 8, 0)
    wide = replace(spec.engine, tensor_parallel=16)
    assert spec.port + 3 in adapter_for("vllm", False).command(replace(spec, engine=wide)).listens
    with pytest.raises(InvalidError, match="port"):
        adapter_for("vllm", False).command(replace(spec, engine=replace(wide, options={"kv-events": "true"})))


@pytest.mark.parametrize(
    ("engine", "options"), [("trtllm", {"kv-events": "true"}), ("deepinfer", {"serve-command": "s", "kv-offload-bytes": "1"})]
)
def test_kv_settings_that_denv_has_no_flag_for_are_refused(engine: str, options: dict[str, str]) -> None:
    spec = rank("llama-3.1-70b/vllm@1", Role.AGGREGATED, 4, 8, 0)
    with pytest.raises(InvalidError, match="kv-cache"):
        adapter_for(engine, False).command(replace(spec, engine=replace(spec.engine, engine=engine, options=options)))


def test_speculation_is_a_json_flag_of_vllm() -> None:
    spec = rank("deepseek-v4.1-flash/vllm@1", Role.DECODE, 8, 8, 0)
    argv = adapter_for("vllm", False).command(spec).argv
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {"num_speculative_tokens": 2, "method": "mtp"}
    assert "--num-speculative-tokens" not in argv


def test_a_node_may_call_an_engine_by_a_command_of_its_own() -> None:
    assert with_program(("vllm", "serve", "m"), "vllm", ("/opt/vllm/bin/vllm",)) == ("/opt/vllm/bin/vllm", "serve", "m")
    assert with_program(("mpirun", "-n", "2", "trtllm-serve", "m"), "trtllm-serve", ("podman", "run", "t")) == (
        "mpirun", "-n", "2", "podman", "run", "t", "m",
    )  # fmt: skip
    assert with_program(("vllm", "serve"), "vllm", ()) == ("vllm", "serve")
