"""Prefill and decode that are asked at once, as SGLang's are: bodies, and what happens when one of them fails or a client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fleets.domain.protocol import RouteUnit
from tests.integration.fake_engine import WORDS, FakeEngine, engines
from tests.integration.router_bench import chat, message, pd_unit, router, table

ROOM = {"bootstrap_host", "bootstrap_port", "bootstrap_room"}


def pairs(prefills: Sequence[FakeEngine], decodes: Sequence[FakeEngine]) -> RouteUnit:
    for engine in prefills:
        engine.only_prefills = True
    return replace(pd_unit(prefills, decodes), protocol="sglang-bootstrap")


async def test_both_are_asked_for_the_same_in_one_room(tmp_path: Path) -> None:
    """Prefill's is not streamed. A client's own room would let it read another's KV, so it is replaced."""
    async with engines("p", "d") as (p, d), router(tmp_path, table(pairs([p], [d]))) as bench:
        body = chat("hello", bootstrap_room=7, bootstrap_host="evil", temperature=0.5)
        assert (await bench.ask(body)).text == "".join(WORDS)
        (first,), (second,) = p.posts, d.posts
        assert {name: first.body[name] for name in ROOM} == {name: second.body[name] for name in ROOM}
        assert (first.body["bootstrap_host"], first.body["bootstrap_port"]) == ("127.0.0.1", p.port + 1)
        assert 0 <= first.body["bootstrap_room"] < 2**63 and first.body["bootstrap_room"] != 7
        assert (first.body["stream"], second.body["stream"], first.body["max_tokens"], first.body["temperature"]) == (False, True, 6, 0.5)
        assert first.headers["x-request-id"] == second.headers["x-request-id"]
        assert (await bench.ask(chat("hello"))).status == 200
        assert p.posts[1].body["bootstrap_room"] != first.body["bootstrap_room"]
        assert bench.counters()["reason.remote"] == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_decode_is_asked_before_prefill_has_answered(tmp_path: Path, stream: bool) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pairs([p], [d]))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat("PSLOW", stream=stream)))
        await asyncio.gather(p.next_post(), d.next_post())
        assert (await raw.read_answer()).status == 200  # prefill's own answer may come last
        gate = bench.app.stage.units["u-1"].gate
        assert gate.inflight == 1  # it has its place until then
        p.release.set()
        await asyncio.wait_for(p.posts[0].ended.wait(), 2)
        while gate.inflight:
            await asyncio.sleep(0)
        assert bench.app.stage.replicas["r-p"].running == 0 and bench.app.stage.inflight == {}


@pytest.mark.parametrize("marker", ["P500", "P429", "PDROP"])
async def test_a_prefill_that_fails_takes_its_decode_with_it_and_both_are_asked_anew(tmp_path: Path, marker: str) -> None:
    """Once. A decode that waits in vain would keep its place for five minutes."""
    async with engines("p", "q", "d") as (p, q, d), router(tmp_path, table(pairs([p, q], [d]))) as bench:
        answer = await bench.ask(chat(f"{marker} DSLOW"))
        assert answer.status == 502 and answer.json["error"]["code"] == "prefill"
        assert len(p.posts) == len(q.posts) == 1 and len(d.posts) == 2
        for leg in d.posts:
            await asyncio.wait_for(leg.ended.wait(), 2)
            assert leg.disconnected
        assert d.posts[0].body["bootstrap_room"] != d.posts[1].body["bootstrap_room"]
        assert bench.app.stage.units["u-1"].gate.inflight == 0 and bench.app.stage.inflight == {}
        assert bench.counters()["errors.prefill"] == 1


async def test_a_request_that_prefill_refuses_is_refused(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pairs([p], [d]))) as bench:
        answer = await bench.ask(chat("P400 DSLOW"))
        assert answer.status == 400 and "says 400" in answer.json["error"]["message"]
        await asyncio.wait_for(d.posts[0].ended.wait(), 2)
        assert "errors" not in bench.counters()


async def test_a_request_that_decode_refuses_is_refused(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pairs([p], [d]))) as bench:
        assert (await bench.ask(chat("D400 PSLOW"))).status == 400
        await asyncio.wait_for(p.posts[0].ended.wait(), 2)
        assert p.posts[0].disconnected and bench.app.stage.units["u-1"].gate.inflight == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_decode_that_fails_is_asked_anew_with_another_prefill(tmp_path: Path, stream: bool) -> None:
    async with engines("p", "q", "d") as (p, q, d), router(tmp_path, table(pairs([p, q], [d]))) as bench:
        answer = await bench.ask(chat("D500 PSLOW", stream=stream))
        assert answer.status == 502 and len(d.posts) == 2
        for engine in (p, q):
            (leg,) = engine.posts
            await asyncio.wait_for(leg.ended.wait(), 2)
            assert leg.disconnected
        counters = bench.counters()
        assert counters["errors.prefill"] == 1 and bench.app.stage.units["u-1"].gate.inflight == 0


async def test_a_client_that_leaves_ends_both(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pairs([p], [d]))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat("PSLOW DSLOW")))
        legs = await asyncio.gather(p.next_post(), d.next_post())
        raw.writer.close()
        for leg in legs:
            await asyncio.wait_for(leg.ended.wait(), 2)
            assert leg.disconnected
        assert bench.counters()["cancelled"] == 1 and bench.app.stage.units["u-1"].gate.inflight == 0


async def test_without_a_prefill_there_is_no_unit(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pairs([p], [d]))) as bench:
        await p.stop()
        first, second = await bench.ask(chat("hello")), await bench.ask(chat("hello"))
        assert (first.status, second.status) == (502, 503)
        bench.app.apply(table(pairs([], [d]), generation=2))
        assert (await bench.ask(chat("hello"))).json["error"]["code"] == "no_unit"
