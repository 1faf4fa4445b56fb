"""Serving units and their hashes: a change touches what it must, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleets.domain.types import Faults, PlacementRule, Role, UnitSpec
from releases.catalog import catalog
from releases.domain.generations import generations
from releases.domain.units import unit_spec
from tests.domain.releases_world import DS_FLASH, file_of


def unit(text: str = DS_FLASH, release: str = "ds-flash@7", keep: UnitSpec | None = None) -> UnitSpec:
    file = file_of(text)
    return unit_spec(file.release, file.stages[0], catalog()[file.release.recipe], release, keep)


def hashes(text: str = DS_FLASH) -> dict[str, str]:
    spec = unit(text)
    return generations(spec.pools, spec.compat)


def touched(old: str, new: str) -> set[str]:
    assert old in DS_FLASH
    before, after = hashes(), hashes(DS_FLASH.replace(old, new, 1))
    return {key for key in before if before[key] != after[key]}


def test_a_unit_has_all_that_the_recipe_adds() -> None:
    spec = unit()
    assert (spec.stage, spec.model, spec.release, spec.placement) == (
        "ds-flash/prod-us",
        "ds-flash",
        "ds-flash@7",
        PlacementRule.SAME_DOMAIN,
    )
    assert (spec.gpus, spec.shape) == (72, "2P1D")
    prefill, decode = spec.pools
    assert prefill.engine.protocol == decode.engine.protocol == "vllm-nixl"
    assert (prefill.engine.tensor_parallel, decode.engine.tensor_parallel) == (4, 64)
    assert (decode.engine.block_tokens, decode.engine.kv_dtype, decode.engine.shape.kv_bytes_per_token) == (64, "fp4", 890)
    assert decode.engine.options["speculative-draft-length"] == "2"
    assert decode.engine.faults == Faults()


def test_a_tokenizer_is_the_routers_business_and_touches_no_engine() -> None:
    file = file_of(DS_FLASH)
    known = catalog()[file.release.recipe]
    recipe = replace(known, tokenizer="hf://org/name@abc")
    spec = unit_spec(file.release, file.stages[0], recipe, "ds-flash@7")
    assert spec.tokenizer == "hf://org/name@abc" and generations(spec.pools, spec.compat) == hashes()
    assert unit_spec(file.release, file.stages[0], recipe, "ds-flash@7", simulated=True).tokenizer == ""


def test_an_aggregated_unit_hands_nothing_over() -> None:
    spec = unit(
        DS_FLASH.replace("{ prefill: { gpus: 4, replicas: 2 }, decode: { gpus: 64, replicas: 1 } }", "{ mode: aggregated, gpus: 8 }")
    )
    assert [pool.role for pool in spec.pools] == [Role.AGGREGATED]
    assert spec.pools[0].engine.protocol == "none"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("replicas: 2 }", "replicas: 3 }", set()),  # one more prefill replica restarts nothing
        ("replicas: 2\n", "replicas: 1\n", set()),  # nor does the number of units
        ("stages:", "  engine: { decode: { speculative-draft-length: 3 } }\nstages:", {"decode"}),
        ("stages:", "  engine: { prefill: { max-num-seqs: 32 } }\nstages:", {"prefill"}),
        ("stages:", "  simulated-faults: { decode: { slow-factor: 3 } }\nstages:", {"decode"}),
        ("stages:", "  kv-cache: { block-size: 128 }\nstages:", {"prefill", "decode", "compat"}),
        ("stages:", "  kv-cache: { dtype: fp8 }\nstages:", {"prefill", "decode", "compat"}),
        ("stages:", "  kv-cache: { block-size: 64 }\nstages:", set()),  # what the recipe has anyway
        ("stages:", "  kv-cache: { prefix-caching: false }\nstages:", {"prefill", "decode"}),
        ("stages:", "  engine: { decode: { attention-backend: other } }\nstages:", {"decode", "compat"}),
        ("gpus: 64", "gpus: 32", {"decode", "compat"}),
        ("@c41a7e2", "@c41a7e3", {"prefill", "decode", "compat"}),
        ("deepinfer@3", "vllm@1", {"prefill", "decode", "compat"}),
        ("decode: {", "conditional: { local-prefill-below: 500 }, decode: {", set()),  # the router's business
    ],
)
def test_what_a_change_touches(old: str, new: str, what: set[str]) -> None:
    assert touched(old, new) == what


def test_hashes_do_not_depend_on_the_release_or_the_stage() -> None:
    assert hashes() == hashes(DS_FLASH.replace("prod-us", "prod-eu"))
    assert unit(release="ds-flash@7").pools[0].generation == unit(release="ds-flash@8").pools[0].generation


def test_an_untouched_pool_keeps_the_release_it_came_with() -> None:
    changed = DS_FLASH.replace("stages:", "  engine: { decode: { speculative-draft-length: 3 } }\nstages:")
    prefill, decode = unit(changed, "ds-flash@8", keep=unit()).pools
    assert (prefill.release, decode.release) == ("ds-flash@7", "ds-flash@8")
