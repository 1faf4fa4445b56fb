"""vLLM's prefill that pushes, over NIXL and over Mooncake: what each leg is told, and what becomes of KV that decode waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fleets.domain.protocol import RouteUnit
from fleets.domain.types import Role
from fleets.router.openai import parse
from fleets.router.wires import WIRES
from tests.integration.fake_engine import WORDS
from tests.integration.pushing_engine import PushingEngine, name_of, pushing
from tests.integration.router_bench import chat, message, pd_unit, router, table

PUSH, MOONCAKE = "vllm-nixl-push", "vllm-mooncake"
both = pytest.mark.parametrize("protocol", [PUSH, MOONCAKE])
LONG = "x" * 40  # 10 tokens, when one or more are prefilled remotely


def unit(protocol: str, prefills: Sequence[PushingEngine], decodes: Sequence[PushingEngine], *, width: int = 4) -> RouteUnit:
    made = pd_unit(prefills, decodes)
    known = [replace(item, tensor_parallel=width if item.role is Role.PREFILL else 0) for item in made.replicas]
    return replace(made, protocol=protocol, replicas=tuple(known))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.001)


@both
@pytest.mark.parametrize("stream", [True, False])
async def test_both_legs_are_under_way_at_once_and_meet(tmp_path: Path, protocol: str, stream: bool) -> None:
    async with pushing("p", "d") as (p, d), router(tmp_path, table(unit(protocol, [p], [d]), below=1)) as bench:
        raw = await bench.connect()
        body = chat(f"PSLOW {LONG}", stream=stream, min_tokens=3, kv_transfer_params={"remote_host": "evil"})
        raw.writer.write(message(body, headers={"x-request-id": "mine", "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}))
        first, second = await asyncio.gather(p.next_post(), d.next_post())
        p.release.set()
        answer = await raw.read_answer()
        assert (answer.text if stream else answer.json["choices"][0]["message"]["content"]) == "".join(WORDS)
        assert (first.body["stream"], first.body["max_tokens"], second.body["max_tokens"], second.body["stream"]) == (False, 1, 6, stream)
        assert "stream_options" not in first.body and second.body["min_tokens"] == 3
        assert first.body.get("min_tokens") == (1 if protocol == MOONCAKE else None)
        assert first.kv["do_remote_decode"] and not first.kv["do_remote_prefill"]
        assert second.kv["do_remote_prefill"] and not second.kv["do_remote_decode"] and "evil" not in str(second.body)
        assert name_of(first) == name_of(second)
        assert first.headers["x-request-id"] == second.headers["x-request-id"]
        assert first.headers["x-request-id"].startswith("mine.") and first.headers["traceparent"].startswith("00-1")
        assert answer.headers["x-request-id"] == "mine"
        counters = bench.counters()
        assert (counters["reason.remote"], counters["tokens.cached"]) == (1, 7)  # as prefill said, not decode
        assert bench.app.stage.inflight == {} and p.fabric.waiting == set()


@both
async def test_no_two_tries_have_a_name_in_common(tmp_path: Path, protocol: str) -> None:
    """vLLM matches legs by it: clients that send the same id would get each other's KV."""
    async with pushing("p", "d") as (p, d), router(tmp_path, table(unit(protocol, [p], [d]), below=1)) as bench:
        for _ in range(3):
            assert (await bench.ask(chat(LONG), headers={"x-request-id": "same"})).status == 200
        assert len(set(p.fabric.names)) == 3


async def test_a_prefill_without_a_known_identity_goes_first_and_says_it(tmp_path: Path) -> None:
    """One whose data-parallel ranks each have their own. Decode then gets what it said, word for word."""
    async with pushing("p", "d") as (p, d), router(tmp_path, table(unit(PUSH, [p], [d], width=0), below=1)) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat(f"PSLOW {LONG}")))
        first = await p.next_post()
        assert d.posts == []
        p.release.set()
        assert (await raw.read_answer()).text == "".join(WORDS)
        (second,) = d.posts
        assert second.kv["remote_num_tokens"] == 12345678901234567 and second.kv["remote_engine_id"] == "e-p"
        assert name_of(first) == name_of(second)


@both
@pytest.mark.parametrize("marker", ["P500", "P429", "PDROP"])
async def test_a_prefill_that_fails_is_tried_elsewhere_then_decode_does_it(tmp_path: Path, protocol: str, marker: str) -> None:
    async with pushing("p", "q", "d") as (p, q, d), router(tmp_path, table(unit(protocol, [p, q], [d]), below=1)) as bench:
        answer = await bench.ask(chat(f"{marker} {LONG}"))
        assert answer.text == "".join(WORDS)
        assert len(p.posts) == len(q.posts) == 1 and len(d.posts) == 3
        assert [bool(leg.kv) for leg in d.posts] == [True, True, False]
        for leg in d.posts[:2]:
            await asyncio.wait_for(leg.ended.wait(), 10)
            assert leg.disconnected and leg.words_sent == 0
        assert name_of(d.posts[0]) != name_of(d.posts[1])
        counters = bench.counters()
        assert counters["reason.prefill-failed-local"] == 1 and counters["prefill.failed"] == 2 and "errors" not in counters
        assert bench.app.stage.units["u-1"].gate.inflight == 0 and bench.app.stage.inflight == {}


async def test_a_prefill_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    async with pushing("p", "d") as (p, d), router(tmp_path, table(unit(PUSH, [p], [d]), below=1)) as bench:
        await p.stop()
        for _ in range(2):
            assert (await bench.ask(chat(LONG))).text == "".join(WORDS)
        assert bench.counters()["reason.prefill-failed-local"] == 1  # from then on it is out


