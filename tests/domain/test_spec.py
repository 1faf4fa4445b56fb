"""The spec file: what is read, its defaults, and every mistake at once with its place."""

from __future__ import annotations

import pytest

from denvweb.core import wire
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.types import Faults, PlacementRule, Role
from releases.domain.spec import Approval, Mode, PoolTopology, ReleaseFile, RolloutPolicy, parse
from releases.domain.spec_prompts import all_put_in, prompt_files
from releases.domain.spec_types import ProbePolicy

PRODUCT = """\
release:
  model: ds-flash
  weights: hf://deepseek-ai/DeepSeek-V4.1-Flash-1017@c41a7e2
  recipe: deepseek-v4.1-flash/deepinfer@3
  topology:
    mode: disaggregated
    prefill: { gpus: 4, replicas: 2 }
    decode: { gpus: 64, replicas: 1 }
    placement: same-domain
    conditional: { local-prefill-below: 1000, prefill-queue-above: 64 }
  kv-cache: { dtype: fp8, block-size: 64, prefix-caching: true, offload: 256GiB, events: true }
stages:
  staging:
    fleets: [h200-use1]
    replicas: 1
    topology: { prefill: { gpus: 2, replicas: 1 }, decode: { gpus: 4, replicas: 1 } }
  prod-us:
    fleets: [gb200-use1]
    replicas: 2
    alarms: { ttft-p99: 1500ms, itl-p99: 60ms, error-rate: 1% }
    rollout: { canary: 10%, steps: [50%, 100%], hold: 10m, bake: 30m, approve: manual }
"""
SMALL = """\
release:
  model: m
  weights: hf://a/b@1e5
  recipe: llama-3.1-70b/vllm@1
  topology: { prefill: { gpus: 4 }, decode: { gpus: 4 } }
stages: { prod: { fleets: [f] } }
"""


def good(text: str) -> ReleaseFile:
    file = parse(text)
    assert isinstance(file, ReleaseFile), [error.text() for error in file]
    return file


def mistakes(text: str | bytes) -> list[str]:
    errors = parse(text)
    assert isinstance(errors, tuple)
    return [error.text() for error in errors]


def changed(old: str, new: str, text: str = PRODUCT) -> list[str]:
    assert old in text
    return mistakes(text.replace(old, new, 1))


def test_the_file_of_the_product_is_read() -> None:
    file = good(PRODUCT)
    assert file.release.model == "ds-flash"
    assert file.release.topology.gpus == 72
    assert file.release.topology.placement is PlacementRule.SAME_DOMAIN
    assert file.release.kv_cache.offload_bytes == 256 * 2**30
    staging, prod = file.stages
    assert (staging.topology.gpus, prod.topology.gpus) == (6, 72)
    assert prod.alarms == {"ttft-p99": "1500ms", "itl-p99": "60ms", "error-rate": "1%"}
    assert [spec.limit_s for spec in prod.alarm_specs] == [1.5, 0.06, None]
    assert prod.rollout == RolloutPolicy(0.1, (0.5, 1.0), 600, 1800, Approval.MANUAL)


def test_defaults_are_those_that_are_written_down() -> None:
    file = good(SMALL)
    assert file.release.topology.mode is Mode.DISAGGREGATED
    assert file.release.topology.conditional == ConditionalPolicy(1000, 64)
    assert file.release.topology.prefill == PoolTopology(4, 1, 1, 1)
    assert file.stages[0].replicas == 1
    assert file.stages[0].rollout == RolloutPolicy()
    assert file.release.weights == "hf://a/b@1e5"  # a revision stays a text, whatever YAML would make of it


def test_it_survives_a_json_column() -> None:
    file = good(PRODUCT)
    assert wire.from_plain(wire.to_plain(file), ReleaseFile) == file


@pytest.mark.parametrize("topology", ["{ mode: aggregated, gpus: 8, replicas: 2 }", "{ aggregated: { gpus: 8, replicas: 2 } }"])
def test_aggregated_is_written_in_either_form(topology: str) -> None:
    file = good(SMALL.replace("{ prefill: { gpus: 4 }, decode: { gpus: 4 } }", topology))
    assert file.release.topology.mode is Mode.AGGREGATED
    assert file.release.topology.pools == ((Role.AGGREGATED, PoolTopology(8, 2, 2, 2)),)


