"""KV events: how much an engine holds by what it tells, and a prefix index that believes no more than that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleets.domain.protocol import ReplicaReadiness, RouteReplica, RouterTable, RouteUnit
from fleets.domain.types import Role
from fleets.engines.sim.config import Config
from fleets.engines.sim.events import KvEvents
from fleets.engines.sim.server import Engine
from fleets.router.kv_events import Holding
from fleets.router.prefix import COARSE_BYTES, FINE_BLOCKS, FINE_BYTES, PrefixIndex, blocks_of
from tests.integration.engine_support import free_base
from tests.integration.router_bench import MODEL, Bench, router, table

HELD = "r-held"
BLOCKS, BLOCK_TOKENS = 40, 64
RELEASE = "ds-flash@1"


def batch(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def stored(*hashes: object, medium: str = "GPU", group: int = 0, row: bool = False) -> object:
    """As vLLM 0.32 tells it, or in the row of earlier ones and of SGLang."""
    if row:
        return ["BlockStored", list(hashes), None, [1, 2, 3], 16, None, medium, None]
    fields = {"parent_block_hash": None, "token_ids": [1, 2, 3], "block_size": 16, "lora_id": None, "lora_name": None}
    return {"type": "BlockStored", "block_hashes": list(hashes), "medium": medium, "group_idx": group, "session_id": "s"} | fields


def removed(*hashes: object, row: bool = False) -> object:
    if row:
        return ["BlockRemoved", list(hashes), "GPU"]
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}


@pytest.mark.parametrize("row", [False, True])
def test_what_an_engine_holds_is_what_it_stored_less_what_it_removed(row: bool) -> None:
    holding = Holding()
    holding.take(0, batch(stored(1, 2**63, row=row), stored(b"x" * 32, row=row)))
    assert (holding.tokens, holding.shrunk) == (48, False)
    holding.take(1, batch(stored(1, 2**63, row=row), removed(1, row=row), ["BlockMoved", 5], {"type": "BlockMoved"}))
    assert (holding.tokens, holding.shrunk, holding.unread, holding.missed(2)) == (32, True, 2, False)
    holding.take(1, batch(removed(2**63, row=row)))  # by a replay, a second time
    assert (holding.tokens, holding.missed(3)) == (32, True)
    holding.take(2, batch(["AllBlocksCleared"] if row else {"type": "AllBlocksCleared"}))
    assert (holding.tokens, holding.cleared) == (0, True)


def test_tiers_count_apart_and_kinds_of_layers_once() -> None:
    holding = Holding()
    holding.take(0, batch(stored(1), stored(1, group=1), stored(1, medium="CPU"), removed(1), removed(7)))
    assert holding.tokens == 16


def test_without_the_beginning_it_is_not_known_until_the_cache_is_cleared() -> None:
    holding = Holding()
    assert holding.missed(7) and not holding.missed(0)
    holding.take(7, batch(stored(1)))
    assert not _known(holding)
    holding.take(8, batch({"type": "AllBlocksCleared"}, stored(2)))
    assert holding.tokens == 16
    holding.lose()
    assert not _known(holding)
    with pytest.raises(msgspec.DecodeError):
        holding.take(9, b"\x01")


def _known(holding: Holding) -> bool:
    return holding.tokens is not None


PROMPTS = [bytes([65 + index % 3]) * size + bytes([97 + index]) * 3000 for index, size in enumerate((0, 600, 600, 5000, 9000, 600))]


@given(st.lists(st.one_of(st.sampled_from(PROMPTS), st.integers(0, 20_000)), max_size=30))
def test_the_index_believes_no_more_than_the_limit_and_the_beginning_of_prompts_longest(steps: list[bytes | int]) -> None:
    index = PrefixIndex(60)
    index.track(HELD, tells=True)
    for step in steps:
        if isinstance(step, int):
            index.limit(HELD, step)
            assert _believed(index) <= step
        else:
            blocks = blocks_of(step)
            index.add(blocks, HELD)
            index.add(blocks, "r-other")
            assert index.held_by(blocks, HELD) == blocks.bytes_of(len(blocks.hashes))
            if blocks.hashes:
                index.limit(HELD, blocks.bytes_of(1))
                assert index.held_by(blocks, HELD) == blocks.bytes_of(1)
                assert index.held_by(blocks, "r-other") >= blocks.bytes_of(1)  # theirs is not touched


def _believed(index: PrefixIndex) -> int:
    """Bytes of all blocks that are believed to be there, each once."""
    found: dict[int, int] = {}
    for prompt in PROMPTS:
        blocks = blocks_of(prompt)
        held, covered = index.held_by(blocks, HELD), 0
        for depth, block in enumerate(blocks.hashes):
            covered += FINE_BYTES if depth < FINE_BLOCKS else COARSE_BYTES
            if covered <= held:
                found[block] = FINE_BYTES if depth < FINE_BLOCKS else COARSE_BYTES
    return sum(found.values())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def telling() -> AsyncIterator[Engine]:
    """A simulated engine with room for 2,560 tokens that tells what it holds."""
    base = free_base()
    events = next(port for port in iter(free_base, None) if abs(port - base) > 3)
    config = Config(
        port=base, model=MODEL, speed=50.0, kv_blocks=BLOCKS, block_tokens=BLOCK_TOKENS, events_port=events, replay_port=base + 2
    )
    engine = Engine(config, on_exit=lambda status, why: None)
    await engine.start()
    try:
        yield engine
    finally:
        engine.close()


def held_table(port: int, events_port: int, replay_port: int) -> RouterTable:
    """One replica that is asked, and one that drains: with a single one nobody would mind who holds what."""
    held = RouteReplica(
        HELD, Role.AGGREGATED, RELEASE, "127.0.0.1", port, engine_id="e-1", events_port=events_port, replay_port=replay_port
    )
    other = RouteReplica("r-other", Role.AGGREGATED, RELEASE, "127.0.0.1", port, ReplicaReadiness.DRAINING, "e-2")
    return table(RouteUnit("u-1", RELEASE, RELEASE, RELEASE, "c", True, False, "none", (held, other)))


def text(letter: str) -> str:
    """1,600 tokens of the simulated tokenizer: 25 blocks."""
    return letter * 6400


def held_bytes(bench: Bench, letter: str) -> int:
    return bench.app.stage.index.held_by(blocks_of(text(letter).encode()), HELD)


async def ask(bench: Bench, letter: str) -> None:
    body = {"model": MODEL, "prompt": text(letter), "max_tokens": 2}
    assert (await bench.ask(body, path="/v1/completions")).status == 200


async def test_what_an_engine_evicted_or_cleared_is_not_believed_any_more(tmp_path: Path) -> None:
    """The router starts late, so all that it knows of the engine's first prompt is a replay."""
    async with telling() as engine, httpx.AsyncClient(base_url=f"http://127.0.0.1:{engine.config.port}", verify=False) as client:
        early = {"model": MODEL, "prompt": text("z")[:800], "max_tokens": 2}
        assert (await client.post("/v1/completions", json=early)).status_code == 200
        config = engine.config
        async with router(tmp_path, held_table(config.port, config.events_port, config.replay_port)) as bench:
            await ask(bench, "a")
            await until(lambda: bench.app.kv_events.batches >= 2)
            whole = held_bytes(bench, "a")
            assert whole > 5000
            await ask(bench, "b")
            await until(lambda: held_bytes(bench, "a") < whole)
            assert held_bytes(bench, "b") > 0
            assert 0 < held_bytes(bench, "a") + held_bytes(bench, "b") <= BLOCKS * BLOCK_TOKENS * 4
            assert (await client.post("/reset_prefix_cache")).status_code == 200
            await until(lambda: held_bytes(bench, "b") == 0)
            assert bench.app.kv_events.lost == 0


async def test_events_that_are_gone_for_good_take_all_belief_along(tmp_path: Path) -> None:
    base = free_base()
    events = KvEvents("127.0.0.1", base, base + 1, block_tokens=BLOCK_TOKENS)
    try:
        async with router(tmp_path, held_table(base + 2, base, base + 1)) as bench:
            heard = bench.app.kv_events
            while not heard.batches:  # who subscribes hears only of what comes after the connection stands
                events.stored(b"1")
                await asyncio.sleep(0.02)
            bench.app.stage.index.add(blocks_of(text("a").encode()), HELD)
            assert held_bytes(bench, "a") > 0
            events._number += 1
            events.stored(b"2")
            await until(lambda: heard.lost == 1)
            assert held_bytes(bench, "a") == 0
            assert b"denv_router_kv_events_lost_total 1" in (await bench.get("/metrics")).body
    finally:
        events.close()
