"""Weights come to a node from a hub of this test's own, and from a folder; an engine starts once they are there."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from denvweb.core.backoff import Backoff
from denvweb.core.errors import InvalidError
from fleets.agent.ranks import claimed
from fleets.agent.supplies import Supplies
from fleets.agent.weights import store
from fleets.agent.weights.digest import digest_of, expected
from fleets.agent.weights.fetch import WeightsError, check_file, room_for
from fleets.agent.weights.progress import Progress, moved, sentence
from fleets.agent.weights.store import WeightsStatus, WeightsStore
from fleets.domain.protocol import NodeFacts
from fleets.domain.safetensors import Tensor
from tests.agent_fakes import rank
from tests.domain.test_checkpoints import LLAMA_70B, file_of
from tests.hub_fake import SHA, FakeHub

SAFETENSORS = bytes(range(256)) * 84_000  # 21.5 MB: the client writes pieces of 10 MiB
MORE = SAFETENSORS[:5000]
FILES = {"config.json": b"{}", "model-1.safetensors": SAFETENSORS, "model-2.safetensors": MORE, "pytorch_model.bin": MORE[::-1]}
URI = f"hf://org/tiny@{SHA[:7]}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub(FILES) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "2")
        monkeypatch.setattr(store, "_BACKOFF", Backoff(first_s=0.05, cap_s=0.1))
        yield made


async def outcome(weights: WeightsStore, uri: str, token: str = "") -> WeightsStatus:
    """Once they are there or will not come."""
    changed = asyncio.Event()
    weights.subscribe(changed.set)
    async with asyncio.timeout(30):
        while True:
            changed.clear()
            status = weights.want(uri, {"HF_TOKEN": token} if token else {})
            if status.ready or status.failed:
                return status
            await changed.wait()


async def told(weights: WeightsStore, words: str) -> str:
    """The sentence, once it has these words."""
    async with asyncio.timeout(20):
        while words not in (said := weights.status(URI).sentence):
            await asyncio.sleep(0.02)
    return said


async def test_a_pinned_revision_comes_once_and_is_gone_on_with_after_a_cut(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after, hub.missing = 15 * 2**20, {"model-2.safetensors"}
    first = WeightsStore(tmp_path)
    first.want(URI, {})
    await told(first, "; try ")
    assert [at for name, at in hub.ranges if name == "model-1.safetensors"] == [0, 10 * 2**20]  # cut, and gone on with
    await first.close()
    hub.ranges, hub.missing = [], set()
    status = await outcome(WeightsStore(tmp_path), URI)  # the next agent
    assert {name for name, _ in hub.ranges} == {"model-2.safetensors"}, "what was there has come again"
    folder = Path(status.path)
    assert folder.name == SHA
    assert [(folder / f"model-{n}.safetensors").read_bytes() for n in (1, 2)] == [SAFETENSORS, MORE]
    assert not (folder / "pytorch_model.bin").exists()  # the same weights in another form
    hub.down = True
    asked = hub.asked
    assert await outcome(WeightsStore(tmp_path), URI) == status  # another agent, and no hub needed
    assert hub.asked == asked


async def test_a_gated_model_needs_a_token_that_may_read_it(hub: FakeHub, tmp_path: Path) -> None:
    hub.token = "hf_right"
    weights = WeightsStore(tmp_path)
    assert "org/tiny is gated" in (await outcome(weights, URI)).failed
    assert (await outcome(weights, URI, "hf_right")).ready
    assert "has no revision 0badbad" in (await outcome(weights, "hf://org/tiny@0badbad", "hf_right")).failed


async def test_a_full_disk_is_said_before_the_first_byte(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(tmp_path).free
    monkeypatch.setenv("DENV_WEIGHTS_SPARE_BYTES", str(free * 2))
    weights = WeightsStore(tmp_path)
    weights.want(URI, {})
    assert "is too small: 21.5 MB of weights are missing, 0 B may be used" in await told(weights, "disk of")
    await weights.close()
    assert hub.ranges == []


def test_room_is_arithmetic(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="short by"):
        room_for(10**18, tmp_path / "not" / "there" / "yet")
    room_for(0, tmp_path)


async def test_a_folder_is_used_once_its_digest_is_right(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(SAFETENSORS)
    (model / "config.json").write_text("{}")
    digest = hashlib.sha256(SAFETENSORS).hexdigest()
    weights = WeightsStore(tmp_path / "cache")
    assert await outcome(weights, f"file://{model}@sha256-{digest[:16]}") == WeightsStatus(ready=True, path=str(model))
    (model / "model-2.safetensors").write_bytes(b"more")
    lines = f"{hashlib.sha256(b'more').hexdigest()}  model-2.safetensors\n{digest}  model.safetensors\n"
    both = hashlib.sha256(lines.encode()).hexdigest()
    assert digest_of(model) == both
    assert f"are others than the release names: sha256-{both[:16]}" in (await outcome(weights, f"file://{model}@sha256-{'0' * 16}")).failed
    assert expected(f"sha256:{both}") == both
    with pytest.raises(InvalidError, match="is no digest"):
        expected("v1")
    with pytest.raises(WeightsError, match="no weights at /nowhere"):
        check_file("/nowhere", f"sha256-{both}")


async def test_what_is_not_pinned_is_the_engines_own_business(tmp_path: Path) -> None:
    weights = WeightsStore(tmp_path)
    assert [weights.want(uri, {}) for uri in ("", "/models/x", "hf://org/tiny")] == [WeightsStatus(ready=True)] * 3


def test_progress_is_told_with_the_time_that_is_left() -> None:
    progress = moved(Progress(moved_s=0.0), 0, 28 * 10**9, 0.0)
    assert sentence(Progress(), 0.0) == "weights: asking how much there is"
    for second in range(1, 61):
        progress = moved(progress, second * 200 * 10**6, 28 * 10**9, float(second))
    assert sentence(progress, 60.0) == "weights 42% (12 GB of 28 GB), about 1 min"
    assert sentence(progress, 120.0) == "weights 42% (12 GB of 28 GB), nothing came for 1:00 min"


async def test_weights_larger_than_the_memory_of_their_gpus_are_refused_with_the_arithmetic(tmp_path: Path) -> None:
    files = {"model.safetensors": file_of([Tensor("w", "BF16", (4096, 4096))]), "config.json": json.dumps(LLAMA_70B).encode()}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    weights = WeightsStore(tmp_path)
    spec = rank("k-1")
    spec = replace(spec, engine=replace(spec.engine, weights=f"file://{tmp_path}@sha256-{digest_of(tmp_path)}"))
    await outcome(weights, spec.engine.weights)
    facts = NodeFacts("n1", "f", "d01", "X", 4, "127.0.0.1", 20_000, 64, gpu_memory_bytes=30 * 10**6)
    refused = Supplies(facts, weights, lambda: None).weights_for(claimed(spec, 0.0))
    assert refused is not None
    assert refused.failed.startswith("weights do not fit: 33.6 MB of matrices over 1 GPU + 0 B of vectors = 33.6 MB a rank")
    roomy = Supplies(replace(facts, gpu_memory_bytes=40 * 10**6), weights, lambda: None).weights_for(claimed(spec, 0.0))
    assert roomy is not None
    assert roomy.path == str(tmp_path)
