"""Requests through the router, as clients see them."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from fleets.router.answer import Answer
from fleets.router.relay import Relay
from fleets.router.taker import LegError
from fleets.router.telemetry import Trace
from metrics.domain.types import AlarmSpec, Metric, Route, SeriesKey
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


async def test_short_prompts_and_cached_ones_stay_local(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        assert (await bench.ask(chat("forty tokens or so"))).status == 200
        assert not p.posts and "kv_transfer_params" not in d.posts[0].body
        assert (await bench.ask(chat(LONG))).status == 200
        assert (await bench.ask(chat(LONG + "and a new question"))).status == 200
        assert len(p.posts) == 1 and len(d.posts) == 3
        counters = bench.counters()
        assert (counters["reason.short"], counters["reason.remote"], counters["reason.cached"]) == (1, 1, 1)


async def test_prompt_tokens_are_calibrated_from_usage(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        text = "x" * 6000  # 1,500 tokens at four bytes each
        d.prompt_tokens = 600  # in truth ten bytes each
        for number in range(40):
            await bench.ask(chat(f"{number}" + "y" * 3900))
        before = len(p.posts)
        await bench.ask(chat(text))
        assert len(p.posts) == before


async def test_token_ids_are_counted_exactly(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        for count, posts in ((999, 0), (1000, 1)):
            body = {"model": "ds-flash", "prompt": [count] * count, "max_tokens": 3}
            assert (await bench.ask(body, path="/v1/completions")).status == 200
            assert len(p.posts) == posts


async def test_client_that_asks_for_usage_gets_it(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        answer = await bench.ask(chat(stream_options={"include_usage": True}))
        assert answer.events[-2]["usage"]["completion_tokens"] == len(WORDS)
        assert bench.counters()["tokens.out"] == len(WORDS)


async def test_models_health_ready_and_unknown_paths(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        assert (await bench.get("/v1/models")).json["data"][0]["id"] == "ds-flash"
        assert (await bench.get("/v1/models/ds-flash")).json["id"] == "ds-flash"
        assert (await bench.get("/v1/models/other")).status == 404
        assert (await bench.get("/health")).status == 200 and (await bench.get("/ready")).status == 200
        assert (await bench.get("/nothing")).json["error"]["code"] == "not_found"
        assert (await bench.get("/v1/chat/completions")).status == 405
        assert (await bench.ask({}, path="/v1/audio/speech")).status == 404
        assert (await bench.ask(chat() | {"model": "other"})).json["error"]["code"] == "model_not_found"
        assert (await bench.ask(b"{")).json["error"]["code"] == "invalid_json"
        assert not bench.counters()


async def test_without_a_table_it_is_not_ready(tmp_path: Path) -> None:
    async with router(tmp_path) as bench:
        assert (await bench.get("/ready")).status == 503 and (await bench.get("/health")).status == 200
        assert (await bench.ask(chat())).status == 503


async def test_metrics_page(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        await bench.ask(chat(LONG))
        await bench.ask(chat("D500"))
        bench.deltas()
        page = (await bench.get("/metrics")).body.decode()
        assert 'denv_router_decisions_total{stage="ds-flash/prod-us",unit="u-1"' in page and 'reason="remote"} 1' in page
        assert 'class="decode"} 1' in page
        assert "# TYPE denv_router_ttft_seconds histogram" in page and "denv_router_table_generation 1" in page
        assert 'denv_router_prefill_queue{stage="ds-flash/prod-us",unit="u-1",release="ds-flash@1"} 0' in page


async def test_phases_add_up_and_gaps_are_counted_per_arrival(tmp_path: Path) -> None:
    alarms = [
        AlarmSpec("ttft-p99", "ttft", 0.01, 1.5),
        AlarmSpec("itl-p99", "itl", 0.01, 0.005),
        AlarmSpec("error-rate", "error-rate", 0.01),
    ]
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]), alarms=alarms)) as bench:
        d.chunk_gap_s = 0.01
        await bench.ask(chat(LONG))
        (delta,) = bench.deltas()
        assert delta.key == SeriesKey("ds-flash/prod-us", "u-1", "ds-flash@1", "ds-flash@1", Route.REMOTE)
        sums = {metric: histogram.sum for metric, histogram in delta.histograms.items()}
        parts = sum(sums[metric] for metric in (Metric.QUEUE, Metric.PREFILL, Metric.KV_TRANSFER, Metric.FIRST_STEP))
        assert abs(parts - sums[Metric.TTFT]) < 3e-6
        (split,) = delta.split.values()
        assert split.n == 1 and split.prefill_us == round(sums[Metric.PREFILL] * 1e6)
        assert abs(sum(split[1:]) / 1e6 - sums[Metric.TTFT]) < 3e-6
        assert delta.histograms[Metric.ITL].count == len(WORDS) - 1
        assert sums[Metric.TTFT] + sums[Metric.ITL] <= sums[Metric.E2E]
        assert delta.alarms["ttft-p99"].n == delta.alarms["itl-p99"].n == delta.alarms["error-rate"].n == 1
        assert delta.alarms["itl-p99"].k == 1.0 and delta.alarms["itl-p99"].bets
        assert (delta.counters["goodput.of"], delta.counters.get("goodput.met", 0)) == (1, 0)  # its mean gap is over 5 ms
        await bench.ask(chat(LONG, stream=False))
        (delta,) = bench.deltas()
        assert "goodput.of" not in delta.counters  # an answer in one piece has no first token
        bench.app.telemetry.set_alarms([AlarmSpec("ttft-p99", "ttft", 0.01, 60.0)])
        await bench.ask(chat(LONG))
        (delta,) = bench.deltas()
        assert delta.counters["goodput.of"] == delta.counters["goodput.met"] == 1  # nothing is asked of its gaps


async def test_a_hang_over_the_limit_is_evidence_though_no_token_came(tmp_path: Path) -> None:
    alarms = [AlarmSpec("ttft-p99", "ttft", 0.01, 0.05)]
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]), alarms=alarms), first_byte_deadline_s=0.1) as bench:
        await bench.ask(chat("DHANG"))
        (delta,) = bench.deltas()
        assert (delta.alarms["ttft-p99"].n, delta.alarms["ttft-p99"].k) == (1, 1)


async def test_official_client(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        client = openai.AsyncOpenAI(base_url=f"{bench.app.url}/v1", api_key="k", max_retries=0)
        assert [model.id async for model in client.models.list()] == ["ds-flash"]
        stream = await client.chat.completions.create(
            model="ds-flash", messages=[{"role": "user", "content": LONG}], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "".join(WORDS)
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == len(WORDS)
        whole = await client.completions.create(model="ds-flash", prompt="hello", max_tokens=3)
        assert whole.choices[0].text == "".join(WORDS) and whole.usage is not None and whole.usage.completion_tokens == len(WORDS)
        texts = await client.completions.create(model="ds-flash", prompt="hello", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in texts]) == "".join(WORDS)
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="other", prompt="x")
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="ds-flash", messages=[{"role": "user", "content": "D400"}])
        cut = await client.chat.completions.create(model="ds-flash", messages=[{"role": "user", "content": "DCUT"}], stream=True)
        with pytest.raises(openai.APIError, match="ended early"):
            [chunk async for chunk in cut]
        await client.close()


def test_stream_split_at_every_byte_boundary() -> None:
    events = [
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        b": ping\n\n",
        'data: {"choices":[{"delta":{"content":"h\u00e9 \\"usage\\":{ [DONE"}}]}\n\n'.encode(),
        b'data: {"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}],"kv_transfer_params":{"remote_host":"10.0.0.1"}}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
        b"data: [DONE]\n\n",
    ]
    whole = b"".join(events)
    for cut in range(1, len(whole)):
        client, trace = _Memory("test"), Trace(0.0)
        relay = Relay(client, trace, _Owner(), wants_usage=False)
        relay.events(whole[:cut], 0)
        relay.events(whole[cut:], 0)
        relay.finish_stream()
        got = b"".join(client.parts)
        assert got.startswith(b"".join(events[:3])) and got.endswith(b"data: [DONE]\n\n"), cut
        assert b"10.0.0.1" not in got and b'"completion_tokens"' not in got
        assert trace.usage is not None and trace.usage.completion == 2 and trace.tokens == 2 and relay.done


class _Owner:
    """Of a stream that nobody else looks at."""

    def stream_ended(self) -> None: ...

    def failed(self, error: LegError) -> None: ...

    def broken(self) -> None: ...


class _Memory(Answer):
    """A client that keeps what it gets."""
