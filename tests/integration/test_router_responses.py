"""`/v1/responses`: passed to aggregated pools, whole or as named events, with its own words for usage; nothing is stored."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleets.router.answer import Answer as Told
from fleets.router.responses import ResponsesRelay
from fleets.router.taker import LegError
from fleets.router.telemetry import Trace
from metrics.domain.types import Metric
from tests.integration.fake_engine import WORDS, FakeEngine, Seen, engines
from tests.integration.router_bench import MODEL, Answer, pd_unit, plain_unit, router, table

PATH = "/v1/responses"
USAGE = {"input_tokens": 20, "output_tokens": 6, "total_tokens": 26, "input_tokens_details": {"cached_tokens": 16}}


def response(status: str, **more: Any) -> dict[str, Any]:
    said = {"type": "message", "id": "m-1", "role": "assistant", "status": "completed"}
    output = [said | {"content": [{"type": "output_text", "text": "".join(WORDS), "annotations": []}]}]
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "error": None, "model": MODEL, "output": output}
    return (
        whole | {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": USAGE if status == "completed" else None} | more
    )


def event(number: int, kind: str, **more: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **more}, separators=(',', ':'))}\n\n".encode()


def deltas(count: int = len(WORDS)) -> list[bytes]:
    places: dict[str, Any] = {"item_id": "m-1", "output_index": 0, "content_index": 0, "logprobs": []}
    return [event(2 + at, "response.output_text.delta", delta=word, **places) for at, word in enumerate(WORDS[:count])]


def stream_of(text: str) -> list[bytes]:
    """As vLLM 0.32 has them; a marker in `text` says how it goes wrong."""
    begin = [
        event(0, "response.created", response=response("in_progress")),
        event(1, "response.in_progress", response=response("in_progress")),
    ]
    if "RCUT" in text:
        return [*begin, *deltas(3)]
    if "RERROR" in text:
        return [*begin, *deltas(3), event(9, "error", code="server_error", message="died at http://10.0.0.1:8000/x", param=None)]
    if "RFAIL" in text:
        failed = response("failed", error={"code": "server_error", "message": "died at 10.0.0.1:8000"})
        return [*begin, *deltas(3), event(9, "response.failed", response=failed)]
    if "RSHORT" in text:
        return [*begin, *deltas(), event(9, "response.incomplete", response=response("incomplete", usage=USAGE))]
    return [*begin, *deltas(), event(9, "response.completed", response=response("completed"))]


async def say(engine: FakeEngine, seen: Seen, writer: asyncio.StreamWriter, text: str) -> bool:
    """An engine's answer to such a request."""
    if not seen.body.get("stream"):
        engine._whole(writer, 200, json.dumps(response("completed")).encode())
        await writer.drain()
        return True
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for part in stream_of(text):
        if "RSPLIT" in text:
            engine._chunk(writer, part[:25])
            await writer.drain()
            await asyncio.sleep(0)
            part = part[25:]
        engine._chunk(writer, part)
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


@pytest.fixture(autouse=True)
def _speaks_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    other = FakeEngine._answer

    async def answer(engine: FakeEngine, seen: Seen, writer: asyncio.StreamWriter, text: str) -> bool:
        return await (say if seen.path == PATH else other)(engine, seen, writer, text)

    monkeypatch.setattr(FakeEngine, "_answer", answer)