def test_replicas_may_be_a_range() -> None:
    file = good(PRODUCT.replace("prefill: { gpus: 4, replicas: 2 }", "prefill: { gpus: 4, replicas: { min: 1, max: 3 } }", 1))
    assert file.release.topology.prefill == PoolTopology(4, 1, 1, 3)


def test_a_stage_changes_only_what_it_writes() -> None:
    file = good(
        PRODUCT.replace(
            "topology: { prefill: { gpus: 2, replicas: 1 }, decode: { gpus: 4, replicas: 1 } }", "topology: { decode: { gpus: 8 } }"
        )
    )
    topology = file.stages[0].topology
    assert topology.prefill == PoolTopology(4, 2, 2, 2)
    assert topology.decode == PoolTopology(8, 1, 1, 1)


def test_faults_and_engine_options_are_by_role() -> None:
    faults = "  simulated-faults: { decode: { slow-factor: 3, error-ratio: 5% } }\n"
    extra = faults + "  engine: { decode: { speculative-draft-length: 3 } }\nstages:"
    release = good(PRODUCT.replace("stages:", extra, 1)).release
    assert release.faults == {Role.DECODE: Faults(slow_factor=3.0, error_ratio=0.05)}
    assert release.engine_options == {Role.DECODE: {"speculative-draft-length": "3"}}


def test_all_mistakes_come_at_once_in_the_order_of_their_places() -> None:
    text = (
        PRODUCT.replace("prefill: { gpus: 4, replicas: 2 }", "prefill: { gpus: 0, replicas: 2 }", 1)
        .replace("    placement:", "    placment:", 1)
        .replace("ttft-p99: 1500ms", "ttft-p999: 1500ms", 1)
        .replace("hold: 10m", "hold: 10", 1)
    )
    first, second, third, fourth = mistakes(text)
    assert first == "denv.yaml:7:22  release.topology.prefill.gpus: 0 is not a number of GPUs; it must be at least 1"
    assert second == "denv.yaml:9:5  release.topology.placment: not a key here; did you mean `placement`?"
    assert third.startswith("denv.yaml:20:15  stages.prod-us.alarms.ttft-p999: ")
    assert fourth == "denv.yaml:21:55  stages.prod-us.rollout.hold: 10 is not a duration; write one such as 30s, 10m or 1h30m"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model: ds-flash", "model: Ds_Flash", "denv.yaml:2:10  release.model: Ds_Flash is not a model name; use up to 63 small letters"),
        ("  model: ds-flash\n", "", "denv.yaml:1:1  release.model: this is missing; say what clients ask for by name"),
        (
            "@c41a7e2",
            " x",
            "denv.yaml:3:12  release.weights: hf://deepseek-ai/DeepSeek-V4.1-Flash-1017 x is not where weights are; write hf://",
        ),
        (
            "deepinfer@3",
            "deepinfer",
            "denv.yaml:4:11  release.recipe: deepseek-v4.1-flash/deepinfer is not a recipe; write name/engine@version",
        ),
        (
            "mode: disaggregated",
            "mode: disagregated",
            "denv.yaml:6:11  release.topology.mode: disagregated is not known here; did you mean `disaggregated`?",
        ),
        (
            "gpus: 64",
            "gpus: many",
            "denv.yaml:8:21  release.topology.decode.gpus: many is not a number of GPUs; write a whole number, at least 1",
        ),
        (
            "gpus: 64",
            "gpus: 640000",
            "denv.yaml:8:21  release.topology.decode.gpus: 640000 is not a number of GPUs; it must be at most 4,096",
        ),
        (
            "replicas: 1 }\n    placement",
            "replicas: { min: 3, max: 1 } }\n    placement",
            "release.topology.decode.replicas: min 3 is over max 1; swap them",
        ),
        ("block-size: 64", "block-size: 60", "release.kv-cache.block-size: 60 is not a block size in tokens; it must be a power of two"),
        ("offload: 256GiB", "offload: lots", "release.kv-cache.offload: lots is not a size; write one such as 256GiB"),
        ("prefix-caching: true", "prefix-caching: perhaps", "release.kv-cache.prefix-caching: perhaps is neither true nor false"),
        ("fleets: [h200-use1]", "fleets: h200-use1", "stages.staging.fleets: h200-use1 will not do; write a list such as [gb200-use1]"),
        ("fleets: [h200-use1]", "fleets: [h200-use1, h200-use1]", "stages.staging.fleets: a fleet is named twice; remove one"),
        ("    fleets: [h200-use1]\n", "", "denv.yaml:13:3  stages.staging.fleets: this is missing; name at least one fleet"),
        ("itl-p99: 60ms", "itl-p99: 60", "stages.prod-us.alarms.itl-p99: "),
        ("canary: 10%", "canary: 10", "stages.prod-us.rollout.canary: 10 is not a percentage; write one such as 10%"),
        ("canary: 10%", "canary: 60%", "stages.prod-us.rollout.canary: 60% is over the first step, 50%; write a smaller canary"),
        ("[50%, 100%]", "[50%, 40%]", "stages.prod-us.rollout.steps: each step must be over the one before it"),
        ("[50%, 100%]", "[50%, 90%]", "stages.prod-us.rollout.steps: the last step must be 100%"),
        ("[50%, 100%]", "[50%, all]", "denv.yaml:21:42  stages.prod-us.rollout.steps[1]: all is not a percentage"),
        ("approve: manual", "approve: maual", "stages.prod-us.rollout.approve: maual is not known here; did you mean `manual`?"),
        ("stages:", "stage:", "denv.yaml:12:1  stage: not a key here; did you mean `stages`?"),
    ],
)
def test_a_mistake_is_told_in_the_users_words(old: str, new: str, message: str) -> None:
    found = changed(old, new)
    assert any(message in line for line in found), found


