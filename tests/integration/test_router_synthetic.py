"""Requests that a router makes itself while a new release is judged: on both releases, by the usual way, and never users'."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fleets.domain.protocol import RouterTable, Synthetic
from metrics.domain.types import AlarmSpec
from tests.integration.fake_engine import FakeEngine, engines
from tests.integration.router_bench import Bench, chat, pd_unit, router, table

OLD, NEW = "ds-flash@1", "ds-flash@2"
WANTED = Synthetic(1.0, 8, prompts=("one", "word " * 4000), releases=(NEW, OLD))
ALARMS = [AlarmSpec("ttft-p99", "ttft", 0.01, 1.5), AlarmSpec("error-rate", "error-rate", 0.01)]


def _table(old: tuple[FakeEngine, FakeEngine], new: tuple[FakeEngine, FakeEngine], **changes: object) -> RouterTable:
    units = [pd_unit([p], [d], unit=f"u-{release}", release=release) for release, (p, d) in ((OLD, old), (NEW, new))]
    whole = table(*units, weights={OLD: 10_000 - 100, NEW: 100}, alarms=ALARMS)
    return replace(whole, synthetic=WANTED, **changes)  # type: ignore[arg-type]  # fields of the table


@asynccontextmanager
async def _bench(tmp_path: Path, **changes: object) -> AsyncIterator[tuple[Bench, list[FakeEngine]]]:
    async with engines("p", "d", "q", "e") as made:
        p, d, q, e = made
        async with router(tmp_path, _table((p, d), (q, e), **changes)) as bench:
            yield bench, [p, d, q, e]


async def _pair(bench: Bench) -> bool:
    made = bench.app.tester.pair(WANTED)
    await bench.app.tester.settled()
    return made


async def test_a_pair_goes_the_usual_way_and_counts_apart(tmp_path: Path) -> None:
    async with _bench(tmp_path) as (bench, (p, d, q, e)):
        assert await _pair(bench) and await _pair(bench)
        assert (len(d.posts), len(e.posts)) == (2, 2)
        assert (len(p.posts), len(q.posts)) == (1, 1)  # the long prompt was prefilled remotely, as anybody's is
        assert d.posts[0].body["max_tokens"] == 8
        deltas = bench.deltas()
        assert all(delta.key.probe for delta in deltas)
        counts = {
            name: [delta.alarms[name].n for delta in deltas if delta.key.decode_release == NEW] for name in ("ttft-p99", "error-rate")
        }
        assert sum(counts["ttft-p99"]) == sum(counts["error-rate"]) == 2


async def test_none_is_made_while_users_ask_enough(tmp_path: Path) -> None:
    async with _bench(tmp_path, weights={NEW: 9_900, OLD: 100}) as (bench, _):
        await bench.ask(chat("hello"))
        assert not await _pair(bench)
        assert await _pair(bench)  # and nobody since


async def test_none_is_made_without_a_canary_or_its_baseline(tmp_path: Path) -> None:
    async with _bench(tmp_path) as (bench, (p, d, q, e)):
        await e.stop()
        assert await _pair(bench)  # it finds out
        failed = {delta.key.decode_release: count.k for delta in bench.deltas() if (count := delta.alarms.get("error-rate"))}
        assert failed == {OLD: 0, NEW: 1} and len(d.posts) == 1
        assert not await _pair(bench)
        bench.app.table.take(replace(_table((p, d), (q, e)), generation=2, weights={OLD: 10_000}), keep=False)
        assert not await _pair(bench) and len(d.posts) == 1


async def test_a_router_that_stops_makes_no_more(tmp_path: Path) -> None:
    async with _bench(tmp_path) as (bench, (_, d, _, _)):
        await bench.app.tester.close()
        assert not await _pair(bench) and not d.posts


async def test_a_check_of_a_unit_is_no_evidence(tmp_path: Path) -> None:
    async with _bench(tmp_path) as (bench, _):
        unit = bench.app.stage.units[f"u-{NEW}"]
        assert (await bench.app.prober.probe(unit)).ok
        (delta,) = bench.deltas()
        assert delta.key.probe and delta.counters["requests"] == 1 and not delta.alarms
