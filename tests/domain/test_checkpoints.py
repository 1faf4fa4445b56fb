"""Checkpoints by their headers: what they weigh, what a rank of them takes, and `denv weights` on a folder and on a hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from denvweb.cli.main import cli
from denvweb.core.errors import InvalidError
from fleets.agent.weights.headers import read_checkpoint
from fleets.domain.rank_fit import context_tokens, rank_fit
from fleets.domain.safetensors import Tensor, checkpoint, header_length, read_header
from tests.agent_fakes import rank
from tests.hub_fake import SHA, FakeHub

# Llama-3.1-70B, by its published config and index: 70.55 billion parameters, 141.1 GB in bfloat16.
LLAMA_70B = {
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "max_position_embeddings": 131_072,
}


def _llama_70b() -> list[Tensor]:
    wide, inner = 8192, 28_672
    layer = [(wide, wide), (1024, wide), (1024, wide), (wide, wide), (inner, wide), (inner, wide), (wide, inner), (wide,), (wide,)]
    tensors = [Tensor(f"layers.{n}.{i}", "BF16", shape) for n in range(80) for i, shape in enumerate(layer)]
    return [*tensors, Tensor("embed", "BF16", (128_256, wide)), Tensor("head", "BF16", (128_256, wide)), Tensor("norm", "BF16", (wide,))]


def file_of(tensors: list[Tensor]) -> bytes:
    """A safetensors file without its data."""
    header = json.dumps({"__metadata__": {}} | {t.name: {"dtype": t.dtype, "shape": t.shape, "data_offsets": [0, 0]} for t in tensors})
    return len(header).to_bytes(8, "little") + header.encode()


def test_a_known_model_weighs_what_is_published() -> None:
    model = checkpoint(LLAMA_70B, _llama_70b())
    assert model.params == pytest.approx(70.55e9, rel=1e-3)
    assert model.weight_bytes == pytest.approx(141.1e9, rel=1e-3)
    assert model.kv_values_per_token == 2 * 80 * 8 * 128  # 320 KiB a token in bfloat16
    one = rank_fit(model, memory_bytes=141e9, gpus=1, tensor_parallel=1, context=131_072, kv_value_bytes=2)
    two = rank_fit(model, memory_bytes=141e9, gpus=2, tensor_parallel=2, context=131_072, kv_value_bytes=2)
    assert (one.fits, one.hopeless, two.fits) == (False, True, True)
    assert two.arithmetic == (
        "141 GB of matrices over 2 GPUs + 2.64 MB of vectors = 70.6 GB a rank; KV of 131,072 tokens, over 2, = 21.5 GB; together 92 GB; "
        "141 GB x 0.9 - 3.5 GB for contexts, graphs and activations = 123 GB"
    )
    sixteen = rank_fit(model, memory_bytes=141e9, gpus=16, tensor_parallel=16, context=131_072, kv_value_bytes=2)
    eight = rank_fit(model, memory_bytes=141e9, gpus=8, tensor_parallel=8, context=131_072, kv_value_bytes=2)
    assert sixteen.kv_bytes == eight.kv_bytes  # eight KV heads: two ranks keep each


def test_a_latent_cache_is_whole_on_each_rank() -> None:
    config = LLAMA_70B | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 61, "num_attention_heads": 128}
    model = checkpoint({"text_config": config}, _llama_70b())
    assert (model.latent, model.kv_values_per_token) == (True, 61 * 576)
    kv = {rank_fit(model, memory_bytes=1e11, gpus=g, tensor_parallel=g, context=1000, kv_value_bytes=2).kv_bytes for g in (1, 8)}
    assert kv == {1000 * 61 * 576 * 2}


def test_packed_and_small_types_count_their_bits() -> None:
    assert [Tensor("t", dtype, (3, 3)).bytes for dtype in ("F32", "BF16", "F8_E4M3", "F4")] == [36, 18, 9, 5]


@pytest.mark.parametrize("first", [b"", b"\0" * 8, (10**12).to_bytes(8, "little"), b"GGUF\x03\0\0\0"])
def test_what_is_no_safetensors_is_refused(first: bytes) -> None:
    with pytest.raises(InvalidError):
        read_header(first[8:]) if header_length(first) else None
    with pytest.raises(InvalidError, match=r"config\.json has no num_hidden_layers"):
        checkpoint({}, [])


def test_the_context_that_is_asked_for_counts() -> None:
    engine = rank("k").engine
    assert context_tokens(engine) == engine.shape.context_tokens
    engine.options["max-model-len"] = "32768"
    assert context_tokens(engine) == 32_768


def test_a_folder_and_a_hub_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = _llama_70b()
    files = {"model-1.safetensors": file_of(tensors[:400]), "model-2.safetensors": file_of(tensors[400:])}
    files["config.json"] = json.dumps(LLAMA_70B).encode()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert read_checkpoint(tmp_path) == checkpoint(LLAMA_70B, tensors)
    assert read_checkpoint(tmp_path / "nothing") is None
    fits = CliRunner().invoke(cli, ["weights", str(tmp_path), "--gpus", "2"])
    assert (fits.exit_code, "70.6 billion parameters, 141 GB, 80 layers, 8 KV heads" in fits.output) == (0, True)
    with FakeHub(files) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        of_hub = CliRunner().invoke(cli, ["weights", f"hf://org/tiny@{SHA[:7]}", "--gpus", "2"])
        assert of_hub.output == fits.output
        assert CliRunner().invoke(cli, ["weights", f"hf://org/tiny@{SHA[:7]}"]).exit_code == 1
    assert "does not fit 1 H200" in CliRunner().invoke(cli, ["weights", f"file://{tmp_path}"]).output
