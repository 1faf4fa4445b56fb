"""Requests through the router, as clients see them."""

from __future__ import annotations

from pathlib import Path

from tests.integration.fake_engine import WORDS, engines
from tests.integration.router_bench import chat, pd_unit, plain_unit, router, table

LONG = "word " * 4000  # about 5,000 tokens


async def test_stream_through_prefill_and_decode(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        body = chat(LONG, custom_field={"kept": 1})
        answer = await bench.ask(body, headers={"authorization": "Bearer secret", "x-request-id": "abc", "x-mine": "1"})
        assert answer.status == 200
        assert answer.text == "".join(WORDS)
        assert answer.events[-1] == "[DONE]"
        assert not any(event.get("usage") for event in answer.events[:-1])
        assert "server" not in answer.headers and answer.headers["x-request-id"] == "abc"
        first, second = p.posts[0], d.posts[0]
        assert first.body["stream"] is False and first.body["max_tokens"] == 1 and first.body["custom_field"] == {"kept": 1}
        assert second.body["stream"] is True and second.body["max_tokens"] == 6
        assert second.kv["remote_engine_id"] == "p" and second.kv["remote_num_tokens"] == 12345678901234567
        for leg in (first, second):
            assert leg.headers["authorization"] == "Bearer secret" and leg.headers["x-request-id"] == "abc" and leg.headers["x-mine"] == "1"
        assert second.body["stream_options"] == {"include_usage": True}
        assert not p.held
        counters = bench.counters()
        assert counters["requests"] == 1 and counters["reason.remote"] == 1 and "errors" not in counters
        assert counters["tokens.out"] == len(WORDS) and counters["tokens.cached"] == 7
        assert counters["tokens.remote"] == counters["tokens.in"] == counters["tokens.cached"] + counters["tokens.uncached"]


async def test_aggregated_whole_answer(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        answer = await bench.ask(chat(stream=False))
        assert answer.status == 200 and answer.json["choices"][0]["message"]["content"] == "".join(WORDS)
        assert a.posts[0].body == chat(stream=False)
        counters = bench.counters()
        assert counters["reason.aggregated"] == 1 and counters["tokens.out"] == len(WORDS)
