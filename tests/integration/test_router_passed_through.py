"""What a client may ask for and an engine may answer beyond plain text, on its way through prefill and decode: all of it, unchanged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from fleets.domain.protocol import RouteUnit
from fleets.router.openai import MEDIA_DIGEST_BYTES, MEDIA_REPEATS, parse
from tests.integration.fake_engine import FakeEngine, Seen, engines
from tests.integration.router_bench import MODEL, chat, message, pd_unit, plain_unit, router, table

LONG = "word " * 4000
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 40, "detail": "low"}}
TOOL: Any = {"type": "function", "function": {"name": "look_up", "strict": True, "parameters": {"type": "object", "properties": {"q": {}}}}}
ASKED: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "look_up"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}},
    "logprobs": True,
    "top_logprobs": 5,
    "logit_bias": {"50256": -100},
    "stop": ["\n\n", "END"],
    "seed": 2**53 + 1,
    "temperature": 0.1,
    "user": "somebody",
    "metadata": {"é": "ü 😀"},
    "service_tier": None,
    "chat_template_kwargs": {"enable_thinking": False},
    "not_invented_yet": [1, {"a": None}],
}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": LONG},
    {"role": "user", "content": [{"type": "text", "text": "what is this?"}, PICTURE]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c-1", "content": "a result"},
]
ADDED = {
    "kv_transfer_params",
    "disaggregated_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "prompt_token_ids",
    "ctx_usage",
}


def over(protocol: str, prefills: Sequence[FakeEngine], decodes: Sequence[FakeEngine]) -> RouteUnit:
    for engine in prefills:
        engine.only_prefills = protocol == "sglang-bootstrap"
    return replace(pd_unit(prefills, decodes), protocol=protocol)


@pytest.mark.parametrize("protocol", ["vllm-nixl", "vllm-mooncake", "sglang-bootstrap", "trtllm-context-first"])
async def test_tools_schemas_logprobs_and_images_reach_both_legs(tmp_path: Path, protocol: str) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(over(protocol, [p], [d]))) as bench:
        body = {"model": MODEL, "messages": TALK, "max_tokens": 6, "stream": True, **ASKED}
        answer = await bench.ask(body, headers={"x-mine": "1", "authorization": "Bearer mine", "openai-organization": "org"})
        assert answer.status == 200
        (first,), (second,) = p.posts, d.posts
        one_token = {"stream": False, **({"max_tokens": 1} if protocol.startswith("vllm") else {})}
        added = {"min_tokens": 1} if protocol == "vllm-mooncake" else {}
        assert {name: value for name, value in first.body.items() if name not in ADDED} == body | one_token | added
        wanted = body | {"stream_options": {"include_usage": True}}
        assert {name: value for name, value in second.body.items() if name not in ADDED} == wanted
        for leg in (first, second):
            assert (leg.headers["x-mine"], leg.headers["authorization"], leg.headers["openai-organization"]) == ("1", "Bearer mine", "org")


CALL = {"index": 0, "id": "c-1", "type": "function", "function": {"name": "f", "arguments": ""}}
TOKEN = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
SAID: list[dict[str, Any]] = [
    {"delta": {"role": "assistant", "content": None, "tool_calls": [CALL]}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"q": "\\"x\\" }'}}]}},
    {"delta": {"content": 'a "quoted" \\ text\n\n with data: inside'}, "logprobs": {"content": [TOKEN]}},
    {"delta": {"content": "[DONE]"}},
    {"delta": {"reasoning_content": "hm"}},
    {"delta": {"refusal": "no"}},
    {"delta": {"content": "😀"}, "index": 1},
    {"delta": {}, "finish_reason": "tool_calls"},
]


def chunks(usage: bool) -> list[bytes]:
    made: list[dict[str, Any]] = [
        {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": None} | one]} for one in SAID
    ]
    told = {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}
    made += [{"id": "x", "choices": [], "usage": told}] if usage else []
    return [*(b"data: " + json.dumps(one, ensure_ascii=False).encode() + b"\n\n" for one in made), b"data: [DONE]\n\n"]


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("size", [0, 7, 100_000])
async def test_chunks_of_every_kind_come_as_they_are(tmp_path: Path, usage: bool, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One a read, in pieces of seven bytes, and all in one."""

    async def stream(engine: FakeEngine, seen: Seen, writer: asyncio.StreamWriter, text: str) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        whole = b"".join(chunks(usage=True))
        for part in chunks(usage=True) if not size else [whole[at : at + size] for at in range(0, len(whole), size)]:
            engine._chunk(writer, part)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    monkeypatch.setattr(FakeEngine, "_stream", stream)
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        more: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
        answer = await bench.ask(chat("hello", **more))
        assert answer.body == b"".join(chunks(usage))
        counters = bench.counters()
        assert (counters["tokens.in"], counters["tokens.out"], counters["tokens.cached"]) == (9, 7, 3) and "errors" not in counters


