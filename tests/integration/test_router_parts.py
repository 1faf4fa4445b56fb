"""The router's parts by themselves: prefix index, prefill queue, flags, bodies."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denvweb.core.errors import InvalidError
from fleets.router import config, openai
from fleets.router.admission import Gate, QueueFullError
from fleets.router.gauges import kv_use_of
from fleets.router.prefix import Blocks, PrefixIndex, blocks_of


def _prompt(*seeds: int, size: int = 4096) -> bytes:
    return b"".join(bytes([seed]) * size for seed in seeds)


def test_prefix_index_finds_the_longest_prefix_of_each_replica() -> None:
    index = PrefixIndex(10_000)
    index.add(blocks_of(_prompt(1, 2, 3)), "a")
    index.add(blocks_of(_prompt(1, 2)), "b")
    assert index.held_bytes(blocks_of(_prompt(1, 2, 3)), ["a", "b", "c"]) == [12_288, 8192, 0]
    assert index.held_bytes(blocks_of(_prompt(2, 1)), ["a", "b"]) == [0, 0]
    index.forget("a")
    assert index.held_bytes(blocks_of(_prompt(1, 2, 3)), ["a", "b"]) == [0, 8192]


def test_prefix_index_is_bounded_and_forgets_the_oldest() -> None:
    index = PrefixIndex(50)
    for seed in range(20):
        index.add(blocks_of(_prompt(seed)), "a")
    assert len(index) == 50
    assert index.held_bytes(blocks_of(_prompt(19)), ["a"]) == [4096]
    assert index.held_bytes(blocks_of(_prompt(0)), ["a"]) == [0]


def test_prefix_index_reuses_bits_of_the_gone() -> None:
    index = PrefixIndex(1000)
    index.add(blocks_of(_prompt(7)), "stays")
    for number in range(700):
        index.add(blocks_of(_prompt(number % 250, size=256)), f"r{number}")
        index.forget(f"r{number}")
    assert index.held_bytes(blocks_of(_prompt(7)), ["stays", "r699"]) == [4096, 0]
    index.add(blocks_of(_prompt(8)), "new")
    assert index.held_bytes(blocks_of(_prompt(8)), ["stays", "new"]) == [0, 4096]


@given(st.binary(max_size=20_000), st.binary(max_size=5000))
def test_blocks_of_a_prefix_are_a_prefix_of_the_blocks(head: bytes, tail: bytes) -> None:
    short, long = blocks_of(head), blocks_of(head + tail)
    assert long.hashes[: len(short.hashes)] == short.hashes
    covered = short.bytes_of(len(short.hashes))
    assert covered <= len(head) < covered + 1024 + 256


def test_blocks_bytes() -> None:
    assert Blocks((), 0).bytes_of(3) == 768
    assert Blocks((), 0).bytes_of(18) == 16 * 256 + 2 * 1024


async def enter(gate: Gate, key: str) -> None:
    """As a task that waits for its place."""
    if gate.try_enter():
        return
    place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    gate.wait(key, 0, lambda full: place.set_exception(full) if full else place.set_result(None))
    await place


async def test_gate_is_fair_between_keys() -> None:
    gate = Gate(lambda inflight: inflight < 1, limit=100, deadline_s=5)
    await enter(gate, "first")
    order: list[str] = []

    async def wait(key: str) -> None:
        await enter(gate, key)
        order.append(key)
        gate.leave()

    tasks = [asyncio.ensure_future(wait(key)) for key in ("big", "big", "big", "big", "small")]
    await asyncio.sleep(0)
    assert gate.depth == 5
    gate.leave()
    await asyncio.gather(*tasks)
    assert order == ["big", "small", "big", "big", "big"]
    assert (gate.depth, gate.inflight) == (0, 0)


async def test_gate_lets_shorter_prompts_first_but_nobody_waits_for_ever() -> None:
    gate = Gate(lambda inflight: inflight < 1, limit=100, deadline_s=5)
    assert gate.try_enter()
    order: list[int] = []
    sizes = (9000, 300, 200, 400, 500, 600)
    for tokens in sizes:
        gate.wait("key", tokens, lambda full, tokens=tokens: order.append(tokens))  # type: ignore[misc]  # a default binds it
    for _ in sizes:
        gate.leave()
        await asyncio.sleep(0)
    assert order == [200, 300, 400, 9000, 500, 600]  # three overtake the one who came first


async def test_gate_sees_what_a_leg_brings_before_the_next_begins() -> None:
    """Two legs that begin in the same turn of the loop could both be one too many."""
    begun = [8000]
    gate = Gate(lambda _: sum(begun) < 8000, limit=100, deadline_s=5)
    waiters = [gate.wait("key", 6000, lambda _: begun.append(6000)) for _ in range(4)]
    begun.clear()
    gate.admit()
    gate.withdraw(waiters[0])  # its client left in the same instant
    await asyncio.sleep(0)
    assert begun == [6000, 6000] and [waiter.waits for waiter in waiters] == [False, False, False, True]
    gate.leave()  # and there is no more room for that
    await asyncio.sleep(0)
    assert (gate.depth, gate.inflight) == (1, 1)
    begun.clear()
    gate.admit()
    await asyncio.sleep(0)
    assert (gate.depth, gate.inflight) == (0, 2)


async def test_gate_refuses_when_full_and_after_the_deadline() -> None:
    gate = Gate(lambda inflight: inflight < 1, limit=1, deadline_s=0.02)
    await enter(gate, "a")
    late = asyncio.ensure_future(enter(gate, "b"))
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError) as full:
        await enter(gate, "c")
    assert full.value.retry_after_s >= 1
    with pytest.raises(QueueFullError):
        await late
    assert (gate.depth, gate.inflight) == (0, 1)


async def test_gate_loses_no_place_to_a_client_that_left() -> None:
    gate = Gate(lambda inflight: inflight < 1, limit=10, deadline_s=5)
    assert gate.try_enter()
    placed: list[str] = []
    b, c, _ = (gate.wait(key, 0, lambda full, key=key: placed.append(key)) for key in "bcd")  # type: ignore[misc]  # a default binds it
    gate.withdraw(b)
    assert gate.depth == 2
    gate.leave()
    gate.withdraw(c)  # in the same turn of the loop, before the place is handed out
    gate.withdraw(c)
    await asyncio.sleep(0)
    assert placed == ["d"] and (gate.depth, gate.inflight) == (0, 1)
    gate.leave()
    assert (gate.depth, gate.inflight) == (0, 0)


def test_flags_come_from_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENV_ROUTER_PORT", "9001")
    monkeypatch.setenv("DENV_ROUTER_QUEUE_LIMIT", "7")
    monkeypatch.setenv("DENV_ROUTER_REUSE_PORT", "yes")
    parsed = config.parse(["--stage", "m/s", "--queue-limit", "8", "--prefill-deadline-s", "2.5"])
    assert (parsed.stage, parsed.port, parsed.queue_limit, parsed.prefill_deadline_s, parsed.reuse_port) == ("m/s", 9001, 8, 2.5, True)
    with pytest.raises(InvalidError):
        config.parse(["--stage", "nonsense"])


def _ask(body: dict[str, object], path: str = "/v1/chat/completions") -> openai.Ask:
    return openai.parse(path, json.dumps(body).encode())


def test_usage_is_asked_for_without_touching_the_bytes() -> None:
    body = b'{"model":"m", "messages":[{"role":"user","content":"\\u00e9 x"}],"stream":true} \n'
    ask = openai.parse("/v1/chat/completions", body)
    sent = openai.engine_body(ask, None)
    assert sent.startswith(body.rstrip()[:-1])
    assert json.loads(sent)["stream_options"] == {"include_usage": True}
    whole = openai.parse("/v1/chat/completions", body.replace(b"true", b"false"))
    assert openai.engine_body(whole, None) is whole.body


def test_a_client_cannot_send_kv_parameters() -> None:
    body = {
        "model": "m",
        "prompt": "x",
        "kv_transfer_params": {"remote_host": "10.0.0.1"},
        "stream_options": {"include_usage": False, "x": 1},
        "stream": True,
    }
    ask = _ask(body, "/v1/completions")
    sent = json.loads(openai.engine_body(ask, None))
    assert "kv_transfer_params" not in sent and sent["stream_options"] == {"include_usage": True, "x": 1}
    assert json.loads(openai.engine_body(ask, {"kv_transfer_params": {"remote_host": "ours"}}))["kv_transfer_params"] == {
        "remote_host": "ours"
    }
    assert json.loads(openai.prefill_body(ask))["kv_transfer_params"]["do_remote_decode"] is True


def test_prefill_leg_is_one_token() -> None:
    ask = _ask(
        {"model": "m", "messages": [], "max_completion_tokens": 50, "min_tokens": 5, "stream": True, "stream_options": {}, "odd": [1]}
    )
    leg = json.loads(openai.prefill_body(ask))
    assert (leg["max_tokens"], leg["max_completion_tokens"], leg["stream"], leg["odd"]) == (1, 1, False, [1])
    assert "min_tokens" not in leg and "stream_options" not in leg


def test_prompts() -> None:
    tokens = _ask({"model": "m", "prompt": [1, 2, 3]}, "/v1/completions")
    assert tokens.exact_tokens == 3 and len(tokens.prompt) == 12
    assert _ask({"model": "m", "prompt": ["a", "b"]}, "/v1/completions").samples == 2
    parts = _ask({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}]}], "n": 3})
    assert b"look" in parts.prompt and parts.samples == 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b"{",
        b'{"messages":[]}',
        b'{"model":"m"}',
        b'{"model":"m","messages":"x"}',
        b'{"model":"m","messages":["x"]}',
        b'{"model":5}',
    ],
)
def test_bad_bodies(body: bytes) -> None:
    with pytest.raises(InvalidError):
        openai.parse("/v1/chat/completions", body)


def test_addresses_are_taken_out() -> None:
    text = openai.without_addresses("failed: http://10.1.2.3:8000/v1 and 10.1.2.3:5600 and localhost:99/x and https://node-7.cluster:1/y")
    assert "10.1" not in text and "localhost" not in text and "node-7" not in text and text.startswith("failed: ")


def test_kv_use() -> None:
    page = b'# TYPE x gauge\nvllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\nother 1\n'
    assert kv_use_of(page) == 0.5
    assert kv_use_of(b"other 1\n") is None