async def test_after_prefills_deadline_decode_does_it(tmp_path: Path) -> None:
    """The client has waited long enough: no second prefill."""
    settings: dict[str, Any] = {"prefill_deadline_s": 0.2, "prefill_token_deadline_s": 0.0}
    async with pushing("p", "q", "d") as (p, q, d), router(tmp_path, table(unit(PUSH, [p, q], [d]), below=1), **settings) as bench:
        assert (await bench.ask(chat(f"PHANG {LONG}"))).text == "".join(WORDS)
        assert len(p.posts) + len(q.posts) == 1 and bench.counters()["reason.prefill-failed-local"] == 1


@both
@pytest.mark.parametrize("stream", [True, False])
async def test_a_decode_that_gets_no_kv_computes_it_itself(tmp_path: Path, protocol: str, stream: bool) -> None:
    async with pushing("p", "d") as (p, d), router(tmp_path, table(unit(protocol, [p], [d]), below=1)) as bench:
        answer = await bench.ask(chat(f"DLOST {LONG}", stream=stream))
        assert answer.status == 200 and len(d.posts) == 2 and not d.posts[1].kv
        counters = bench.counters()
        assert (counters["reason.kv-lost-local"], counters["kv.failed"], len(p.posts)) == (1, 1, 1)


@both
async def test_decode_is_never_asked_twice_once_the_client_has_a_word(tmp_path: Path, protocol: str) -> None:
    async with pushing("p", "d") as (p, d), router(tmp_path, table(unit(protocol, [p], [d]), below=1)) as bench:
        answer = await bench.ask(chat(f"DCUT {LONG}"))
        assert answer.events[-1]["error"]["code"] == "stream_cut" and len(d.posts) == len(p.posts) == 1


@both
async def test_a_client_that_leaves_during_prefill_strands_nothing(tmp_path: Path, protocol: str) -> None:
    """Prefill goes on, for decode would keep its blocks for ever; decode is hung up as soon as it has the KV."""
    async with pushing("p", "d") as (p, d), router(tmp_path, table(unit(protocol, [p], [d]), below=1)) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat(f"PSLOW DPAUSE {LONG}")))
        first, second = await asyncio.gather(p.next_post(), d.next_post())
        raw.writer.close()
        await until(lambda: not bench.app.pipeline.jobs)
        gate = bench.app.stage.units["u-1"].gate
        assert bench.counters()["cancelled"] == 1 and gate.inflight == 1 and not first.disconnected
        p.release.set()
        await p.fabric.all_free()
        for leg in (first, second):
            await asyncio.wait_for(leg.ended.wait(), 10)
        assert (first.disconnected, second.disconnected) == (False, True) and second.words_sent < len(WORDS)
        await until(lambda: not gate.inflight)
        assert bench.app.stage.replicas["r-p"].running == bench.app.stage.replicas["r-d"].running == 0


async def test_a_prefill_that_fails_after_its_client_has_left_ends_decode(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"prefill_deadline_s": 0.3, "prefill_token_deadline_s": 0.0}
    async with pushing("p", "d") as (p, d), router(tmp_path, table(unit(PUSH, [p], [d]), below=1), **settings) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat(f"PHANG {LONG}")))
        first, second = await asyncio.gather(p.next_post(), d.next_post())
        raw.writer.close()
        for leg in (first, second):
            await asyncio.wait_for(leg.ended.wait(), 10)
            assert leg.disconnected
        assert len(p.posts) == len(d.posts) == 1 and bench.app.stage.units["u-1"].gate.inflight == 0


async def test_kv_that_prefill_has_let_go_of_is_not_waited_for(tmp_path: Path) -> None:
    """Decode registered too late for the lease: nobody will ever push."""
    async with pushing("p", "d") as (p, d):
        short = replace(unit(PUSH, [p], [d]), kv_lease_s=0.02)
        async with router(tmp_path, table(short, below=1)) as bench:
            p.pushes = False
            raw = await bench.connect()
            raw.writer.write(message(chat(LONG)))
            await asyncio.gather(p.next_post(), d.next_post())
            bench.app.stage.replicas["r-d"].answered_s = float("inf")  # it lives, and says so
            async with asyncio.timeout(10):
                while len(d.posts) < 2:
                    bench.app.pipeline.mind_leases()
                    await asyncio.sleep(0.005)
            assert (await raw.read_answer()).text == "".join(WORDS)
            assert not d.posts[1].kv and bench.counters()["kv.expired"] == 1


@both
async def test_a_short_prompt_and_several_samples_stay_with_decode(tmp_path: Path, protocol: str) -> None:
    async with pushing("p", "d") as (p, d), router(tmp_path, table(unit(protocol, [p], [d]), below=5)) as bench:
        assert (await bench.ask(chat("hi"))).status == 200
        assert (await bench.ask(chat(LONG, n=2))).status == 200
        assert p.posts == [] and [leg.kv for leg in d.posts] == [{}, {}]


def test_decode_is_told_a_bootstrap_address_that_it_can_read() -> None:
    """Also where hosts have addresses with colons; and two tries never have a name in common."""

    @dataclass
    class Prefill:
        address: tuple[str, int]
        engine_id: str = "e-1"
        tensor_parallel: int = 0

    ask = parse("/v1/completions", b'{"model":"m","prompt":"x"}')
    for host, told in (("10.0.0.1", "http://10.0.0.1:8001"), ("fd00::1", "http://[fd00::1]:8001")):
        meeting = WIRES[MOONCAKE].meeting(ask, Prefill((host, 8000)), "n-1")
        assert meeting is not None and meeting["kv_transfer_params"]["remote_bootstrap_addr"] == told
        assert meeting["kv_transfer_params"]["transfer_id"] == "xfer-n-1"
    assert WIRES[PUSH].meeting(ask, Prefill(("10.0.0.1", 8000)), "n-1") is None  # its identity is not known
