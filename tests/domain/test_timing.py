"""The roofline against what others have measured, and its shape where nobody has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleets.domain.hardware import GPUS
from fleets.domain.timing import decode_step_s, kv_transfer_s, memory_fit, mixed_step_s, prefill_s
from fleets.domain.types import ModelShape, Role

DEEPSEEK_V3 = ModelShape(
    layers=61,
    hidden=7168,
    kv_heads=1,
    total_params=671e9,
    prefill_active_params=37e9,
    decode_active_params=37e9,
    weight_bytes=671e9,
    kv_bytes_per_token=70_272,
)
LLAMA_70B = ModelShape(
    layers=80,
    hidden=8192,
    kv_heads=8,
    total_params=70.6e9,
    prefill_active_params=70.6e9,
    decode_active_params=70.6e9,
    weight_bytes=141.2e9,
    kv_bytes_per_token=327_680,
)
DS_FLASH = ModelShape(
    layers=40,
    hidden=5120,
    kv_heads=1,
    total_params=552e9,
    prefill_active_params=8e9,
    decode_active_params=16e9,
    weight_bytes=302e9,
    kv_bytes_per_token=890,
    context_tokens=1_048_576,
    attended_tokens=65_536,
    prefill_weight_ratio=0.5,
)


@pytest.mark.parametrize("name", ["H100", "h100", "H100_SXM", "NVIDIA H100-80GB-HBM3", "h100-sxm"])
def test_gpu_kinds_are_found_by_any_of_their_names(name: str) -> None:
    assert GPUS[name].name == "H100"


def test_unknown_gpu_kind_is_a_key_error() -> None:
    assert "abacus" not in GPUS
    assert GPUS.get("abacus") is None


@pytest.mark.parametrize(
    ("gpu", "gpus", "batch_per_gpu", "context", "measured_ms"),
    [
        ("H100", 72, 256, 2000, 92.0),  # LMSYS, EP72: 22,282 tokens/s a node
        ("GB200", 56, 1408, 2000, 105.2),  # LMSYS, GB200 part 2: 13,386 tokens/s a GPU
        ("H800", 128, 128, 4000, 55.1),  # DeepSeek profile: 18,598 tokens/s a node
    ],
)
def test_decode_step_is_near_published_ones(gpu: str, gpus: int, batch_per_gpu: int, context: int, measured_ms: float) -> None:
    batch = batch_per_gpu * gpus
    assert decode_step_s(DEEPSEEK_V3, GPUS[gpu], gpus, batch, batch * context) * 1e3 == pytest.approx(measured_ms, rel=0.35)


@pytest.mark.parametrize(("gpu", "measured_tokens_per_s"), [("H100", 57_674 / 8), ("GB200", 18_471)])
def test_prefill_rate_is_near_published_ones(gpu: str, measured_tokens_per_s: float) -> None:
    rate = 16_384 / prefill_s(DEEPSEEK_V3, GPUS[gpu], 1, 16_384, 0)
    assert rate == pytest.approx(measured_tokens_per_s, rel=0.35)


@pytest.mark.parametrize(("gpus", "measured_ms"), [(1, 1155), (2, 678), (4, 439), (8, 302)])
def test_prefill_of_a_dense_model_is_near_what_was_measured_on_any_number_of_gpus(gpus: int, measured_ms: float) -> None:
    """InferenceX: Llama 3.1 70B in 8 bits on H200 under TensorRT-LLM, 8,192 tokens, four users; many GPUs lose time in all-reduces."""
    llama = replace(LLAMA_70B, weight_bytes=70.6e9, kv_bytes_per_token=163_840)
    assert prefill_s(llama, GPUS["H200"], gpus, 8192, 0) * 1e3 == pytest.approx(measured_ms, rel=0.2)


def test_flash_on_gb200_serves_in_the_range_that_the_demo_shows() -> None:
    gb200 = GPUS["GB200"]
    first_token_s = (
        prefill_s(DS_FLASH, gb200, 4, 7000, 0) + kv_transfer_s(7000 * 890, gb200, True) + decode_step_s(DS_FLASH, gb200, 64, 40, 280_000)
    )
    assert 0.02 < first_token_s < 0.3
    assert 0.010 < decode_step_s(DS_FLASH, gb200, 64, 40, 280_000) < 0.035


@given(st.integers(1, 4096), st.integers(0, 10**7), st.sampled_from([1, 2, 4, 8, 16, 64]))
def test_more_work_never_takes_less_time(batch: int, context: int, gpus: int) -> None:
    for shape in (DEEPSEEK_V3, LLAMA_70B, DS_FLASH):
        for gpu in GPUS.values():
            step_s = decode_step_s(shape, gpu, gpus, batch, context)
            assert decode_step_s(shape, gpu, gpus, batch + 1, context) >= step_s
            assert decode_step_s(shape, gpu, gpus, batch, context + 1000) >= step_s
            assert mixed_step_s(shape, gpu, gpus, batch, context, 512, 0) > step_s


@given(st.integers(1, 20_000), st.integers(0, 100_000))
def test_a_mixed_step_costs_less_than_two_and_more_than_either(new_tokens: int, context: int) -> None:
    gpu = GPUS["H200"]
    apart_s = decode_step_s(LLAMA_70B, gpu, 8, 32, 64_000), prefill_s(LLAMA_70B, gpu, 8, new_tokens, context)
    mixed_s = mixed_step_s(LLAMA_70B, gpu, 8, 32, 64_000, new_tokens, context)
    assert max(apart_s) < mixed_s < sum(apart_s)


def test_an_engine_alone_in_prefill_or_in_decode_pays_for_that_alone() -> None:
    gpu = GPUS["H200"]
    assert mixed_step_s(LLAMA_70B, gpu, 8, 0, 0, 512, 100) == prefill_s(LLAMA_70B, gpu, 8, 512, 100)
    assert mixed_step_s(LLAMA_70B, gpu, 8, 4, 4000, 0, 0) == decode_step_s(LLAMA_70B, gpu, 8, 4, 4000)


def test_kv_moves_faster_inside_a_domain() -> None:
    gpu = GPUS["H200"]
    assert kv_transfer_s(576e6, gpu, True) < kv_transfer_s(576e6, gpu, False)


def test_memory_fit_says_how_many_gpus_it_takes() -> None:
    one = memory_fit(LLAMA_70B, GPUS["H100"], 1)
    assert not one.fits
    assert one.kv_bytes < 0
    assert one.kv_tokens == 0
    assert memory_fit(LLAMA_70B, GPUS["H100"], one.gpus_needed).fits
    assert not memory_fit(LLAMA_70B, GPUS["H100"], one.gpus_needed - 1).fits


def test_prefill_of_an_encoder_decoder_holds_a_part_of_the_weights() -> None:
    prefill = memory_fit(DS_FLASH, GPUS["H200"], 2, role=Role.PREFILL)
    assert prefill.fits
    assert prefill.weights_bytes == pytest.approx(302e9 / 4)
    assert not memory_fit(DS_FLASH, GPUS["H200"], 2, role=Role.DECODE).fits
