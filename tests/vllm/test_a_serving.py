"""Two stages of the tiny model on real engines: aggregated, and prefill and decode with KV moved by NIXL."""

from __future__ import annotations

import pytest

from fleets.domain.types import Role
from tests.vllm.client import LENGTHS, ask, chat, prompt, said
from tests.vllm.world import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

WHOLE = "{ mode: aggregated, gpus: 1, replicas: 1 }"
APART = (
    "{ mode: disaggregated, prefill: { gpus: 1, replicas: 1 }, decode: { gpus: 1, replicas: 1 }, "
    "conditional: { local-prefill-below: 1, prefill-queue-above: 64 } }"
)
BLOCK_BYTES = 2 * 16_384  # of 32 tokens: two layers, K and V of two heads of 32 numbers of 32 bits


def test_an_aggregated_stage_serves(lab: Lab) -> None:
    """What its router answers is what the engine answers when asked directly."""
    stage = lab.serving("tiny-whole", WHOLE)
    assert (stage.state, stage.simulated, stage.units_ready) == ("steady", False, 1)
    engine = lab.engine("tiny-whole", Role.AGGREGATED)
    for seed, length in enumerate(LENGTHS):
        tokens = prompt(length, seed)
        assert said(ask(lab.router("tiny-whole"), "tiny-whole", tokens)) == said(ask(engine.url, "tiny-whole", tokens))


def test_apart_says_what_whole_says(lab: Lab) -> None:
    """Prompts of 20 to 2,500 tokens: the same text, every prompt token from prefill's KV, and just the bytes that it takes."""
    lab.serving("tiny-whole", WHOLE)
    lab.serving("tiny", APART)
    whole = lab.engine("tiny-whole", Role.AGGREGATED)
    prefill, decode = lab.engine("tiny", Role.PREFILL), lab.engine("tiny", Role.DECODE)
    before = decode.figures()
    equal = 0
    for seed, length in enumerate(LENGTHS):
        tokens = prompt(length, 900 + seed)
        answer = ask(lab.router("tiny"), "tiny", tokens)
        assert said(answer) == said(ask(whole.url, "tiny-whole", tokens)), f"{length} tokens"
        usage = answer.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (length, 48, length + 48)
        equal += 1
    after = lab.until(
        lambda: (now := decode.figures())["external_kv_transfer"] > before["external_kv_transfer"] and now, timeout_s=10, what="figures"
    )
    assert after["external_kv_transfer"] - before["external_kv_transfer"] == sum(LENGTHS)
    assert after["local_compute"] == before["local_compute"]
    assert after["bytes"] - before["bytes"] == sum(-(-length // 32) for length in LENGTHS) * BLOCK_BYTES
    assert after["failed"] == before["failed"]
    lab.until(lambda: prefill.figures()["kv_use"] == decode.figures()["kv_use"] == 0, timeout_s=10, what="all KV is free again")
    print(f"{equal} of {len(LENGTHS)} texts equal; {after['bytes'] - before['bytes']:.0f} bytes of KV moved")


def test_a_streamed_chat(lab: Lab) -> None:
    """Also through both: the same text, one usage chunk, and cached tokens as prefill knows them."""
    lab.serving("tiny-whole", WHOLE)
    lab.serving("tiny", APART)
    messages = [
        {"role": "system", "content": "You route requests."},
        {"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 12},
    ]
    whole = chat(lab.engine("tiny-whole", Role.AGGREGATED).url, "tiny-whole", messages)
    apart = chat(lab.router("tiny"), "tiny", messages)
    assert (apart.text, apart.finish, apart.done) == (whole.text, whole.finish, True)
    assert apart.usage is not None and whole.usage is not None
    assert apart.usage["prompt_tokens"] == whole.usage["prompt_tokens"]
    assert apart.usage["completion_tokens"] == whole.usage["completion_tokens"]


def test_a_router_without_usage_asked_gives_none(lab: Lab) -> None:
    """The router asks engines for usage itself; a client that did not ask must not see it."""
    lab.serving("tiny", APART)
    streamed = chat(lab.router("tiny"), "tiny", [{"role": "user", "content": "Hello world"}], stream_options=None)
    assert streamed.done and streamed.usage is None