def test_one_mistake_gives_one_line() -> None:
    assert len(changed("gpus: 64", "gpus: many")) == 1
    assert len(changed("placement: same-domain", "placement: anywhere")) == 1


def test_a_stage_is_checked_although_the_release_has_a_mistake() -> None:
    text = PRODUCT.replace("gpus: 64", "gpus: 0", 1).replace("gpus: 2, replicas: 1", "gpus: -2, replicas: 1", 1)
    assert [line.split(": ")[0].split("  ")[1] for line in mistakes(text)] == [
        "release.topology.decode.gpus",
        "stages.staging.topology.prefill.gpus",
    ]


def test_a_release_without_its_sections() -> None:
    assert mistakes("{}") == [
        "denv.yaml:1:1  release: this section is missing; it says what should run",
        "denv.yaml:1:1  stages: this section is missing; it says where the model runs",
    ]
    assert "denv.yaml:1:9  release: is empty; write its keys indented below it, or in braces" in mistakes("release:\nstages: 3")


def test_the_list_of_mistakes_is_bounded() -> None:
    found = mistakes("\n".join(f"key{index}: 1" for index in range(5000)))
    assert len(found) == 101
    assert "more mistakes from here on" in found[-1]


def test_alarms_of_the_model_hold_on_every_stage_that_does_not_say_otherwise() -> None:
    defaults = "alarms: { ttft-p99: 2s, kv-effective: 99%, itl-p99: { max: 60ms, over-baseline: 25% } }\nstages:"
    text = PRODUCT.replace("stages:", defaults, 1)
    file = good(text.replace("itl-p99: 60ms, error-rate: 1%", "itl-p99: off, error-rate: { over-baseline: 50% }", 1))
    staging, prod = file.stages
    assert staging.alarms == {"ttft-p99": "2s", "kv-effective": "99%", "itl-p99": "60ms", "itl-p99-over-baseline": "+25%"}
    assert prod.alarms == {"ttft-p99": "1500ms", "kv-effective": "99%", "error-rate-over-baseline": "+50%"}
    assert [(spec.name, spec.over) for spec in prod.alarm_specs] == [
        ("ttft-p99", None),
        ("kv-effective", None),
        ("error-rate-over-baseline", 1.5),
    ]


