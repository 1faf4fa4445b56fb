"""`/v1/models` over all releases in force, and requests for what only some engines offer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fleets.router.offers import Offer, offers_of
from tests.integration.fake_engine import FakeEngine, engines
from tests.integration.router_bench import MODEL, Bench, chat, pd_unit, plain_unit, router, table

LONG = "word " * 4000


def cards(context: int, *adapters: str) -> list[Any]:
    """As vLLM says it, with paths that are no business of clients."""
    base = {"id": MODEL, "object": "model", "created": 5, "owned_by": "vllm", "root": "/models/secret", "parent": None}
    made = [base | {"max_model_len": context, "permission": [{"id": "modelperm-1"}]}]
    return made + [base | {"id": name, "root": f"/adapters/{name}", "parent": MODEL} for name in adapters]


async def asked(bench: Bench, *told: FakeEngine) -> None:
    """Until the router has heard what these engines offer now."""
    async with asyncio.timeout(10):
        for engine in told:
            replica = bench.app.stage.replicas[f"r-{engine.name}"]
            while replica.offers.keys() != {card["id"] for card in engine.cards}:
                replica.offers_at_s = float("-inf")
                bench.app.gauges.poll()
                await asyncio.sleep(0.001)


async def test_a_list_over_releases_has_the_least_context_and_every_adapter(tmp_path: Path) -> None:
    async with engines("a", "b", "warm") as (a, b, warm):
        a.cards, b.cards, warm.cards = cards(8192), cards(4096, "law", "medicine"), cards(1024, "old")
        releases = [("u-1", "ds-flash@1", a), ("u-2", "ds-flash@2", b), ("u-3", "ds-flash@3", warm)]
        units = [plain_unit([engine], unit=unit, release=release) for unit, release, engine in releases]
        async with router(tmp_path, table(*units, weights={"ds-flash@1": 9000, "ds-flash@2": 1000})) as bench:
            await asked(bench, a, b, warm)
            first, law, medicine = (await bench.get("/v1/models")).json["data"]
            assert (first["id"], first["max_model_len"], first["owned_by"], "parent" in first) == (MODEL, 4096, "denv", False)
            assert (law["id"], law["parent"], medicine["id"]) == ("law", MODEL, "medicine")
            assert "secret" not in str((first, law)) and "adapters/" not in str((first, law))
            assert (await bench.get("/v1/models/law")).json == law
            assert (await bench.get("/v1/models/old")).status == 404  # of a release that has no traffic


async def test_an_adapter_is_asked_of_those_who_have_it_whatever_their_weight(tmp_path: Path) -> None:
    async with engines("a", "b") as (a, b):
        units = [plain_unit([a], unit="u-1", release="ds-flash@1"), plain_unit([b], unit="u-2", release="ds-flash@2")]
        async with router(tmp_path, table(*units, weights={"ds-flash@1": 9900, "ds-flash@2": 100})) as bench:
            assert (await bench.ask(chat() | {"model": "law"})).json["error"]["code"] == "model_not_found"
            assert [card["id"] for card in (await bench.get("/v1/models")).json["data"]] == [MODEL]  # whatever engines say
            a.cards, b.cards = cards(8192), cards(8192, "law")
            await asked(bench, a, b)
            for _ in range(3):
                assert (await bench.ask(chat() | {"model": "law"})).status == 200
            assert [seen.body["model"] for seen in b.posts] == ["law"] * 3 and not a.posts
            b.cards = cards(8192)
            await asked(bench, b)
            assert (await bench.ask(chat() | {"model": "law"})).status == 404


async def test_prefill_that_lacks_an_adapter_has_no_part_in_it(tmp_path: Path) -> None:
    async with engines("p", "q", "d") as (p, q, d), router(tmp_path, table(pd_unit([p, q], [d]))) as bench:
        p.cards, q.cards, d.cards = cards(8192), cards(8192, "law"), cards(8192, "law")
        await asked(bench, p, q, d)
        for text in ("a" + LONG, "b" + LONG):
            assert (await bench.ask(chat(text) | {"model": "law"})).status == 200
        assert len(q.posts) == len(d.posts) == 2 and not p.posts


async def test_the_kv_of_an_adapter_is_not_that_of_its_model(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        p.cards = d.cards = cards(8192, "law")
        await asked(bench, p, d)
        for model in (MODEL, "law", "law"):
            assert (await bench.ask(chat(LONG) | {"model": model})).status == 200
        assert bench.counters()["reason.remote"] == 2 and len(p.posts) == 2  # the third finds its prompt with decode


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data":5}', b'{"data":[5,{"id":7},{"id":""}]}', b"not json"])
def test_an_engine_that_says_nothing_of_use_offers_nothing(body: bytes) -> None:
    assert offers_of(body) == {}


def test_what_an_engine_offers() -> None:
    body = b'{"data":[{"id":"m","max_model_len":8},{"id":"x","parent":"m","max_model_len":"8"},{"id":"y","max_model_len":true,"parent":5}]}'
    assert offers_of(body) == {"m": Offer(context_tokens=8), "x": Offer("m"), "y": Offer()}
