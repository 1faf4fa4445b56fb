"""What a client gets, and what is counted, when engines or clients misbehave."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from metrics.domain.types import AlarmCount, AlarmSpec
from metrics.domain.verdict import Arms, JudgeState, state_look, verdict_of
from metrics.domain.window import Figures
from tests.integration.fake_engine import WORDS, engines
from tests.integration.router_bench import chat, message, pd_unit, plain_unit, router, table

LONG = " word" * 4000


async def test_prefill_400_is_passed_on_and_decode_not_asked(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        answer = await bench.ask(chat("P400" + LONG))
        assert answer.status == 400 and answer.json["error"]["type"] == "BadRequestError" and not d.posts
        counters = bench.counters()
        assert "errors" not in counters and counters["client-errors"] == 1


@pytest.mark.parametrize("marker", ["P500", "P503", "P429", "PDROP"])
async def test_failed_prefill_is_tried_elsewhere_then_done_locally(tmp_path: Path, marker: str) -> None:
    async with engines("p", "q", "d") as (p, q, d), router(tmp_path, table(pd_unit([p, q], [d]))) as bench:
        answer = await bench.ask(chat(marker + LONG))
        assert answer.status == 200 and answer.text == "".join(WORDS)
        assert len(p.posts) == len(q.posts) == len(d.posts) == 1
        assert "kv_transfer_params" not in d.posts[0].body
        counters = bench.counters()
        assert counters["reason.prefill-failed-local"] == 1 and "errors" not in counters


async def test_prefill_that_cannot_be_reached_is_skipped(tmp_path: Path) -> None:
    async with engines("p", "q", "d") as (p, q, d), router(tmp_path, table(pd_unit([p, q], [d]))) as bench:
        await p.stop()
        for number in range(4):
            assert (await bench.ask(chat(f"{number}{LONG}"))).text == "".join(WORDS)
        assert len(q.posts) == 4
        assert bench.counters()["reason.remote"] == 4


async def test_hung_prefill_is_bypassed(tmp_path: Path) -> None:
    async with (
        engines("p", "d") as (p, d),
        router(tmp_path, table(pd_unit([p], [d])), prefill_deadline_s=0.1, prefill_token_deadline_s=0.0) as bench,
    ):
        answer = await bench.ask(chat("PHANG" + LONG))
        assert answer.status == 200 and answer.text == "".join(WORDS)
        await asyncio.wait_for(p.posts[0].ended.wait(), 2)
        assert p.posts[0].disconnected
        assert bench.counters()["reason.prefill-failed-local"] == 1


@pytest.mark.parametrize("marker", ["PNOKV", "PGARBAGE"])
async def test_kv_that_never_moves_is_counted(tmp_path: Path, marker: str) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        assert (await bench.ask(chat(marker + LONG))).status == 200
        counters = bench.counters()
        assert counters["kv.recomputed"] == 1 and "tokens.remote" not in counters


@pytest.mark.parametrize("stream", [True, False])
async def test_decode_500_is_an_openai_error_without_addresses(tmp_path: Path, stream: bool) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        answer = await bench.ask(chat("D500", stream=stream))
        assert answer.status == 500 and "says 500" in answer.json["error"]["message"]
        assert str(a.port) not in answer.body.decode() and "127.0.0.1" not in answer.body.decode()
        assert len(a.posts) == 1
        counters = bench.counters()
        assert counters["errors"] == counters["errors.decode"] == 1


async def test_decode_400_is_passed_on(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        assert (await bench.ask(chat("D400"))).status == 400
        assert "errors" not in bench.counters()


@pytest.mark.parametrize("marker", ["DCUT", "DNODONE"])
async def test_a_stream_that_is_cut_ends_with_an_error_event(tmp_path: Path, marker: str) -> None:
    async with engines("a", "b") as (a, b), router(tmp_path, table(plain_unit([a, b]))) as bench:
        answer = await bench.ask(chat(marker))
        assert answer.status == 200 and answer.events[-1]["error"]["code"] == "stream_cut"
        assert len(a.posts) + len(b.posts) == 1  # never again after the first byte
        counters = bench.counters()
        assert counters["errors.stream-cut"] == 1


async def test_an_error_inside_a_stream(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        answer = await bench.ask(chat("DERROR" + LONG))
        assert any("error" in event for event in answer.events if event != "[DONE]")
        assert "10.1.2.3" not in answer.body.decode()
        counters = bench.counters()
        assert counters["errors.decode"] == 1 and counters["kv.failed"] == 1


async def test_decode_that_ends_without_a_byte_is_tried_once_more(tmp_path: Path) -> None:
    async with engines("a", "b") as (a, b), router(tmp_path, table(plain_unit([a, b]))) as bench:
        answer = await bench.ask(chat("DDROP"))
        assert answer.status == 502 and answer.json["error"]["code"] == "engine_error"
        assert len(a.posts) == len(b.posts) == 1
        counters = bench.counters()
        assert counters["errors.decode"] == 1 and counters["retried.cut"] == 1


async def test_unreachable_decode_is_tried_elsewhere_and_no_unit_is_503(tmp_path: Path) -> None:
    async with engines("a", "b") as (a, b), router(tmp_path, table(plain_unit([a, b]))) as bench:
        await a.stop()
        for _ in range(3):
            assert (await bench.ask(chat())).status == 200
        await b.stop()
        answer = await bench.ask(chat())
        assert answer.status == 503 and answer.json["error"]["code"] == "no_unit" and answer.headers["retry-after"]
        counters = bench.counters()
        assert counters["errors.no-unit"] == 1 and counters["requests"] == 4


async def test_hung_decode_is_a_timeout(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a])), first_byte_deadline_s=0.1) as bench:
        answer = await bench.ask(chat("DHANG"))
        assert answer.status == 504 and answer.json["error"]["code"] == "timeout"
        assert bench.counters()["errors.timeout"] == 1


async def test_client_that_leaves_during_prefill_ends_it(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat("PSLOW" + LONG)))
        leg = await p.next_post()
        raw.writer.close()
        await asyncio.wait_for(leg.ended.wait(), 2)
        assert leg.disconnected and not d.posts
        counters = bench.counters()
        assert counters["cancelled"] == 1 and "errors" not in counters
        assert bench.app.stage.units["u-1"].gate.inflight == 0


async def test_client_that_leaves_before_decode_answers_frees_the_kv(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat("DSLOW" + LONG)))
        leg = await d.next_post()
        assert p.held
        raw.writer.close()
        d.release.set()
        await asyncio.wait_for(leg.ended.wait(), 3)
        assert not p.held
        assert bench.counters()["cancelled"] == 1


async def test_client_that_leaves_during_decode_ends_it(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat("DPAUSE")))
        await raw.reader.readuntil(b" three")
        raw.writer.close()
        await asyncio.wait_for(a.posts[0].ended.wait(), 2)
        assert a.posts[0].disconnected
        counters = bench.counters()
        assert counters["cancelled"] == 1 and "errors" not in counters and bench.app.stage.inflight == {}


async def test_full_prefill_queue_is_429(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d])), prefill_inflight=1, queue_limit=1) as bench:
        raws = [await bench.connect() for _ in range(2)]
        for raw in raws:
            raw.writer.write(message(chat("PSLOW" + LONG)))
        await p.next_post()
        gate = bench.app.stage.units["u-1"].gate
        while not gate.depth:
            await asyncio.sleep(0)
        assert bench.app.stage.units["u-1"].gauge().prefill_queue == 1
        answer = await bench.ask(chat(LONG))
        assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1 and answer.json["error"]["type"] == "rate_limit_error"
        assert (await bench.ask(chat("short"))).status == 200  # local requests do not queue
        p.release.set()
        for raw in raws:
            assert (await raw.read_answer()).text == "".join(WORDS)
        assert bench.counters()["errors.queue-full"] == 1


async def test_a_replica_with_enough_to_compute_gets_no_more_and_the_shorter_prompt_goes_first(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d):
        unit = replace(pd_unit([p], [d]), prefill_tokens=2000)
        async with router(tmp_path, table(unit)) as bench:
            gate, raws = bench.app.stage.units["u-1"].gate, [await bench.connect() for _ in range(3)]
            for waiting, (raw, text) in enumerate(zip(raws, ("PSLOW" + LONG * 2, "second" + LONG * 2, "third" + LONG), strict=True)):
                raw.writer.write(message(chat(text)))
                while gate.depth + gate.inflight <= waiting:
                    await asyncio.sleep(0)
            assert (gate.depth, gate.inflight) == (2, 1)
            p.release.set()
            for raw in raws:
                assert (await raw.read_answer()).status == 200
            assert [post.body["messages"][0]["content"][:5] for post in p.posts] == ["PSLOW", "third", "secon"]


async def test_8_mib_body(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        assert (await bench.ask(chat("x" * (8 << 20)))).text == "".join(WORDS)
        assert len(d.posts[0].body["messages"][0]["content"]) == 8 << 20


async def test_several_samples_go_local(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        assert (await bench.ask(chat(LONG, n=2, logprobs=True))).status == 200
        assert not p.posts and d.posts[0].body["n"] == 2
        assert bench.counters()["reason.samples-local"] == 1


async def test_an_engine_that_closed_a_kept_connection_is_no_failure(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        a.keep_alive = False
        for _ in range(3):
            assert (await bench.ask(chat())).status == 200
        assert "errors" not in bench.counters()


async def test_kv_that_decode_silently_computes_again_is_counted(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        gauges, state = bench.app.gauges, bench.app.stage.replicas["r-d"]
        await gauges._one(state)
        for number in range(3):
            await bench.ask(chat(f"{number}{LONG}"))
        await gauges._one(state)
        assert bench.counters()["reason.remote"] == 3 and "kv.recomputed" not in bench.counters()
        d.fetches = False
        for number in range(3, 6):
            await bench.ask(chat(f"{number}{LONG}"))
        await gauges._one(state)
        counters = bench.counters()
        assert counters["kv.recomputed"] == 3 and "errors" not in counters
        await gauges._one(state)
        assert not bench.counters()


async def test_kv_that_never_moved_breaks_its_alarm_though_every_answer_is_a_200(tmp_path: Path) -> None:
    alarms = [
        AlarmSpec("kv-effective", "kv-effective", 0.01),
        AlarmSpec("prefill-queue", "prefill-queue", 0.01, limit=8),
        AlarmSpec("kv-use", "kv-use", 0.01, limit=0.5),
        AlarmSpec("error-rate", "error-rate", 0.01),
    ]
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]), alarms=alarms)) as bench:
        gauges, state = bench.app.gauges, bench.app.stage.replicas["r-d"]
        d.kv_use, d.fetches = 0.6, False
        await gauges._one(state)
        for number in range(8):
            assert (await bench.ask(chat(f"{number}{LONG}"))).status == 200
        await bench.ask(chat("PNOKV" + LONG))  # an answer of prefill with nothing to fetch says it itself
        await gauges._one(state)
        found = Figures()
        for delta in bench.deltas():
            found.add_alarms(delta.alarms)
        counts = {name: (count.n, count.k) for name, count in found.alarms.items()}
        assert (counts["error-rate"], counts["prefill-queue"]) == ((9, 0), (9, 0))
        assert all(counts[name][0] == counts[name][1] for name in ("kv-use", "kv-effective"))
        assert counts["kv-use"][0] >= 2 and counts["kv-effective"][0] >= 8
        arms = Arms(canary=found.alarms["kv-effective"], baseline=AlarmCount(800, 0))
        verdict = verdict_of(alarms[0], state_look(alarms[0], JudgeState(), arms, datetime.now(UTC)), arms, alpha=0.002, fresh=True)
        assert verdict.tripped and verdict.relative_evidence is not None and verdict.relative_evidence > verdict.trips_at
        assert "were computed again, their KV never moved (100%" in verdict.sentence
