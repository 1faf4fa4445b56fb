"""What a release is refused for, or warned about: each code once, with its sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from releases.domain.dry_run import StageNow, World, check_release, check_stage
from tests.domain.releases_world import DS_FLASH, GB200, H200, codes, file_of, fleet, look, world

ON_H200 = DS_FLASH.replace("gb200-use1", "h200-use1")
LLAMA = """\
release:
  model: llama
  weights: hf://meta-llama/Llama-3.1-70B@1605565b
  recipe: llama-3.1-70b/vllm@1
  topology: { mode: aggregated, gpus: 4 }
stages: { prod: { fleets: [h200-use1] } }
"""
TINY = """\
release:
  model: tiny
  weights: file:///models/tiny@sha256-1
  recipe: tiny/vllm-cpu@1
  topology: { prefill: { gpus: 1 }, decode: { gpus: 1 } }
stages: { prod: { fleets: [cpu] } }
"""
CPU = fleet("cpu", "CPU", 1, 1, 4)


def test_the_unit_that_no_domain_of_the_fleet_holds() -> None:
    finding = codes(ON_H200)["domain-too-small"]
    line = f"{finding.severity}  {finding.subject}: {finding.sentence}"
    assert line == "error  stage prod-us: fleet h200-use1 domain is 8 GPUs; serving unit needs 72 (same-domain)"
    assert finding.arithmetic == "2 prefill x 4 + 1 decode x 64 = 72; the largest domain has 8, short by 64"
    assert finding.fits == "1P1D of 4 + 4 GPUs in h200-use1; this shape in gb200-use1 (3 domains of 72 free)"


def test_no_hint_names_a_fleet_that_the_recipe_does_not_run_on() -> None:
    crowded = LLAMA.replace("fleets: [h200-use1]", "fleets: [h200-use1], replicas: 9").replace("gpus: 4", "gpus: 4, placement: any")
    finding = codes(crowded, world(GB200, H200, CPU))["not-enough-gpus"]
    assert finding.sentence == "fleet h200-use1 has room for 8 of 9 serving units of 4 GPUs (any)"
    assert finding.fits == "this shape in gb200-use1 (3 domains of 72 free)"


def test_where_it_fits_the_plan_names_two_domains() -> None:
    release, stage = look(DS_FLASH)
    assert not release
    (placed,) = stage.findings
    assert (placed.severity, placed.code) == ("ok", "placed")
    assert placed.sentence == "unit 1 on gb200-use1/d01, unit 2 on gb200-use1/d02 (72 of 72 GPUs each, same-domain)"
    assert stage.plan is not None
    assert stage.plan.from_release is None


@pytest.mark.parametrize(
    ("text", "old", "new", "code", "words"),
    [
        (DS_FLASH, "gb200-use1", "gb200-use2", "fleet-unknown", "fleet gb200-use2 is not known; did you mean `gb200-use1`?"),
        (DS_FLASH, "@c41a7e2", "", "weights-not-pinned", "name no revision; add @revision"),
        (DS_FLASH, "@c41a7e2", "@main", "weights-not-pinned", "follow main, which moves; name a revision"),
        (TINY, "@sha256-1", "", "weights-not-pinned", "name no digest; add @digest"),
        (DS_FLASH, "deepinfer@3", "deepinfer@9", "recipe-unknown", "of this one it has deepseek-v4.1-flash/deepinfer@3"),
        (DS_FLASH, "replicas: 2\n", "replicas: 4\n", "no-free-domain", "room for 3 of 4 serving units of 72 GPUs (same-domain)"),
        (LLAMA, "gpus: 4", "gpus: 1", "weights-do-not-fit", "141 GB of weights per GPU"),
        (LLAMA, "gpus: 4", "gpus: 3", "parallelism-not-divisible", "tensor parallelism 3 does not divide the 64 attention heads"),
        (LLAMA, "h200-use1", "gb200-use1", "", ""),
        (
            LLAMA,
            "{ mode: aggregated, gpus: 4 }",
            "{ prefill: { gpus: 2 }, decode: { gpus: 3 } }",
            "hetero-tensor-parallel-unsupported",
            "prefill has tensor parallelism 2 and decode 3; one must be a multiple of the other",
        ),
        (DS_FLASH, "decode: {", "placement: any, decode: {", "any-placement-unmeasured", "nobody has measured"),
        (TINY, "", "", "small-model-disaggregated", "the model has 558,000 parameters"),
        (
            DS_FLASH,
            "stages:",
            "  engine: { decode: { draft-length: 3 } }\nstages:",
            "engine-option-unknown",
            "engine.decode.draft-length is no option",
        ),
        (
            DS_FLASH,
            "stages:",
            "  engine: { aggregated: { max-num-seqs: 3 } }\nstages:",
            "pool-unknown",
            "engine.aggregated: no stage has such a pool",
        ),
        (DS_FLASH, "stages:", "  kv-cache: { dtype: int3 }\nstages:", "kv-dtype-unsupported", "one of fp4, fp8"),
        (
            DS_FLASH,
            "gpus: 4,",
            "gpus: 1,",
            "gpus-below-recipe",
            "prefill has 1 GPU a replica; recipe deepseek-v4.1-flash/deepinfer@3 needs at least 2",
        ),
    ],
)
def test_a_finding(text: str, old: str, new: str, code: str, words: str) -> None:
    found = codes(text.replace(old, new, 1), world(GB200, H200, CPU))
    if not code:
        assert not found
    else:
        assert words in found[code].sentence


def test_a_gpu_kind_that_the_recipe_does_not_name() -> None:
    real = replace(H200, simulated=False)
    text = DS_FLASH.replace("gb200-use1", "h200-use1").replace("gpus: 4, replicas: 2", "gpus: 4").replace("gpus: 64", "gpus: 4")
    assert codes(text, world(real))["gpu-kind-mismatch"].severity == "error"
    simulated = codes(text, world(H200))["gpu-kind-mismatch"]
    assert simulated.severity == "warn"
    assert "The fleet is simulated, so it runs all the same" in simulated.sentence


def test_the_arithmetic_of_memory_is_shown() -> None:
    finding = codes(LLAMA.replace("gpus: 4", "gpus: 1"))["weights-do-not-fit"]
    assert finding.arithmetic.startswith(
        "141 GB of weights over 1 GPU = 141 GB; 141 GB x 0.9 - 3.5 GB = 123 GB; KV of one sequence of 131,072"
    )
    assert finding.fits == "2 GPUs a replica"


def test_tensor_parallelism_does_not_cross_nodes_of_an_hgx() -> None:
    wide = LLAMA.replace("gpus: 4", "gpus: 8")
    small = fleet("h200-use1", "H200", 4, 1, 4)
    assert "domain-too-small" in codes(wide, world(small))
    anywhere = wide.replace("gpus: 8", "gpus: 8, placement: any")
    assert "tensor-parallel-crosses-node" in codes(anywhere, world(small))


def test_a_recipe_may_want_equal_tensor_parallelism() -> None:
    recipe = replace(world().catalog["deepseek-v4.1-flash/deepinfer@3"], hetero_tensor_parallel=False)
    seen = World({recipe.name: recipe}, (GB200,))
    assert "hands KV over only between equal ones" in codes(DS_FLASH, seen)["hetero-tensor-parallel-unsupported"].sentence


def test_an_engine_without_both_halves_cannot_disaggregate() -> None:
    whole = world().catalog["deepseek-v4.1-flash/deepinfer@3"]
    recipe = replace(whole, roles={role: rules for role, rules in whole.roles.items() if role == "aggregated"})
    assert "cannot disaggregate" in codes(DS_FLASH, World({recipe.name: recipe}, (GB200,)))["engine-cannot-disaggregate"].sentence


def test_a_handover_that_the_router_does_not_speak() -> None:
    text = LLAMA.replace("vllm@1", "sglang@1").replace("{ mode: aggregated, gpus: 4 }", "{ prefill: { gpus: 2 }, decode: { gpus: 2 } }")
    recipe = replace(world().catalog["llama-3.1-70b/sglang@1"], protocol="smoke-signals")
    assert codes(text, World({recipe.name: recipe}, (H200,)))["protocol-replaced"].severity == "warn"
    real = World({recipe.name: recipe}, (replace(H200, simulated=False),))
    assert "which the router does not speak" in codes(text, real)["engine-cannot-disaggregate"].sentence
    assert not {"protocol-replaced", "engine-cannot-disaggregate"} & set(codes(text))
    assert not codes(LLAMA.replace("vllm@1", "sglang@1"))


@pytest.mark.parametrize("protocol", ["vllm-nixl-push", "vllm-mooncake"])
def test_a_prefill_that_pushes_is_routed(protocol: str) -> None:
    text = LLAMA.replace("{ mode: aggregated, gpus: 4 }", "{ prefill: { gpus: 2 }, decode: { gpus: 2 } }")
    recipe = replace(world().catalog["llama-3.1-70b/vllm@1"], protocol=protocol)
    real = World({recipe.name: recipe}, (replace(H200, simulated=False),))
    assert not [finding for finding in codes(text, real).values() if finding.severity in ("error", "warn")]
    assert codes(text, World({recipe.name: recipe}, (H200,)))["protocol-replaced"].severity == "warn"


def test_experts_must_divide_unless_the_busy_ones_are_replicated() -> None:
    on_vllm = DS_FLASH.replace("deepinfer@3", "vllm@1").replace("gpus: 64", "gpus: 56")
    finding = codes(on_vllm)["parallelism-not-divisible"]
    assert finding.sentence == "decode of 56 GPUs: they do not divide the 384 experts"
    assert finding.fits == "48 or 64 GPUs"
    assert "parallelism-not-divisible" not in codes(DS_FLASH.replace("gpus: 64", "gpus: 56"))


def test_faults_are_for_simulated_fleets_only() -> None:
    text = DS_FLASH.replace("stages:", "  simulated-faults: { decode: { slow-factor: 3 } }\nstages:")
    assert "faults-on-real-fleet" not in codes(text)
    assert "gb200-use1 is real; remove them" in codes(text, world(replace(GB200, simulated=False)))["faults-on-real-fleet"].sentence


def test_an_empty_fleet_says_so() -> None:
    assert "fleet-empty" in codes(DS_FLASH, world(replace(GB200, domains=())))


def test_a_rollout_in_flight_is_named() -> None:
    file = file_of(DS_FLASH)
    seen = replace(world(), stages={"prod-us": StageNow(rollout="ro-7")})
    (finding,) = check_stage(file, file.stages[0], 2, seen).findings
    assert (finding.code, finding.severity) == ("rollout-in-flight", "error")
    assert "rollout ro-7 is in flight" in finding.sentence


def test_a_stage_that_the_file_lacks() -> None:
    (finding,) = check_release(file_of(DS_FLASH), "prod-eu", world())
    assert finding.code == "stage-unknown"
    assert finding.sentence == "the file has no stage prod-eu; it has prod-us"


def test_everything_wrong_is_found_at_once() -> None:
    text = ON_H200.replace("@c41a7e2", "").replace("gpus: 4,", "gpus: 1,").replace("stages:", "  kv-cache: { dtype: x }\nstages:")
    assert {"weights-not-pinned", "kv-dtype-unsupported", "domain-too-small", "gpus-below-recipe"} <= set(codes(text))


def test_an_engine_that_could_not_be_started_on_real_nodes_says_so() -> None:
    """DeepInfer has no server of its own, so a release has to bring the command; a simulated fleet needs none."""
    assert "option-missing" not in codes(DS_FLASH)
    real = world(replace(GB200, simulated=False))
    _, stage = look(DS_FLASH, real)
    found = [finding for finding in stage.findings if finding.code == "option-missing"]
    assert [finding.severity for finding in found] == ["error", "error"]
    assert "serve-command" in found[0].sentence
    command = "engine: { prefill: { serve-command: 'my-server --port {port}' }, decode: { serve-command: 'my-server --port {port}' } }"
    assert "option-missing" not in codes(DS_FLASH.replace("stages:", f"  {command}\nstages:"), real)


def test_several_fleets_are_used_in_the_order_that_the_stage_names_them() -> None:
    one, two = fleet("gb200-a", "GB200", 1, 18, 4), fleet("gb200-b", "GB200", 2, 18, 4)
    orders = {"gb200-b, gb200-a": "gb200-b/d01, unit 2 on gb200-b/d02", "gb200-a, gb200-b": "gb200-a/d01, unit 2 on gb200-b/d01"}
    for order, places in orders.items():
        _, stage = look(DS_FLASH.replace("[gb200-use1]", f"[{order}]"), world(one, two))
        assert stage.findings[0].sentence.startswith(f"unit 1 on {places}")
    crowded = DS_FLASH.replace("[gb200-use1]", "[gb200-a, gb200-b]").replace("    replicas: 2", "    replicas: 9")
    refusals = [finding for finding in look(crowded, world(one, two))[1].findings if finding.severity == "error"]
    assert len(refusals) == 2, "each fleet says why it takes no more"


def test_what_a_fleet_may_not_give_out_is_in_the_arithmetic() -> None:
    nodes = list(GB200.domains[0].nodes)
    nodes[0] = replace(nodes[0], free=(2, 3), unfit=(0, 1), foreign=(1,))
    nodes[1] = replace(nodes[1], cordoned=True)
    worn = replace(GB200, domains=(replace(GB200.domains[0], nodes=tuple(nodes)),))
    finding = codes(DS_FLASH.replace("    replicas: 2", "    replicas: 1"), world(worn))["no-free-domain"]
    assert finding.arithmetic == (
        "2 prefill x 4 + 1 decode x 64 = 72; the freest of 1 domain has 66, short by 6; 1 node is silent or cordoned; 1 GPU is broken; "
        "1 GPU is held by processes that are not denv's"
    )
