"""Every recipe that ships with denv is whole, and makes units that fit real GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import releases.catalog
from denvweb.core.errors import InvalidError
from fleets.domain.hardware import GPUS
from fleets.domain.timing import memory_fit
from fleets.domain.types import Role
from releases.catalog import catalog
from releases.domain.recipes import Parallelism, Recipe, recipe_from, recipe_unknown

NAMES = (
    "deepseek-v4.1-flash/deepinfer@3",
    "deepseek-v4.1-flash/vllm@1",
    "llama-3.1-70b/sglang@1",
    "llama-3.1-70b/vllm@1",
    "qwen3-235b/sglang@1",
    "qwen3-235b/vllm@1",
    "tiny/vllm-cpu-push@1",
    "tiny/vllm-cpu@1",
)


def test_the_catalogue_has_these_and_is_read_once() -> None:
    assert tuple(catalog()) == NAMES
    assert catalog() is catalog()


@pytest.fixture(params=NAMES)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return catalog()[str(request.param)]


def test_a_recipe_serves_aggregated_and_disaggregated(recipe: Recipe) -> None:
    assert set(recipe.roles) == set(Role)
    assert recipe.can_disaggregate
    assert recipe.name.split("/")[1].startswith(recipe.engine)
    assert recipe.summary


def test_its_figures_agree_with_each_other(recipe: Recipe) -> None:
    shape = recipe.model_shape()
    assert 0 < shape.prefill_active_params <= shape.total_params
    assert 0 < shape.decode_active_params <= shape.total_params
    assert 0.4 <= shape.weight_bytes / shape.total_params <= 4.5  # between 4-bit and 32-bit weights
    assert (recipe.parallelism is Parallelism.EXPERT) == (recipe.shape.experts > 0)
    assert recipe.kv_cache.dtype in recipe.kv_cache.bytes_per_token
    assert recipe.shape.heads % recipe.shape.kv_heads == 0


def test_its_compat_options_exist(recipe: Recipe) -> None:
    known = {key for rules in recipe.roles.values() for key in rules.options}
    assert set(recipe.compat_options) <= known


def test_it_fits_every_gpu_kind_it_names(recipe: Recipe) -> None:
    for kind in recipe.gpu_kinds:
        if kind in GPUS:
            assert any(memory_fit(recipe.model_shape(), GPUS[kind], gpus).fits for gpus in (1, 2, 4, 8)), kind
        else:
            assert kind == "CPU"


def test_grouped_query_attention_is_what_the_kv_size_says() -> None:
    """2 (K and V) x layers x KV heads x head size x 2 bytes, from the models' own configurations."""
    llama, qwen, tiny = (catalog()[name].model_shape() for name in ("llama-3.1-70b/vllm@1", "qwen3-235b/vllm@1", "tiny/vllm-cpu@1"))
    assert llama.kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert qwen.kv_bytes_per_token == 2 * 94 * 4 * 128 * 2
    assert tiny.kv_bytes_per_token == 2 * 2 * 2 * 32 * 4


def test_deepseek_keeps_890_bytes_a_token() -> None:
    recipe = catalog()["deepseek-v4.1-flash/deepinfer@3"]
    shape = recipe.model_shape()
    assert (shape.kv_bytes_per_token, shape.layers, shape.total_params) == (890, 40, 552e9)
    assert (shape.prefill_active_params, shape.decode_active_params) == (8e9, 16e9)
    assert recipe.model_shape("fp8").kv_bytes_per_token > 890


def test_an_unknown_recipe_is_named_with_its_nearest() -> None:
    assert recipe_unknown("deepseek-v4.1-flash/deepinfer@4", catalog()) == (
        "recipe deepseek-v4.1-flash/deepinfer@4 is not in the catalogue; of this one it has deepseek-v4.1-flash/deepinfer@3"
    )
    assert "did you mean `llama-3.1-70b/vllm@1`?" in recipe_unknown("llama-3-70b/vllm@1", catalog())
    assert "`denv recipes` lists" in recipe_unknown("zzz/zzz@1", catalog())


@pytest.mark.parametrize("data", [None, [], {}, {"engine": "vllm"}, {"summary": 3}])
def test_a_broken_recipe_says_which_it_is(data: object) -> None:
    with pytest.raises(InvalidError, match="recipe x/y@1"):
        recipe_from("x/y@1", data)


def test_a_recipe_names_a_tokenizer_that_there_can_be() -> None:
    text = next(path for path in Path(releases.catalog.__file__).parent.glob("*/vllm@1.yaml")).read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    assert recipe_from("x/y@1", data | {"tokenizer": "hf://org/name@abc"}).tokenizer == "hf://org/name@abc"
    with pytest.raises(InvalidError, match=r"recipe x/y@1: 'hf://name' names no tokenizer"):
        recipe_from("x/y@1", data | {"tokenizer": "hf://name"})
