"""The simulated engine at its sockets: prefill and decode apart give what one engine gives, and wrong KV is heard."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import httpx
import openai
import pytest

from fleets.domain.types import Faults, ModelShape, Role
from fleets.engines.base import adapter_for
from fleets.engines.sim.config import Config
from fleets.engines.sim.server import Engine
from tests.integration.engine_support import free_base

PROMPT = "The quick brown fox jumps over the lazy dog. " * 60  # 675 tokens: ten blocks and a rest
DENSE = ModelShape(
    layers=80,
    hidden=8192,
    kv_heads=8,
    total_params=70e9,
    prefill_active_params=70e9,
    decode_active_params=70e9,
    weight_bytes=140e9,
    kv_bytes_per_token=328e3,
)


class Sim:
    """An engine in this process, and a client to it."""

    def __init__(self, engine: Engine, client: httpx.AsyncClient) -> None:
        self.engine, self.client = engine, client

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    async def complete(self, **fields: Any) -> dict[str, Any]:
        reply = await self.client.post("/v1/completions", json={"model": "sim", "prompt": PROMPT, "max_tokens": 24} | fields)
        assert reply.status_code == 200, reply.text
        body: dict[str, Any] = reply.json()
        return body

    async def text(self, **fields: Any) -> str:
        return str((await self.complete(**fields))["choices"][0]["text"])

    async def gauges(self) -> dict[str, float]:
        return adapter_for("sim", True).map_metrics((await self.client.get("/metrics")).text)

    async def until(self, test: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """The gauges, once they pass a test."""
        async with asyncio.timeout(5):
            while not test(gauges := await self.gauges()):
                await asyncio.sleep(0.005)
        return gauges


Start = Callable[..., Awaitable[Sim]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def begin(role: Role = Role.AGGREGATED, **fields: Any) -> Sim:
            config = Config(port=free_base(), role=role, speed=fields.pop("speed", 20.0), **fields)
            engine = Engine(config, on_exit=lambda status, why: None)
            await engine.start()
            stack.callback(engine.close)
            # Without `verify` each client would read the machine's certificates, for plain HTTP.
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{config.port}", timeout=10, verify=False)
            )
            return Sim(engine, client)

        yield begin


async def handover(prefill: Sim, **fields: Any) -> dict[str, Any]:
    body = await prefill.complete(
        **{"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}} | fields
    )
    params: dict[str, Any] = body["kv_transfer_params"]
    return params


@pytest.mark.parametrize(("prefill_ranks", "decode_ranks"), [(1, 1), (4, 4), (4, 8), (8, 2), (1, 64)])
async def test_disaggregated_says_what_aggregated_says_whatever_the_tensor_parallelism(
    start: Start, prefill_ranks: int, decode_ranks: int
) -> None:
    whole = await start(tensor_parallel=2)
    prefill, decode = await start(Role.PREFILL, tensor_parallel=prefill_ranks), await start(Role.DECODE, tensor_parallel=decode_ranks)
    expected = await whole.text()
    params = await handover(prefill)
    assert await decode.text(kv_transfer_params=params) == expected
    assert (await decode.gauges())["kv_transfer_bytes"] == 11 * 64 * 8
    assert await decode.text(prompt=PROMPT) == expected  # by its own prefill, out of its own cache
    assert expected.startswith(await prefill.text(max_tokens=1))


async def test_prefill_replies_as_vllm_does(start: Start) -> None:
    prefill = await start(Role.PREFILL, tensor_parallel=4)
    reply = await prefill.client.post(
        "/v1/chat/completions",
        headers={"X-Request-Id": "abc"},
        json={
            "model": "sim",
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": 1,
            "stream": False,
            "kv_transfer_params": {
                "do_remote_decode": True,
                "do_remote_prefill": False,
                "remote_engine_id": None,
                "remote_block_ids": None,
                "remote_host": None,
                "remote_port": None,
            },
        },
    )
    body = reply.json()
    params = body["kv_transfer_params"]
    assert body["id"] == "chatcmpl-abc"
    assert set(params) == {
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "tp_size",
        "dcp_size",
        "pp_size",
        "remote_num_tokens",
        "remote_blocks_expiry_time",
        "transfer_mode",
        "remote_prefill_cached_tokens",
    }
    assert params["remote_num_tokens"] == body["usage"]["prompt_tokens"]
    assert len(params["remote_block_ids"][0]) == -(-params["remote_num_tokens"] // 64)
    assert params["remote_request_id"].startswith("chatcmpl-abc-")
    assert (params["remote_port"], params["tp_size"]) == (prefill.engine.config.port + 1, 4)


async def test_the_kv_of_another_prompt_answers_as_that_prompt(start: Start) -> None:
    other = PROMPT.replace("fox", "cat")
    whole = await start()
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE)
    answers = await whole.text(), await whole.text(prompt=other)
    params = await handover(prefill, prompt=other)
    said = await decode.text(kv_transfer_params=params)
    assert answers[0] != answers[1]
    assert said == answers[1]


@pytest.mark.parametrize("side", [Role.PREFILL, Role.DECODE])
async def test_corrupted_kv_is_heard(start: Start, side: Role) -> None:
    whole = await start()
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE)
    await (prefill if side is Role.PREFILL else decode).client.post("/sim/faults", json={"kv_corrupt": True})
    assert await decode.text(kv_transfer_params=await handover(prefill)) != await whole.text()


async def test_handover_parameters_are_believed_twice_and_the_text_is_wrong_then(start: Start) -> None:
    """As with vLLM, so that a router which uses them twice is found out."""
    prefill, decode, whole = await start(Role.PREFILL), await start(Role.DECODE), await start()
    params, other = await handover(prefill), PROMPT[::-1]
    assert await decode.text(kv_transfer_params=params) == await whole.text()
    assert await decode.text(kv_transfer_params=params, prompt=other) != await whole.text(prompt=other)
    assert (await prefill.gauges())["kv_fetched_late"] == 1
    assert (await decode.gauges())["kv_transfers_failed"] == 0


async def test_a_lease_ends_and_then_another_prompt_lies_there(start: Start) -> None:
    prefill, decode, whole = await start(Role.PREFILL, lease_s=0.15, kv_blocks=12), await start(Role.DECODE), await start()
    params = await handover(prefill)
    assert (await prefill.gauges())["kv_use"] > 0
    gauges = await prefill.until(lambda now: now["kv_use"] == 0)
    assert gauges["kv_expired"] == 1
    await prefill.text(prompt=PROMPT[::-1])
    assert await decode.text(kv_transfer_params=params) != await whole.text()


@pytest.mark.parametrize("wrong", [{"remote_engine_id": "other"}, {"remote_port": 1}, {"remote_block_ids": [[10**6] * 50]}])
async def test_a_handover_that_leads_nowhere_fails_and_the_engine_lives(start: Start, wrong: dict[str, Any]) -> None:
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE)
    params = await handover(prefill) | wrong
    assert (await decode.client.post("/v1/completions", json={"prompt": PROMPT, "kv_transfer_params": params})).status_code == 500
    assert await decode.text() == await prefill.text()


async def test_sglangs_prefill_and_decode_meet_in_a_room_whoever_comes_first(start: Start) -> None:
    whole = await start()
    prefill, decode = [await start(role, protocol="sglang-bootstrap") for role in (Role.PREFILL, Role.DECODE)]
    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.engine.config.port + 1, "bootstrap_room": 2**62 + 1}
    waiting = asyncio.create_task(decode.text(**room))
    await decode.until(lambda now: now["kv_use"] > 0)
    said = await prefill.complete(**room)
    assert (said["usage"]["completion_tokens"], said["kv_transfer_params"]) == (1, None)
    assert await waiting == await whole.text()
    await prefill.until(lambda now: now["kv_use"] == 0)
    for engine in (prefill, decode):
        assert (await engine.client.get("/v1/models")).json()["data"][0]["owned_by"] == "sglang"
        alone = await engine.client.post("/v1/completions", json={"prompt": PROMPT})
        assert (alone.status_code, "bootstrap room" in alone.json()["error"]["message"]) == (400, True)


async def test_a_failed_transfer_is_recomputed_when_told_so(start: Start) -> None:
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE, kv_load_failure="recompute")
    await decode.client.post("/sim/faults", json={"kv_fail_ratio": 1.0})
    assert await decode.text(kv_transfer_params=await handover(prefill)) == await prefill.text()


async def test_a_failed_transfer_ends_a_stream_with_an_error_event(start: Start) -> None:
    prefill, decode = await start(Role.PREFILL, faults=Faults(kv_fail_ratio=1.0)), await start(Role.DECODE)
    body = {"prompt": PROMPT, "stream": True, "kv_transfer_params": await handover(prefill)}
    reply = await decode.client.post("/v1/completions", json=body)
    events = [line[6:] for line in reply.text.splitlines() if line]
    assert (reply.status_code, events[-1]) == (200, "[DONE]")
    assert json.loads(events[0])["error"]["code"] == 500


async def test_prefill_frees_its_blocks_when_they_are_fetched_and_decode_when_it_is_done(start: Start) -> None:
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE)
    params = await handover(prefill)
    assert (await prefill.gauges())["kv_use"] > 0
    await decode.text(kv_transfer_params=params)
    await prefill.until(lambda now: now["kv_use"] == 0)
    await decode.until(lambda now: now["kv_use"] == 0)


async def test_a_client_that_leaves_frees_both_engines(start: Start) -> None:
    prefill, decode = await start(Role.PREFILL), await start(Role.DECODE, speed=1.0)
    body = {"prompt": PROMPT, "max_tokens": 100_000, "stream": True, "kv_transfer_params": await handover(prefill)}
    async with decode.client.stream("POST", "/v1/completions", json=body) as reply:
        await anext(reply.aiter_lines())
        assert (await decode.gauges())["running"] == 1
    await decode.until(lambda now: now["kv_use"] == 0 and now["running"] == 0)
    await prefill.until(lambda now: now["kv_use"] == 0)


async def test_a_client_that_leaves_a_prefill_frees_it(start: Start) -> None:
    prefill = await start(Role.PREFILL, shape=DENSE, gpus=8, speed=1.0)
    body = {"prompt": PROMPT * 20, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    leg = asyncio.create_task(prefill.client.post("/v1/completions", json=body))
    await prefill.until(lambda now: now["kv_use"] > 0)
    leg.cancel()
    await prefill.until(lambda now: now["kv_use"] == 0)
    assert len(prefill.engine.leases) == 0


async def test_sequences_that_find_no_room_are_set_back_and_still_say_the_same(start: Start) -> None:
    roomy, tight = await start(), await start(kv_blocks=24)
    prompts = [f"{index} {PROMPT[:1000]}" for index in range(6)]  # four blocks each, and two more for the answer

    async def all_of(sim: Sim) -> list[str]:
        return await asyncio.gather(*(sim.text(prompt=prompt, max_tokens=120) for prompt in prompts))

    assert await all_of(tight) == await all_of(roomy)
    gauges = await tight.gauges()
    assert gauges["preemptions"] > 0
    assert gauges["kv_use"] == 0


async def test_history_is_found_in_the_prefix_cache(start: Start) -> None:
    sim = await start()
    messages = [{"role": "user", "content": PROMPT}]
    first = (await sim.client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 200})).json()
    messages += [first["choices"][0]["message"], {"role": "user", "content": "and then?"}]
    second = (await sim.client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 5})).json()
    tokens = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == tokens // 64 * 64
    assert (await sim.gauges())["prefix_hit"] > 0.3


async def test_prefill_and_decode_on_one_engine_disturb_each_other(start: Start) -> None:
    sim = await start(shape=DENSE, gpus=8, gpu_kind="H200", speed=2.0)
    gaps: list[float] = []
    async with sim.client.stream("POST", "/v1/completions", json={"prompt": "hi", "max_tokens": 60, "stream": True}) as reply:
        last, loop, leg = 0.0, asyncio.get_running_loop(), None
        async for line in reply.aiter_lines():
            if line:
                gaps, last = [*gaps, loop.time() - last], loop.time()
            if len(gaps) == 20:
                leg = leg or asyncio.create_task(sim.text(prompt="long " * 6000, max_tokens=1))
        assert leg is not None
        await leg
    quiet_s = sorted(gaps[1:20])[10]
    assert max(gaps[20:]) > 5 * quiet_s


async def test_the_official_client_chats_and_completes_streaming_and_not(start: Start) -> None:
    sim = await start()
    async with openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="none") as client:
        assert [model.id async for model in client.models.list()] == ["sim"]
        chat = await client.chat.completions.create(model="sim", messages=[{"role": "user", "content": "hello"}], max_completion_tokens=12)
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="sim",
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=12,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert streamed == chat.choices[0].message.content
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
        assert chunks[-1].usage is not None
        assert chat.usage is not None
        assert chunks[-1].usage.completion_tokens == chat.usage.completion_tokens == 12
        parts = [part async for part in await client.completions.create(model="sim", prompt="hello", max_tokens=7, stream=True)]
        whole = await client.completions.create(model="sim", prompt="hello", max_tokens=7)
        assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
        assert whole.choices[0].text != chat.choices[0].message.content


async def test_several_choices_and_several_prompts(start: Start) -> None:
    body = await (await start()).complete(prompt=["one", "two"], n=2, max_tokens=4)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in body["choices"]}) == 4
    assert body["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 2,
        "completion_tokens": 16,
        "total_tokens": 18,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_before_it(start: Start, stream: bool) -> None:
    sim = await start()
    full = await sim.text(max_tokens=20)
    stop = full[22:27]  # in the middle of a word, and over its end
    reply = await sim.client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 20, "stop": stop, "stream": stream})
    bodies = [json.loads(line[6:]) for line in reply.text.splitlines() if line and "[DONE]" not in line] if stream else [reply.json()]
    assert "".join(body["choices"][0]["text"] for body in bodies) == full[: full.index(stop)]
    assert bodies[-1]["choices"][0]["finish_reason"] == "stop"


async def test_without_a_limit_a_chat_ends_by_itself_unless_told_not_to(start: Start) -> None:
    sim = await start(speed=1000.0, kv_blocks=16)
    free = (await sim.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})).json()
    long = (
        await sim.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True})
    ).json()
    assert free["choices"][0]["finish_reason"] == "stop"
    assert 64 <= free["usage"]["completion_tokens"] <= 255
    assert (long["choices"][0]["finish_reason"], long["usage"]["total_tokens"]) == ("length", 16 * 64)


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "other", "prompt": "x"}, 404, "NotFoundError"),
        ({"prompt": ""}, 400, "BadRequestError"),
        ({"prompt": "x", "max_tokens": 0}, 400, "BadRequestError"),
        ({"prompt": "x", "n": 1000}, 400, "BadRequestError"),
        ({"prompt": "x", "max_tokens": 10**7}, 400, "BadRequestError"),
        ([], 400, "Bad Request"),
    ],
)
async def test_wrong_requests_get_openai_errors(start: Start, body: Any, status: int, kind: str) -> None:
    reply = await (await start()).client.post("/v1/completions", json=body)
    assert reply.status_code == status
    assert reply.json()["error"]["type"] == kind
    assert reply.json()["error"]["code"] == status


async def test_garbage_gets_an_error_and_the_engine_lives(start: Start) -> None:
    sim = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", sim.engine.config.port)
    writer.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400")
    writer.close()
    assert (await sim.client.post("/v1/completions", content=b"{")).status_code == 400
    assert (await sim.client.get("/nowhere")).status_code == 404


async def test_requests_of_one_connection_are_answered_in_their_order(start: Start) -> None:
    sim = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", sim.engine.config.port)
    body = b'{"prompt":"x","max_tokens":3}'
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    assert text.index("text_completion") < text.index('"simulated":true')


async def test_faults_can_be_set_while_it_runs(start: Start) -> None:
    sim = await start()
    assert (await sim.client.post("/sim/faults", json={"error_ratio": 0.5})).json()["error_ratio"] == 0.5
    statuses = [(await sim.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})).status_code for _ in range(4)]
    assert statuses == [200, 500, 200, 500]
    assert (await sim.client.post("/sim/faults", json={"error_ratio": "often"})).status_code == 400
    await sim.client.post("/sim/faults", json={"error_ratio": 0, "hang_ratio": 1})
    with pytest.raises(httpx.ReadTimeout):
        await sim.client.post("/v1/completions", json={"prompt": "x"}, timeout=0.1)
    assert (await sim.client.get("/health")).status_code == 200


async def test_slow_is_as_slow_as_it_says(start: Start) -> None:
    sim = await start(speed=2.0)
    loop, took_s = asyncio.get_running_loop(), []
    for factor in (1.0, 4.0):
        await sim.client.post("/sim/faults", json={"slow_factor": factor})
        tries_s = []
        for _ in range(3):  # the best of three: this machine may have other work
            began = loop.time()
            await sim.text(prompt="x", max_tokens=20)
            tries_s.append(loop.time() - began)
        took_s.append(min(tries_s))
    assert 2.5 < took_s[1] / took_s[0] < 5


async def test_it_is_not_ready_before_its_weights_are_there(start: Start) -> None:
    sim = await start(faults=Faults(start_delay_s=0.2))
    assert (await sim.client.get("/health")).status_code == 503
    assert (await sim.client.post("/v1/completions", json={"prompt": "x"})).status_code == 503
    await asyncio.wait_for(sim.engine.until_ready(), 5)
    assert (await sim.client.get("/health")).status_code == 200


async def test_draining_finishes_what_is_there_and_takes_nothing_new(start: Start) -> None:
    sim = await start(speed=1.0)
    running = asyncio.create_task(sim.text(max_tokens=20))
    await sim.until(lambda now: now["running"] == 1)
    drain = asyncio.create_task(sim.engine.drain(10))
    await asyncio.sleep(0)
    assert (await sim.client.post("/v1/completions", json={"prompt": "x"})).status_code == 503
    assert len(await running) == 80
    await drain


async def test_a_decode_that_dies_while_it_holds_a_lease_frees_it(start: Start) -> None:
    prefill = await start(Role.PREFILL)
    params = await handover(prefill)
    reader, writer = await asyncio.open_connection(params["remote_host"], params["remote_port"])
    hello = {"op": "hold", "engine_id": params["remote_engine_id"], "request_id": params["remote_request_id"]}
    writer.write(json.dumps(hello).encode() + b"\n")
    assert json.loads(await reader.readline())["ok"]
    assert (await prefill.gauges())["kv_use"] > 0
    writer.transport.abort()
    await prefill.until(lambda now: now["kv_use"] == 0)


async def test_nothing_leaks_when_clients_leave_at_any_moment(start: Start) -> None:
    """Under memory pressure and with failing transfers, too; the delays are fixed draws, so that a failure comes again."""
    draw = random.Random(7)
    prefill = await start(Role.PREFILL, kv_blocks=120, lease_s=0.3, speed=2.0)
    decode = await start(Role.DECODE, kv_blocks=60, speed=2.0, faults=Faults(kv_fail_ratio=0.1))

    async def one(index: int, leave_s: float) -> None:
        body = {"prompt": f"{index % 7} {PROMPT[: 200 * (1 + index % 12)]}", "max_tokens": 40, "stream": True}
        params = await handover(prefill, prompt=body["prompt"])
        if index % 5 == 0:
            return  # nobody comes for it
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(leave_s),
                decode.client.stream("POST", "/v1/completions", json=body | {"kv_transfer_params": params}) as reply,
            ):
                await reply.aread()

    await asyncio.gather(*(one(index, draw.uniform(0.001, 0.4)) for index in range(60)))
    await prefill.until(lambda now: now["kv_use"] == 0 and now["running"] == 0)
    await decode.until(lambda now: now["kv_use"] == 0 and now["running"] == 0 and now["waiting"] == 0)
    assert prefill.engine.scheduler.idle
    assert decode.engine.scheduler.idle
    assert await decode.text(max_tokens=4) == await prefill.text(max_tokens=4)
