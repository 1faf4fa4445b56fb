"""What aiconfigurator is asked for a row, and what is made of its answers."""

from __future__ import annotations

from collections import Counter

from tests.bench.sizing_peer import answers, arguments, sample

_SIZES = ("batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
_BLANK = dict.fromkeys([prefix + name for prefix in ("", "prefill_", "decode_") for name in (*_SIZES, "num_workers")], "")
_ROW = _BLANK | {
    "id": "a",
    "mode": "agg",
    "backend": "vllm",
    "system": "h200_sxm",
    "model_path": "meta-llama/Llama-3.1-70B",
    "precision": "fp8",
    "isl": "1024",
    "osl": "512",
    "gemm_quant_mode": "fp8",
    "moe_quant_mode": "",
}


def test_a_row_is_asked_under_the_name_it_has_there_and_without_what_it_does_not_say() -> None:
    asked = arguments(_ROW | {"batch_size": "12.0", "tp_size": "4"})
    assert asked["model_path"] == "meta-llama/Meta-Llama-3.1-70B"
    assert (asked["batch_size"], asked["tp_size"], asked["attention_dp_size"], asked["gemm_quant_mode"]) == (12, 4, 1, "fp8")
    assert "moe_quant_mode" not in asked
    assert "num_workers" not in asked


def test_a_square_of_gpus_is_undone() -> None:
    asked = arguments(_ROW | {"batch_size": "4", "tp_size": "64", "moe_tp_size": "8", "moe_ep_size": "8"})
    assert (asked["tp_size"], asked["moe_tp_size"], asked["moe_ep_size"]) == (8, 1, 8)


def test_roles_are_asked_each_with_its_own_sizes() -> None:
    asked = arguments(
        _ROW | {"mode": "disagg", "prefill_batch_size": "1", "prefill_num_workers": "3", "decode_batch_size": "48", "decode_tp_size": "8"}
    )
    assert (asked["prefill_num_workers"], asked["decode_num_workers"]) == (3, 1)
    assert (asked["decode_batch_size"], asked["decode_tp_size"], asked["prefill_tp_size"]) == (48, 8, 1)
    assert "tp_size" not in asked


def test_each_kind_of_row_has_its_share_of_the_sample_and_the_sample_is_the_same_again() -> None:
    rows = [_ROW | {"id": str(index), "backend": "vllm" if index % 4 else "sglang"} for index in range(200)]
    chosen = sample(rows, 40)
    assert Counter(row["backend"] for row in chosen) == {"vllm": 30, "sglang": 10}
    assert len({row["id"] for row in chosen}) == 40
    assert chosen == sample(rows, 40)
    assert len(sample(rows[:3], 40)) == 3


def test_only_answers_with_a_time_count() -> None:
    lines = ['{"id": "a", "tpot_ms": 12.5}', '{"id": "b", "why": "ValueError"}', '{"id": "c", "tpot_ms": 0.0}']
    assert answers(lines) == {"a": 0.0125}
