"""Two stages of the tiny model on real engines: aggregated, and prefill and decode with KV moved by NIXL."""

from __future__ import annotations

import pytest

from fleets.domain.types import Role
from tests.vllm.client import LENGTHS, ask, chat, prompt, said
from tests.vllm.world import TINY, WHOLE, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

BLOCK_BYTES = 2 * 16_384  # of 32 tokens: two layers, K and V of two heads of 32 numbers of 32 bits


def test_an_aggregated_stage_serves(lab: Lab) -> None:
    """What its router answers is what the engine answers when asked directly."""
    stage = lab.serving(WHOLE)
    assert (stage.state, stage.simulated, stage.units_ready) == ("steady", False, 1)
    engine = lab.engine(WHOLE, Role.AGGREGATED)
    for seed, length in enumerate(LENGTHS):
        tokens = prompt(length, seed)
        assert said(ask(lab.router(WHOLE), WHOLE, tokens)) == said(ask(engine.url, WHOLE, tokens))


def test_apart_says_what_whole_says(lab: Lab) -> None:
    """Prompts of 20 to 2,500 tokens: the same text, every prompt token from prefill's KV, and just the bytes that it takes."""
    lab.serving(WHOLE)
    lab.serving(TINY)
    whole = lab.engine(WHOLE, Role.AGGREGATED)
    prefill, decode = lab.engine(TINY, Role.PREFILL), lab.engine(TINY, Role.DECODE)
    before = decode.figures()
    equal = 0
    for seed, length in enumerate(LENGTHS):
        tokens = prompt(length, 900 + seed)
        answer = ask(lab.router(TINY), TINY, tokens)
        assert said(answer) == said(ask(whole.url, WHOLE, tokens)), f"{length} tokens"
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


def test_usage_says_what_was_cached(lab: Lab) -> None:
    """Whole blocks of 32 that prefill knew; what decode got over the network was computed, and is not called cached."""
    lab.serving(TINY)
    tokens = prompt(300, 950)
    for known in (0, 288):
        usage = ask(lab.router(TINY), TINY, tokens).json()["usage"]
        assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (300, known)
    messages = [{"role": "user", "content": "What is cached, and what is not? " * 12}]
    first, again = (chat(lab.router(TINY), TINY, messages).usage for _ in range(2))
    assert first is not None and again is not None
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["prompt_tokens_details"]["cached_tokens"] == (first["prompt_tokens"] - 1) // 32 * 32


def test_a_streamed_chat(lab: Lab) -> None:
    """Also through both: the same text, one usage chunk, and cached tokens as prefill knows them."""
    lab.serving(WHOLE)
    lab.serving(TINY)
    messages = [
        {"role": "system", "content": "You route requests."},
        {"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 12},
    ]
    whole = chat(lab.engine(WHOLE, Role.AGGREGATED).url, WHOLE, messages)
    apart = chat(lab.router(TINY), TINY, messages)
    assert (apart.text, apart.finish, apart.done) == (whole.text, whole.finish, True)
    assert apart.usage is not None and whole.usage is not None
    assert apart.usage["prompt_tokens"] == whole.usage["prompt_tokens"]
    assert apart.usage["completion_tokens"] == whole.usage["completion_tokens"]


def test_a_router_without_usage_asked_gives_none(lab: Lab) -> None:
    """The router asks engines for usage itself; a client that did not ask must not see it."""
    lab.serving(TINY)
    streamed = chat(lab.router(TINY), TINY, [{"role": "user", "content": "Hello world"}], stream_options=None)
    assert streamed.done and streamed.usage is None
