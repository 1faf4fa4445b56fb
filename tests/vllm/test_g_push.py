"""A prefill that pushes its KV to a decode that waits for it: vLLM's NixlPushConnector, both legs under way at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from fleets.domain.types import Role
from tests.vllm.client import LENGTHS, ask, chat, prompt, said
from tests.vllm.world import LEASE_S, PUSH, WHOLE, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def served(lab: Lab) -> None:
    """The stage, and an engine alone to compare it with."""
    lab.serving(WHOLE)
    lab.serving(PUSH)


def all_free(lab: Lab) -> None:
    lab.until(lambda: lab.all_free(PUSH) and lab.routed(PUSH, "inflight") == 0, timeout_s=LEASE_S + 10, what="all KV is free again")


def test_it_says_what_whole_says(lab: Lab) -> None:
    """Prompts of 20 to 2,500 tokens: the same text, and every prompt token from prefill's KV."""
    served(lab)
    decode = lab.engine(PUSH, Role.DECODE)
    before = decode.figures()
    for seed, length in enumerate(LENGTHS):
        tokens = prompt(length, 7000 + seed)
        answer = ask(lab.router(PUSH), PUSH, tokens)
        assert said(answer) == lab.alone(tokens), f"{length} tokens"
        assert answer.json()["usage"]["prompt_tokens"] == length
    lab.until(
        lambda: decode.figures()["external_kv_transfer"] - before["external_kv_transfer"] == sum(LENGTHS), timeout_s=10, what="all came"
    )
    assert decode.figures()["local_compute"] == before["local_compute"]
    all_free(lab)


def test_a_chat_says_what_prefill_had_cached(lab: Lab) -> None:
    served(lab)
    messages = [{"role": "user", "content": "What is pushed, and what is pulled? " * 12}]
    first, again = (chat(lab.router(PUSH), PUSH, messages) for _ in range(2))
    assert first.done and first.text == again.text and first.usage is not None and again.usage is not None
    cached = [answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in (first, again) if answer.usage]
    assert cached[0] == 0 < cached[1] < first.usage["prompt_tokens"]


def test_clients_that_send_the_same_id_get_each_their_own(lab: Lab) -> None:
    """vLLM matches the legs of a request by it."""
    served(lab)
    prompts = [prompt(400, 7100 + seed) for seed in range(6)]
    alone = [lab.alone(tokens) for tokens in prompts]

    def one(tokens: list[int]) -> list[int]:
        body = {"model": PUSH, "prompt": tokens, "max_tokens": 48, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        return said(httpx.post(f"{lab.router(PUSH)}/v1/completions", json=body, headers={"x-request-id": "same"}, timeout=60))

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(one, prompts)) == alone


def test_clients_that_leave_strand_nothing(lab: Lab) -> None:
    """While prefill computes, and a little later: decode keeps the blocks of what it waits for until it comes."""
    served(lab)
    body = {"model": PUSH, "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}
    for seed, stay_s in enumerate((0.002, 0.01, 0.02, 0.03, 0.045, 0.06, 0.09)):
        with suppress(httpx.TimeoutException):
            httpx.post(f"{lab.router(PUSH)}/v1/completions", json=body | {"prompt": prompt(2500, 7200 + seed)}, timeout=stay_s)
    all_free(lab)
    tokens = prompt(100, 7299)
    assert said(ask(lab.router(PUSH), PUSH, tokens)) == lab.alone(tokens)


def test_prefill_that_dies_costs_no_request(lab: Lab) -> None:
    """Decode does what it was to send, and the next prefill, under another identity, is used again."""
    served(lab)
    lab.engine(PUSH, Role.PREFILL).kill()
    tokens = prompt(300, 7300)
    assert said(ask(lab.router(PUSH), PUSH, tokens)) == lab.alone(tokens)
    lab.until(lambda: len(lab.engines(PUSH, Role.PREFILL)) == 1, timeout_s=240, what="prefill is back")
    decode = lab.engine(PUSH, Role.DECODE)
    moved = decode.figures()["external_kv_transfer"]

    def is_used() -> bool:
        fresh = prompt(300, int(decode.figures()["prompt"]) + 7400)
        assert said(ask(lab.router(PUSH), PUSH, fresh)) == lab.alone(fresh)
        return decode.figures()["external_kv_transfer"] > moved

    lab.until(is_used, timeout_s=60, what="its KV is used")
