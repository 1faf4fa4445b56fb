"""Embeddings: passed to aggregated stages, and refused where prefill and decode are apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.fake_engine import engines
from tests.integration.router_bench import MODEL, pd_unit, plain_unit, router, table

PATH = "/v1/embeddings"


@pytest.mark.parametrize("asked", ["a text", ["two", "texts"], [1, 2, 3], [[1, 2], [3]]])
async def test_an_aggregated_stage_embeds(tmp_path: Path, asked: object) -> None:
    async with engines("a", "b") as (a, b), router(tmp_path, table(plain_unit([a, b]))) as bench:
        body = {"model": MODEL, "input": asked, "encoding_format": "float"}
        assert (await bench.ask(body | {"kv_transfer_params": {"remote_host": "evil"}}, path=PATH)).status == 200
        (seen,) = a.posts or b.posts
        assert (seen.path, seen.body) == (PATH, body)
        counters = bench.counters()
        assert counters["requests"] == 1 and "errors" not in counters


async def test_where_there_is_nothing_that_embeds(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        answer = await bench.ask({"model": MODEL, "input": "a text"}, path=PATH)
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_served")
        assert not p.posts and not d.posts and "errors" not in bench.counters()


@pytest.mark.parametrize("asked", [None, [], 5, [{}]])
async def test_nothing_to_embed(tmp_path: Path, asked: object) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        answer = await bench.ask({"model": MODEL, "input": asked}, path=PATH)
        assert (answer.status, answer.json["error"]["code"]) == (400, "input_missing") and not a.posts
