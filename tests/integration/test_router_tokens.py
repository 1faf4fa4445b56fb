"""Prompts counted by the model's own tokenizer: a real one, off the event loop, and what happens without it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from denvweb.core.errors import InvalidError
from fleets.domain.tokenizer import tokenizer_source
from fleets.router import tokens
from fleets.router.tokens import SAMPLE_BYTES, SAMPLES, WHOLE_BYTES, counter_from
from tests.integration.fake_engine import engines
from tests.integration.router_bench import Bench, chat, message, pd_unit, plain_unit, router, table

WORDS_2000 = "word " * 2000  # 10,000 bytes: 2,500 tokens by the first estimate


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer with a token for each word."""
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "word": 1, "user": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.001)


async def loaded(bench: Bench) -> None:
    bench.app.pipeline.tokenizer_want()
    await until(lambda: bench.app.pipeline.tokens.count is not None)


async def test_a_prompt_near_the_limit_goes_where_its_true_tokens_say(tmp_path: Path, words: str) -> None:
    """2,001 tokens, where four bytes a token would make 2,501 of them."""
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]), below=2200), tokenizer=words) as bench:
        await loaded(bench)
        assert (await bench.ask(chat(WORDS_2000))).status == 200
        assert not p.posts and bench.counters()["reason.short"] == 1
        bench.app.apply(table(pd_unit([p], [d]), below=1900, generation=2))
        assert (await bench.ask(chat(f"user {WORDS_2000}"))).status == 200  # another one, that decode does not hold
        page = (await bench.get("/metrics")).body.decode()
        assert len(p.posts) == 1 and "denv_router_tokenizer_loaded 1" in page and "denv_router_tokenizer_failures_total 0" in page


async def test_the_table_names_it_and_the_flag_goes_over_that(tmp_path: Path, words: str) -> None:
    async with engines("p", "d") as (p, d):
        named = replace(pd_unit([p], [d]), tokenizer=f"file://{words}")
        async with router(tmp_path, table(named)) as bench:
            await loaded(bench)
            assert bench.app.pipeline.tokens.name == f"file://{words}"
            bench.app.apply(table(pd_unit([p], [d]), generation=2))
            assert bench.app.pipeline.tokens.count is None  # the new one names none
        async with router(tmp_path / "other", table(named), tokenizer=words) as bench:
            await loaded(bench)
            assert bench.app.pipeline.tokens.name == words


@pytest.mark.parametrize("missing", ["file", "library", "name"])
async def test_without_it_prompts_are_estimated_and_that_is_said(
    tmp_path: Path, words: str, missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if missing == "library":
        monkeypatch.setitem(sys.modules, "tokenizers", None)
    named = {"file": "/nowhere/tokenizer.json", "library": words, "name": "ftp://somewhere"}[missing]
    with caplog.at_level(logging.WARNING):
        async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d])), tokenizer=named) as bench:
            await until(lambda: bench.app.pipeline.tokens.failures == 1)
            assert (await bench.ask(chat(WORDS_2000))).status == 200 and len(p.posts) == 1
            page = (await bench.get("/metrics")).body.decode()
            assert "denv_router_tokenizer_loaded 0" in page and "denv_router_tokenizer_failures_total 1" in page
            bench.app.pipeline.tokenizer_want()
            await asyncio.sleep(0)
            assert bench.app.pipeline.tokens.failures == 1  # not asked for again at once
    said = {"file": "No such file", "library": ".[tokenizers]", "name": "hf://org/name@revision"}[missing]
    assert f"the tokenizer {named} cannot be used" in caplog.text and said in caplog.text


async def test_nothing_is_counted_that_would_change_nothing(tmp_path: Path) -> None:
    """Short prompts, token ids, aggregated pools."""
    async with engines("p", "d", "a") as (p, d, a), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        counted: list[bytes] = []

        def count(prompt: bytes) -> int:
            counted.append(prompt)
            return 1

        bench.app.pipeline.tokens.count = count
        assert (await bench.ask(chat("hi"))).status == 200
        body = {"model": "ds-flash", "prompt": list(range(3000)), "stream": True}
        assert (await bench.ask(body, path="/v1/completions")).status == 200
        bench.app.apply(table(plain_unit([a]), generation=2))
        assert (await bench.ask(chat(WORDS_2000))).status == 200
        assert not counted


def test_a_prompt_of_8_megabytes_is_counted_by_samples(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count, seen = counter_from(words), list[int]()
    prompt = b"word " * 1_600_000
    assert abs(count(prompt) - 1_600_000) < 16_000  # within 1%
    real = tokens._count

    def spy(tokenizer: Tokenizer, parts: list[bytes]) -> int:
        seen.append(sum(map(len, parts)))
        return real(tokenizer, parts)

    monkeypatch.setattr(tokens, "_count", spy)
    for size in (WHOLE_BYTES, WHOLE_BYTES + 1, 8 << 20):
        count(prompt[:size])
    assert seen == [WHOLE_BYTES, SAMPLES * SAMPLE_BYTES, SAMPLES * SAMPLE_BYTES]
    assert count("h\u00e4".encode() * 9000) > 0  # a sample may begin in the middle of a letter


async def test_streams_go_on_while_a_prompt_is_counted_and_what_would_wait_long_is_estimated(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        go, begun = threading.Event(), threading.Event()

        def slow(prompt: bytes) -> int:
            begun.set()
            assert go.wait(20)
            return 10

        counter = bench.app.pipeline.tokens
        counter.count = slow
        try:
            held = [await bench.connect() for _ in range(tokens.WAITING_MAX)]
            for raw in held:
                raw.writer.write(message(chat(WORDS_2000)))
            await until(lambda: counter.waiting == tokens.WAITING_MAX and begun.is_set())
            assert (await bench.ask(chat("hi"))).status == 200  # the loop is free
            assert (await bench.ask(chat(WORDS_2000 + "x"))).status == 200
            assert len(p.posts) == 1 and counter.estimated == 1
            held[0].writer.close()
            await until(lambda: len(bench.app.pipeline.jobs) == tokens.WAITING_MAX - 1)
            assert bench.counters()["cancelled"] == 1
        finally:
            go.set()
        for raw in held[1:]:
            assert (await raw.read_answer()).status == 200
        assert len(p.posts) == 1 and not bench.app.pipeline.jobs and counter.waiting == 0


async def test_a_count_that_fails_costs_no_request(tmp_path: Path) -> None:
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:

        def fails(prompt: bytes) -> int:
            raise ValueError("no such token")

        bench.app.pipeline.tokens.count = fails
        assert (await bench.ask(chat(WORDS_2000))).status == 200
        assert len(p.posts) == 1 and bench.app.pipeline.tokens.failures == 1


def test_names_of_tokenizers() -> None:
    assert tokenizer_source("hf://org/name@abc") == ("org/name", "abc", "")
    assert tokenizer_source("hf://org/name") == ("org/name", "", "")
    assert tokenizer_source("file:///models/x/tokenizer.json") == ("", "", "/models/x/tokenizer.json")
    assert tokenizer_source("/a/path") == tokenizer_source("file:///a/path")
    for wrong in ("hf://name", "hf:///name", "file://relative", "http://x/y"):
        with pytest.raises(InvalidError, match="names no tokenizer"):
            tokenizer_source(wrong)