def ask(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": text, "max_output_tokens": 6, "stream": True, **more}


def named(answer: Answer) -> list[str]:
    return [line[7:] for line in answer.body.decode().split("\n") if line.startswith("event: ")]


async def test_a_stream_is_passed_on_as_it_is_and_its_usage_counted(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        answer = await bench.ask(ask(reasoning={"effort": "low"}), path=PATH, headers={"x-request-id": "mine"})
        assert answer.body == b"".join(stream_of("")) and answer.headers["x-request-id"] == "mine"
        assert a.posts[0].body == ask(reasoning={"effort": "low"}) and a.posts[0].path == PATH
        (delta,) = bench.deltas()
        counted = delta.counters
        assert (counted["tokens.in"], counted["tokens.out"], counted["tokens.cached"]) == (20, 6, 16)
        assert counted["requests"] == 1 and "errors" not in counted and delta.histograms[Metric.TTFT].count == 1


async def test_a_whole_answer_too(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        answer = await bench.ask(ask(stream=False), path=PATH)
        assert answer.json == response("completed")
        assert bench.counters()["tokens.cached"] == 16


async def test_in_pieces(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        assert (await bench.ask(ask("RSPLIT"), path=PATH)).body == b"".join(stream_of(""))
        assert bench.counters()["tokens.out"] == 6


async def test_an_answer_that_met_its_limit_is_whole(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        assert named(await bench.ask(ask("RSHORT"), path=PATH))[-1] == "response.incomplete"
        counters = bench.counters()
        assert counters["tokens.out"] == 6 and "errors" not in counters


@pytest.mark.parametrize(
    ("marker", "last", "kind"), [("RCUT", "error", "stream-cut"), ("RERROR", "error", "decode"), ("RFAIL", "response.failed", "decode")]
)
async def test_a_stream_that_fails_ends_with_a_named_event_that_tells_no_address(tmp_path: Path, marker: str, last: str, kind: str) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        answer = await bench.ask(ask(marker), path=PATH)
        assert named(answer)[-1] == last and b"10.0.0.1" not in answer.body
        told = json.loads(answer.body.rstrip().rsplit(b"data: ", 1)[1])
        assert told["type"] == last and bench.counters()[f"errors.{kind}"] == 1


async def test_prefill_and_decode_apart_say_where_to_ask(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        answer = await bench.ask(ask(), path=PATH)
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_served") and "/v1/chat/completions" in answer.json["error"][
            "message"
        ]
        assert not p.posts and not d.posts and "errors" not in bench.counters()


async def test_between_an_aggregated_release_and_one_that_is_not_the_first_answers(tmp_path: Path) -> None:
    """A rollout from one to the other takes nothing away before its end."""
    async with engines("a", "p", "d") as (a, p, d):
        units = (plain_unit([a], unit="u-1", release="ds-flash@1"), pd_unit([p], [d], unit="u-2", release="ds-flash@2"))
        async with router(tmp_path, table(*units, weights={"ds-flash@1": 1000, "ds-flash@2": 9000})) as bench:
            for _ in range(4):
                assert (await bench.ask(ask(), path=PATH)).status == 200
            assert len(a.posts) == 4 and not p.posts and not d.posts
            assert (await bench.ask({"model": MODEL, "input": "a text"}, path="/v1/embeddings")).status == 200


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"input": None}, "input_missing"),
        ({"input": []}, "input_missing"),
        ({"input": [1]}, "input_missing"),
        ({"previous_response_id": "resp_1"}, "not_stored"),
        ({"background": True}, "not_stored"),
        ({"model": "other"}, "model_not_found"),
    ],
)
async def test_what_is_not_served_is_said(tmp_path: Path, more: dict[str, Any], code: str) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        answer = await bench.ask(ask(**more), path=PATH)
        assert answer.json["error"]["code"] == code and answer.status in (400, 404) and not a.posts


@pytest.mark.parametrize(("method", "path"), [("GET", f"{PATH}/resp_1"), ("DELETE", f"{PATH}/resp_1"), ("POST", f"{PATH}/resp_1/cancel")])
async def test_no_answer_is_kept_for_later(tmp_path: Path, method: str, path: str) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        answer = await bench.ask(b"", path=path, method=method)
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_stored") and "`input`" in answer.json["error"]["message"]


async def test_the_official_client(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        client = openai.AsyncOpenAI(base_url=bench.app.url + "/v1", api_key="x", max_retries=0)
        whole = await client.responses.create(model=MODEL, input="hello")
        assert whole.output_text == "".join(WORDS) and whole.usage is not None and whole.usage.input_tokens_details.cached_tokens == 16
        stream = await client.responses.create(model=MODEL, input="hello", stream=True)
        assert [one.delta async for one in stream if one.type == "response.output_text.delta"] == list(WORDS)
        await client.close()


class _Owner:
    def stream_ended(self) -> None:
        """Looked at by the test."""

    def failed(self, error: LegError) -> None:
        raise error

    def broken(self) -> None:
        raise AssertionError


@given(cuts=st.lists(st.integers(0, 10_000), max_size=12), kind=st.sampled_from(["", "RSHORT", "RCUT"]))
@settings(max_examples=40, deadline=None)
def test_split_anywhere_it_is_the_same(cuts: list[int], kind: str) -> None:
    data = b"".join(stream_of(kind))
    told, trace = Told("x"), Trace(0.0)
    relay = ResponsesRelay(told, trace, _Owner(), wants_usage=True)
    at = 0
    for cut in [*sorted(cut % len(data) for cut in cuts), len(data)]:
        relay.events(data[at:cut], 0)
        at = cut
    relay.finish_stream()
    assert b"".join(told.parts) == data and relay.done == (kind != "RCUT")
    assert trace.tokens == (3 if kind == "RCUT" else 6) and (trace.usage is not None) == (kind != "RCUT")
