"""KV between prefill and decode: what the router takes from prefill, until when it may be fetched, and what is done when it is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleets.domain.protocol import RouteUnit
from fleets.router import handover
from fleets.router.handover import Leases
from fleets.router.wires import usable
from tests.integration.fake_engine import WORDS, engines
from tests.integration.router_bench import chat, message, pd_unit, router, table

LONG = " word" * 4000
WHOLE = {
    "do_remote_prefill": True,
    "remote_block_ids": [[4, 5]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 5600,
}


def soon_over(unit: RouteUnit) -> RouteUnit:
    """Its leases are over at once."""
    return replace(unit, kv_lease_s=0.0)


@pytest.mark.parametrize("name", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"])
@pytest.mark.parametrize("value", [None, "", [], [[]]])
def test_half_of_the_parameters_are_none(name: str, value: Any) -> None:
    assert usable(WHOLE) == WHOLE
    assert usable({key: kept for key, kept in WHOLE.items() if key != name}) is None
    if name == "remote_block_ids" or not isinstance(value, list):
        assert usable(WHOLE | {name: value}) is None


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_never_sees_half_of_the_parameters(tmp_path: Path, stream: bool) -> None:
    """vLLM's core would die of them; so decode computes the prompt, and it is counted."""
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        p.damage = {"remote_engine_id": None}
        assert (await bench.ask(chat(LONG, stream=stream))).status == 200
        assert "kv_transfer_params" not in d.posts[0].body
        assert bench.counters()["kv.recomputed"] == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_kv_that_does_not_come_costs_the_client_nothing(tmp_path: Path, stream: bool, path: str) -> None:
    """The error comes before the first word, in a stream after a head that says 200: the same decode computes the prompt."""
    body = chat("DLOST" + LONG, stream=stream)
    body = body if "chat" in path else {"model": body["model"], "prompt": "DLOST" + LONG, "stream": stream}
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        answer = await bench.ask(body, path=path)
        assert answer.status == 200
        assert (answer.text if stream else answer.json["choices"][0]["text"]) == "".join(WORDS)
        first, second = d.posts
        assert first.kv["remote_request_id"] and "kv_transfer_params" not in second.body
        assert len(p.posts) == 1
        counters = bench.counters()
        assert counters["kv.failed"] == counters["reason.kv-lost-local"] == 1
        assert "errors" not in counters and "tokens.remote" not in counters
        assert bench.app.stage.replicas["r-d"].running == 0 and bench.app.stage.inflight == {}


async def test_a_decode_that_fails_either_way_is_asked_twice_at_most(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        answer = await bench.ask(chat("D500" + LONG))
        assert answer.status == 500 and len(d.posts) == 2
        assert bench.counters()["errors.decode"] == 1


async def test_a_lifeless_decode_is_given_up_before_prefill_lets_go_of_the_kv(tmp_path: Path) -> None:
    """Another one gets KV of its own: what prefill said the first time is not used again."""
    async with engines("p", "d", "e") as (p, d, e), router(tmp_path, table(soon_over(pd_unit([p], [d, e])))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat("DSLOW" + LONG)))
        await asyncio.wait([asyncio.ensure_future(engine.next_post()) for engine in (d, e)], return_when=asyncio.FIRST_COMPLETED)
        lifeless, other = (d, e) if d.posts else (e, d)
        bench.app.pipeline.mind_leases()
        second = await other.next_post()
        bench.app.stage.replicas[f"r-{other.name}"].answered_s = float("inf")  # it lives
        bench.app.pipeline.mind_leases()
        other.release.set()
        assert (await raw.read_answer()).text == "".join(WORDS)
        (first,) = lifeless.posts
        await asyncio.wait_for(first.ended.wait(), 2)
        assert first.disconnected
        assert len(p.posts) == 2 and len(other.posts) == 1
        assert first.kv["remote_request_id"] != second.kv["remote_request_id"]
        counters = bench.counters()
        assert counters["kv.expired"] == counters["retried.lease"] == 1 and "errors" not in counters


@pytest.mark.parametrize("stream", [True, False])
async def test_without_another_decode_the_client_is_told(tmp_path: Path, stream: bool) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(soon_over(pd_unit([p], [d])))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat("DHANG" + LONG, stream=stream)))
        leg = await d.next_post()
        bench.app.pipeline.mind_leases()
        answer = await raw.read_answer()
        assert answer.status == 503 and answer.headers["retry-after"]
        await asyncio.wait_for(leg.ended.wait(), 2)
        assert bench.counters()["kv.expired"] == 1
        assert bench.app.stage.replicas["r-d"].running == 0 and bench.app.stage.inflight == {}


async def test_a_slow_decode_that_lives_is_waited_for(tmp_path: Path) -> None:
    """Its heartbeats keep the lease."""
    async with engines("p", "d") as (p, d), router(tmp_path, table(soon_over(pd_unit([p], [d])))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat("DSLOW" + LONG, stream=False)))
        await d.next_post()
        await bench.app.gauges._one(bench.app.stage.replicas["r-d"])
        bench.app.pipeline.mind_leases()
        d.release.set()
        assert (await raw.read_answer()).status == 200
        assert len(d.posts) == 1 and "kv.expired" not in bench.counters()


def test_what_a_halted_router_reads_may_be_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prefill alone is no reason: its answer was read when it came."""
    clock = [100.0]
    monkeypatch.setattr(handover, "now", lambda: clock[0])
    leases = Leases(1.0)
    for clock[0] in (101.0, 102.0):
        leases.look(())
    clock[0] = 130.0  # it was away since 102
    assert leases.stale(sent_s=110.0, lease_s=30.0) is False  # younger than the lease in any case
    assert leases.stale(sent_s=100.5, lease_s=30.0) is True
    for clock[0] in (131.0 + second for second in range(60)):
        leases.look(())
    assert leases.stale(sent_s=131.0, lease_s=30.0) is False  # a prefill of 59 s by a router that was there
    assert leases.stale(sent_s=129.0, lease_s=30.0) is True
