"""Who gets what, over real sockets: weights, draining, fallback, ejection, stickiness, prefix affinity."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fleets.domain.protocol import ReplicaReadiness
from fleets.router.gauges import Gauges
from tests.integration.fake_engine import FakeEngine, engines
from tests.integration.router_bench import Bench, chat, pd_unit, plain_unit, router, table

LONG = " word" * 4000


async def _burst(bench: Bench, count: int, **headers: str) -> None:
    for number in range(count):
        assert (await bench.ask(chat(f"{number} {headers}"), headers=headers)).status == 200


def _posts(*members: FakeEngine) -> list[int]:
    return [len(engine.posts) for engine in members]


async def test_weights_are_exact_and_weight_zero_gets_nothing(tmp_path: Path) -> None:
    async with engines("a", "b", "c") as (a, b, c):
        units = [plain_unit([engine], unit=f"u-{engine.name}", release=f"ds-flash@{number}") for number, engine in enumerate((a, b, c), 1)]
        weights = {"ds-flash@1": 9000, "ds-flash@2": 1000, "ds-flash@3": 0}
        async with router(tmp_path, table(*units, weights=weights)) as bench:
            await _burst(bench, 40)
            assert _posts(a, b, c) == [36, 4, 0]


async def test_two_units_of_one_release_do_not_change_its_share(tmp_path: Path) -> None:
    async with engines("a", "b", "c") as (a, b, c):
        units = [
            plain_unit([a], unit="u-a", release="ds-flash@1"),
            plain_unit([b], unit="u-b", release="ds-flash@2"),
            plain_unit([c], unit="u-c", release="ds-flash@2"),
        ]
        async with router(tmp_path, table(*units, weights={"ds-flash@1": 5000, "ds-flash@2": 5000})) as bench:
            await _burst(bench, 20)
            assert len(a.posts) == 10 and min(_posts(b, c)) >= 4


async def test_sessions_stay_on_their_release(tmp_path: Path) -> None:
    async with engines("a", "b") as (a, b):
        units = [plain_unit([engine], unit=f"u-{engine.name}", release=f"ds-flash@{number}") for number, engine in enumerate((a, b), 1)]
        async with router(tmp_path, table(*units, weights={"ds-flash@1": 5000, "ds-flash@2": 5000})) as bench:
            for session in range(12):
                await _burst(bench, 2, **{"x-session-id": f"s{session}"})
            by_session: dict[str, Counter[str]] = {}
            for engine in (a, b):
                for post in engine.posts:
                    by_session.setdefault(post.headers["x-session-id"], Counter())[engine.name] += 1
            assert all(len(counter) == 1 for counter in by_session.values())
            assert a.posts and b.posts


async def test_draining_and_unroutable_take_nothing_new(tmp_path: Path) -> None:
    async with engines("p", "a", "b", "c") as (p, a, b, c):
        draining = pd_unit([p], [a], unit="u-a", readiness=ReplicaReadiness.DRAINING)
        hidden = plain_unit([b], unit="u-b", routable=False)
        async with router(tmp_path, table(draining, hidden, plain_unit([c], unit="u-c"))) as bench:
            await _burst(bench, 6)
            assert _posts(p, a, b, c) == [0, 0, 0, 6]


async def test_release_without_a_usable_unit_falls_to_another_with_weight(tmp_path: Path) -> None:
    async with engines("a", "b", "warm") as (a, b, warm):
        units = [
            plain_unit([a], unit="u-a", release="ds-flash@1", routable=False),
            plain_unit([b], unit="u-b", release="ds-flash@2"),
            plain_unit([warm], unit="u-w", release="ds-flash@3"),
        ]
        async with router(tmp_path, table(*units, weights={"ds-flash@1": 5000, "ds-flash@2": 5000})) as bench:
            await _burst(bench, 10)
            assert _posts(a, b, warm) == [0, 10, 0]
            assert bench.counters()["reason.fallback-release"] == 5
            bench.app.table.take(table(units[0], units[2], weights={"ds-flash@1": 10_000}, generation=2))
            assert (await bench.ask(chat())).status == 503
            assert not warm.posts  # never to weight 0


async def test_prefill_and_decode_are_always_of_one_unit(tmp_path: Path) -> None:
    async with engines("p1", "d1", "p2", "d2") as (p1, d1, p2, d2):
        units = [pd_unit([p1], [d1], unit="u-1"), pd_unit([p2], [d2], unit="u-2")]
        async with router(tmp_path, table(*units)) as bench:
            await asyncio.gather(*(bench.ask(chat(f"{number}{LONG}")) for number in range(12)))
            assert {post.kv["remote_engine_id"] for post in d1.posts} == {"p1"}
            assert {post.kv["remote_engine_id"] for post in d2.posts} == {"p2"}


async def test_same_prefix_goes_to_the_same_prefill_replica(tmp_path: Path) -> None:
    async with engines("p", "q", "d") as (p, q, d), router(tmp_path, table(pd_unit([p, q], [d]), below=1)) as bench:
        for number in range(4):
            bench.app.stage.index.forget("r-d")  # decode holds nothing, so that all is remote
            await bench.ask(chat(LONG + str(number)))
        assert sorted(_posts(p, q)) == [0, 4]


async def test_replica_that_fails_is_ejected_and_comes_back(tmp_path: Path) -> None:
    async with engines("a", "b") as (a, b), router(tmp_path, table(plain_unit([a, b]))) as bench:
        bad = bench.app.stage.replicas["r-a"]
        for _ in range(12):
            await bench.ask(chat("D500" if not a.posts or bad.out_until_s is None else "fine"))
            if bench.app.stage.replicas["r-b"].failures:
                bench.app.stage.replicas["r-b"].reset()
            if bad.out_until_s is not None:
                break
        assert bad.out_until_s is not None and len(a.posts) == 3
        await _burst(bench, 4)
        assert len(a.posts) == 3
        assert bench.app.stage.units["u-1"].gauge().ejected == ("r-a",)
        bad.out_until_s = 0.0  # its time is over
        await _burst(bench, 4)
        assert len(a.posts) > 3 and bad.out_until_s is None


async def test_a_release_that_fails_as_a_whole_is_not_hidden(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        for _ in range(8):
            assert (await bench.ask(chat("D500"))).status == 500
        assert len(a.posts) == 8 and bench.counters()["errors.decode"] == 8


async def test_dead_replica_leaves_and_returns_by_polling(tmp_path: Path) -> None:
    async with engines("a", "b") as (a, b), router(tmp_path, table(plain_unit([a, b]))) as bench:
        gauges = Gauges(bench.app.stage, bench.app.pool, bench.app.telemetry)
        state = bench.app.stage.replicas["r-a"]
        a.kv_use = 0.7
        await gauges._one(state)
        assert state.kv_use == 0.7
        port = a.port
        await a.stop()
        await gauges._one(state)
        assert state.out_until_s is not None
        await _burst(bench, 4)
        assert len(b.posts) == 4
        await a.start(port)
        a.kv_use = 0.0
        await gauges._one(state)
        await _burst(bench, 4)
        assert a.posts and state.out_until_s is None


async def test_an_engine_that_makes_no_step_is_out_at_once_and_named_and_comes_back_when_it_moves(tmp_path: Path) -> None:
    config: dict[str, Any] = {"gauge_every_s": 1000.0, "hung_after_s": 0.2, "prefill_token_deadline_s": 0.0}
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a])), **config) as bench:
        gauges = bench.app.gauges
        state, unit, a.steps = bench.app.stage.replicas["r-a"], bench.app.stage.units["u-1"], 7
        for _ in range(2):  # idle for longer than that
            await gauges._one(state)
            await asyncio.sleep(0.3)
        assert not state.hung
        stuck = asyncio.ensure_future(bench.ask(chat("DHANG")))
        await a.next_post()
        a.deferred = 1  # it waits for another engine: that one may be at fault
        for _ in range(2):
            await gauges._one(state)
            await asyncio.sleep(0.3)
        assert not state.hung
        a.deferred = 0
        for _ in range(2):
            a.steps += 1  # slow, and no hang
            await gauges._one(state)
            await asyncio.sleep(0.3)
        assert unit.gauge().ejected == ()
        await gauges._one(state)
        assert "made no step" in unit.gauge().hung["e-a"] and unit.gauge().ejected == ("r-a",)
        a.steps += 1
        await gauges._one(state)
        assert unit.gauge().hung == {}
        a.release.set()
        assert (await stuck).status == 200 and unit.gauge().ejected == ()


async def test_an_engine_that_answers_no_question_is_out_until_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleets.router.gauges.DEADLINE_S", 0.1)
    monkeypatch.setattr("fleets.router.gauges._SILENT_S", 0.15)
    async with engines("a", "b") as (a, b), router(tmp_path, table(plain_unit([a, b])), gauge_every_s=1000.0) as bench:
        gauges = bench.app.gauges
        state, unit = bench.app.stage.replicas["r-a"], bench.app.stage.units["u-1"]
        await gauges._one(state)
        a.mute = True
        await gauges._one(state)
        assert unit.gauge().ejected == (), "one answer may be lost"
        await gauges._one(state)
        assert unit.gauge().ejected == ("r-a",)
        await _burst(bench, 4)
        assert _posts(a, b) == [0, 4]
        a.mute = False
        await gauges._one(state)
        await _burst(bench, 4)
        assert a.posts and unit.gauge().ejected == ()


async def test_suspect_replica_is_out_at_its_first_failure(tmp_path: Path) -> None:
    late = ReplicaReadiness.SUSPECT
    async with engines("p", "q", "d") as (p, q, d), router(tmp_path, table(pd_unit([p, q], [d], readiness=late))) as bench:
        await bench.ask(chat("P500" + LONG))
        assert [bench.app.stage.replicas[name].out_until_s is not None for name in ("r-p", "r-q")] == [True, False]