async def test_several_samples_of_one_stream(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        asked: list[dict[str, Any]] = [{"n": 3}, {"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}]
        for more in asked:
            assert (await bench.ask(chat(LONG, **more))).status == 200
        assert (await bench.ask(chat("x" + LONG, n=1, echo=True, prompt_logprobs=None))).status == 200
        assert len(p.posts) == 1 and [leg.body.get("n") for leg in d.posts] == [3, None, None, 1]
        counters = bench.counters()
        assert (counters["reason.samples-local"], counters["reason.prompt-logprobs-local"], counters["reason.remote"]) == (1, 2, 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_is_told_what_prefill_had_cached(tmp_path: Path, stream: bool) -> None:
    """Decode may count all that it got over the network as cached; prefill said 7."""
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        more: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        answer = await bench.ask(chat(LONG, stream=stream, **more))
        usage = answer.events[-2]["usage"] if stream else answer.json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 7 and usage["completion_tokens"] == 6
        assert (await bench.ask(chat("short", stream=False))).json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_picture_weighs_what_it_costs_and_is_told_from_others() -> None:
    """A megabyte of it would be a prompt of 260,000 tokens, and bring the ratio of tokens to bytes down for everybody."""

    def prompt(*parts: dict[str, Any]) -> bytes:
        body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
        return parse("/v1/chat/completions", json.dumps(body).encode()).prompt

    large = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "B" * 1_000_000}}
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    text = {"type": "text", "text": "what is this?"}
    weight = 2 * MEDIA_DIGEST_BYTES * MEDIA_REPEATS
    assert weight <= len(prompt(large)) < weight + 100
    assert prompt(large, text) == prompt(large, text) != prompt(other, text) != prompt(sound, text)
    assert b"what is this?" in prompt(sound, text) and b"AAAA" not in prompt(large)


@pytest.mark.parametrize("stage", ["apart", "pairs", "queued", "whole"])
async def test_a_body_that_is_nested_too_deeply_is_the_clients_mistake(tmp_path: Path, stage: str) -> None:
    """It can be read and not written. An aggregated pool gets it as it came; nobody else may take it for a fault of ours."""
    async with engines("p", "d") as (p, d):
        made = {"pairs": over("sglang-bootstrap", [p], [d]), "whole": plain_unit([d])}.get(stage, pd_unit([p], [d]))
        async with router(tmp_path, table(made), prefill_inflight=1) as bench:
            first = await bench.connect()
            if stage == "queued":
                first.writer.write(message(chat(f"PSLOW {LONG}")))
                await p.next_post()
            second = await bench.connect()
            second.writer.write(message((json.dumps(chat(LONG))[:-1] + ',"odd":' + "[" * 300 + "]" * 300 + "}").encode()))
            if stage == "queued":
                async with asyncio.timeout(10):
                    while not bench.app.stage.units["u-1"].gate.depth:
                        await asyncio.sleep(0.001)
                p.release.set()
                assert (await first.read_answer()).status == 200
            answer = await second.read_answer()
            if stage == "whole":
                assert answer.status == 200
            else:
                assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_json")
            gate, counters = bench.app.stage.units["u-1"].gate, bench.counters()
            assert (gate.depth, gate.inflight, bench.app.stage.inflight, bench.app.failures) == (0, 0, {}, {}) and "errors" not in counters
            assert all(not state.running for state in bench.app.stage.replicas.values())


async def test_the_official_client_calls_tools_through_prefill_and_decode(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        client = openai.AsyncOpenAI(base_url=bench.app.url + "/v1", api_key="x", max_retries=0)
        asked: Any = {"messages": TALK, "tools": [TOOL]}
        stream: Any = await client.chat.completions.create(model=MODEL, stream=True, **asked)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == "one two three four five six"
        assert p.posts[0].body["tools"] == d.posts[0].body["tools"] == [TOOL]
        await client.close()


async def test_a_full_queue_takes_from_who_has_most(tmp_path: Path) -> None:
    """One client with many requests keeps nobody out: its newest are told to come back."""
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d])), prefill_inflight=1, queue_limit=3) as bench:
        gate = bench.app.stage.units["u-1"].gate
        greedy = [await bench.connect() for _ in range(4)]
        for count, raw in enumerate(greedy):
            raw.writer.write(message(chat(f"{count} PSLOW {LONG}"), headers={"authorization": "Bearer greedy"}))
            async with asyncio.timeout(10):
                while gate.depth + gate.inflight <= count:
                    await asyncio.sleep(0.001)
        modest = await bench.connect()
        modest.writer.write(message(chat(f"modest {LONG}"), headers={"authorization": "Bearer modest"}))
        turned_away = await greedy[-1].read_answer()
        assert turned_away.status == 429 and int(turned_away.headers["retry-after"]) >= 1 and gate.depth == 3
        again = await bench.ask(chat(f"once more {LONG}"), headers={"authorization": "Bearer greedy"})
        assert again.status == 429  # it has more than its part already
        p.release.set()
        for raw in (*greedy[:-1], modest):
            assert (await raw.read_answer()).status == 200
        assert (bench.counters()["errors.queue-full"], gate.depth, gate.inflight) == (2, 0, 0)


async def test_where_decode_never_works_alone_an_aggregated_unit_answers_when_prefill_fails(tmp_path: Path) -> None:
    async with engines("p", "d", "a") as (p, d, a):
        units = (over("sglang-bootstrap", [p], [d]), plain_unit([a], unit="u-2", release="ds-flash@2"))
        async with router(tmp_path, table(*units, weights={"ds-flash@1": 9999, "ds-flash@2": 1})) as bench:
            a.release.set()  # it is not slow
            for _ in range(2):
                assert (await bench.ask(chat("P500 DSLOW"))).text == "one two three four five six"
            assert len(a.posts) == 2 and a.posts[0].body.keys().isdisjoint(ADDED)
            counters = bench.counters()
            assert counters["retried.prefill"] == 2 and counters["reason.fallback-release"] == 2 and "errors" not in counters
            assert bench.app.stage.inflight == {}
