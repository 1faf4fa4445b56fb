"""TensorRT-LLM's handover: the context server answers first, and its answer goes into the generation server's request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fleets.domain.protocol import RouteUnit
from tests.integration.fake_engine import WORDS, FakeEngine, engines
from tests.integration.router_bench import MODEL, chat, pd_unit, router, table

LONG = " word" * 4000


def unit(prefills: Sequence[FakeEngine], decodes: Sequence[FakeEngine]) -> RouteUnit:
    return replace(pd_unit(prefills, decodes), protocol="trtllm-context-first")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_what_the_context_server_says_goes_to_the_generation_server(tmp_path: Path, path: str, stream: bool) -> None:
    body = (
        chat(LONG, stream=stream, min_tokens=2) if "chat" in path else {"model": MODEL, "prompt": LONG, "stream": stream, "max_tokens": 6}
    )
    async with engines("p", "d") as (p, d), router(tmp_path, table(unit([p], [d]))) as bench:
        answer = await bench.ask(body | {"disaggregated_params": {"request_type": "evil"}}, path=path)
        assert answer.status == 200
        (context,), (generation,) = p.posts, d.posts
        number = context.disagg["disagg_request_id"]
        assert context.disagg == {"request_type": "context_only", "disagg_request_id": number, "schedule_style": 0}
        assert number >= 2**42 and (context.body["stream"], context.body["max_tokens"]) == (False, 6)
        assert "stream_options" not in context.body
        told = generation.disagg
        assert (told["request_type"], told["ctx_request_id"], told["encoded_opaque_state"]) == ("generation_only", number, "b64=")
        assert generation.body["ctx_usage"]["completion_tokens"] == 1
        assert generation.body["prompt_token_ids" if "chat" in path else "prompt"] == [1, 2, 3]
        assert generation.body.get("stream", False) is stream
        assert bench.counters()["reason.remote"] == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_ends_with_its_first_token_is_the_whole_one(tmp_path: Path, stream: bool) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(unit([p], [d]))) as bench:
        answer = await bench.ask(chat("PALL" + LONG, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})))
        assert answer.status == 200 and not d.posts and b"disaggregated_params" not in answer.body
        if stream:
            assert (answer.text, answer.events[-1], answer.events[-2]["usage"]["completion_tokens"]) == ("one", "[DONE]", 1)
            assert answer.events[0]["choices"][0]["finish_reason"] == "stop"
        else:
            assert answer.json["choices"][0]["message"]["content"] == "one"
        counters = bench.counters()
        assert counters["requests"] == 1 and counters["tokens.out"] == 1 and "errors" not in counters
        assert bench.app.stage.units["u-1"].gate.inflight == 0 and bench.app.stage.inflight == {}


async def test_without_what_decode_needs_it_computes_alone(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(unit([p], [d]))) as bench:
        p.damage = {"ctx_request_id": None}
        assert (await bench.ask(chat(LONG))).text == "".join(WORDS)
        assert "disaggregated_params" not in d.posts[0].body and "messages" in d.posts[0].body
        assert bench.counters()["kv.recomputed"] == 1