def test_a_stage_without_a_prefill_pool_has_no_alarms_on_one() -> None:
    text = PRODUCT.replace("stages:", "alarms: { kv-effective: 99%, ttft-p99: 2s }\nstages:", 1)
    whole = "topology: { mode: aggregated, gpus: 8, replicas: 1 }"
    small = "topology: { prefill: { gpus: 2, replicas: 1 }, decode: { gpus: 4, replicas: 1 } }"
    assert "kv-effective" not in good(text.replace(small, whole)).stages[0].alarms
    (wrong,) = mistakes(text.replace(small, f"{whole}\n    alarms: {{ prefill-queue: 32 }}"))
    assert "stages.staging.alarms.prefill-queue: this stage has no prefill pool" in wrong


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("itl-p99: { mx: 60ms }", "alarms.itl-p99.mx: not a key here; did you mean `max`?"),
        ("kv-effective: { max: 99% }", "alarms.kv-effective.max: not a key here; an alarm takes min and over-baseline"),
        ("itl-p99: { over-baseline: 25 }", "alarms.itl-p99.over-baseline: `25` says not how much worse"),
        ("itl-p99: { max: 60, over-baseline: 25% }", "alarms.itl-p99.max: `60` is no limit for itl-p99; write a time"),
        ("itl-p99: {}", "alarms.itl-p99: no limit is here; write max, over-baseline or both"),
        ("kv-use: { over-baseline: 25% }", "kv-use is compared by how often it is over a limit; write `max` too"),
        ("kv-efective: { min: 99% }", "alarms.kv-efective: `kv-efective` is no alarm; did you mean `kv-effective`?"),
    ],
)
def test_what_is_wrong_with_an_alarm_is_said_at_its_place(written: str, message: str) -> None:
    (wrong,) = mistakes(PRODUCT.replace("itl-p99: 60ms", written, 1))
    assert message in wrong


PROBED = PRODUCT.replace("canary: 10%", "probe: { rate: 30/m, prompts: prompts.txt }, canary: 10%", 1)


def test_prompts_of_a_file_are_put_in_place_of_its_name() -> None:
    (named,) = prompt_files(PROBED)
    assert named.name == "prompts.txt"
    text = all_put_in(PROBED, {"prompts.txt": 'Say hello.\n\n  "two\\nlines"\n'})
    assert prompt_files(text) == () and len(text.splitlines()) == len(PROBED.splitlines())
    assert good(text).stages[1].rollout.probe == ProbePolicy(0.5, ("Say hello.", "two\nlines"), 32)
    quoted = all_put_in(PROBED.replace("prompts.txt", "'prompts.txt'"), {"prompts.txt": "a"})
    assert good(quoted).stages[1].rollout.probe == ProbePolicy(0.5, ("a",), 32)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "", "probe.prompts: prompts.txt is a file, whose lines `denv release` puts here; elsewhere write the prompts as a list"),
        ("prompts.txt", "[]", "there is no prompt; write a list of them"),
        ("prompts.txt", "[a, { b: c }]", "a mapping is no prompt; write a text"),
        ("prompts.txt", f"[{'x' * 40_000}]", "1 prompts with 40,000 bytes; at most 64 with 32,768 bytes go to the routers"),
        ("30/m, prompts: prompts.txt", "3, prompts: [a]", "3 is no rate; write one such as 1/s or 30/m"),
        ("30/m, prompts: prompts.txt", "900/s, prompts: [a]", "it must be over 0 and at most 50/s"),
        (", prompts: prompts.txt", "", "probe.prompts: this is missing; name a file with one prompt a line, or write a list"),
    ],
)
def test_what_is_wrong_with_synthetic_traffic_is_said(old: str, new: str, message: str) -> None:
    (wrong,) = mistakes(PROBED.replace(old, new, 1) if old else PROBED)
    assert message in wrong
