"""Engines that die, on purpose or of a fault, and what router and agent make of it."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleets.domain.types import Role
from tests.integration.engine_contract import FATAL
from tests.integration.engine_peers import Trio
from tests.vllm.client import ask, prompt, said, stream
from tests.vllm.load import Load
from tests.vllm.test_f_contract import trio_of
from tests.vllm.world import LEASE_S, TINY, WHOLE, Engine, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ASK_TO_KEEP = {"do_remote_decode": True, "do_remote_prefill": False}
COMPARED_MOST = 60  # answers of a load that are asked again of one engine alone


def identity(prefill: Engine, seed: int) -> str:
    """The name under which prefill's KV can be fetched; what was kept for the question goes with its lease."""
    answer = ask(prefill.url, TINY, prompt(40, seed), max_tokens=1, kv_transfer_params=ASK_TO_KEEP)
    name: str = answer.json()["kv_transfer_params"]["remote_engine_id"]
    return name


def right(lab: Lab, load: Load) -> None:
    """The answers are what one engine alone says."""
    for tokens, answer in random.Random(1).sample(load.answered, min(COMPARED_MOST, len(load.answered))):
        assert lab.alone(tokens) == answer


def back(lab: Lab, gone: Engine) -> Engine:
    """The engine that the agent started in its place, once it is ready."""

    def look() -> Engine | None:
        return next((engine for engine in lab.engines(TINY, gone.role) if engine.pid != gone.pid), None)

    found: Engine = lab.until(look, timeout_s=240, what=f"{gone.role} is back")
    return found


def test_prefill_is_killed_under_load(lab: Lab) -> None:
    """Nobody notices: its requests are done by decode. It comes back as another and is used again."""
    lab.serving(WHOLE)
    lab.serving(TINY)
    prefill, decode = lab.engine(TINY, Role.PREFILL), lab.engine(TINY, Role.DECODE)
    before = identity(prefill, 6000)
    with Load(lab.router(TINY), TINY) as load:
        load.wait_for(10)
        prefill.kill()
        killed_s = time.monotonic()
        load.wait_for(20)  # without prefill
        lab.until(lambda: not lab.engines(TINY, Role.PREFILL), timeout_s=20, what="its death is known")
        again: Engine = lab.until(lambda: next(iter(lab.engines(TINY, Role.PREFILL)), None), timeout_s=240, what="prefill is back")
        took_s = time.monotonic() - killed_s
        moved = decode.figures()["external_kv_transfer"]
        load.wait_for(10)
        lab.until(lambda: decode.figures()["external_kv_transfer"] > moved, timeout_s=30, what="KV comes from prefill again")
    assert again.pid != prefill.pid and identity(again, 6001) != before
    assert lab.engine(TINY, Role.DECODE).pid == decode.pid
    print(f"prefill killed: {len(load.answered)} answered, {len(load.failed)} failed, back after {took_s:.1f} s: {load.failed}")
    assert not load.failed, load.failed
    right(lab, load)


def test_decode_is_killed_under_load(lab: Lab) -> None:
    """What it was saying is lost, and until it is back there is a clear refusal; then all is as before, prefill's KV too."""
    lab.serving(WHOLE)
    lab.serving(TINY)
    decode, prefill = lab.engine(TINY, Role.DECODE), lab.engine(TINY, Role.PREFILL)
    with Load(lab.router(TINY), TINY, seed=300_000) as load:
        load.wait_for(10)
        decode.kill()
        lab.until(lambda: not lab.engines(TINY, Role.DECODE), timeout_s=20, what="its death is known")
        lab.until(lambda: lab.engines(TINY, Role.DECODE), timeout_s=240, what="decode is back")
        load.wait_for(20)
    assert lab.engine(TINY, Role.PREFILL).pid == prefill.pid
    refused = sum(line.startswith("503") for line in load.failed)
    print(f"decode killed: {len(load.answered)} answered, {refused} refused, {len(load.failed) - refused} cut")
    assert len(load.failed) - refused <= load.threads, [line for line in load.failed if not line.startswith("503")]
    right(lab, load)
    lab.until(lambda: lab.all_free(TINY), timeout_s=LEASE_S + 10, what="all KV is free again")


def test_kv_that_died_with_prefill_is_computed_again(lab: Lab) -> None:
    """Prefill has answered, and is killed before decode has fetched a byte. Policy `fail`: decode says 500, and is asked again."""
    lab.serving(WHOLE)
    lab.serving(TINY)
    prefill, decode = lab.engine(TINY, Role.PREFILL), lab.engine(TINY, Role.DECODE)
    failed, lost = decode.figures()["failed"], lab.routed(TINY, "kv_failed_total")
    prompts = [prompt(400, 7100), prompt(500, 7101)]
    answers = lost_kv(lab, prefill, decode, prompts)
    assert answers == [lab.alone(tokens) for tokens in prompts]
    assert lab.routed(TINY, "kv_failed_total") == lost + 2
    lab.until(lambda: decode.figures()["failed"] > failed, timeout_s=15, what="decode counts it")
    assert lab.engine(TINY, Role.DECODE).pid == decode.pid
    back(lab, prefill)


def lost_kv(lab: Lab, prefill: Engine, decode: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """The answers to two requests, one streamed, whose KV is lost between prefill and decode."""
    before = prefill.figures()["prompt"]
    with ThreadPoolExecutor(2) as clients, decode.frozen():
        answers = [
            clients.submit(stream, lab.router(TINY), TINY, prompts[0]),
            clients.submit(lambda: said(ask(lab.router(TINY), TINY, prompts[1]))),
        ]
        computed = sum(map(len, prompts))
        lab.until(lambda: prefill.figures()["prompt"] - before >= computed, timeout_s=LEASE_S / 2, what="prefill has computed")
        lab.until(lambda: lab.routed(TINY, "decode_inflight") == len(prompts), timeout_s=LEASE_S / 2, what="the router has its answers")
        prefill.kill()
        decode.thaw()
        return [answer.result() for answer in answers]


@pytest.mark.parametrize("end", FATAL, ids=lambda end: end.__name__)
def test_what_kills_a_decode_is_over_when_it_is_back(lab: Lab, end: Callable[[Trio, int], None]) -> None:
    """Sent past the router, which never sends such a thing. The agent starts it again, and KV moves to it at once."""
    lab.serving(WHOLE)
    lab.serving(TINY)
    decode = lab.engine(TINY, Role.DECODE)
    end(trio_of(lab), decode.pid)
    again = back(lab, decode)
    tokens = prompt(300, 7200 + len(end.__name__))
    moved = again.figures().get("external_kv_transfer", 0.0)

    def moves() -> bool:
        assert said(ask(lab.router(TINY), TINY, tokens)) == lab.alone(tokens)
        return bool(again.figures()["external_kv_transfer"] > moved)

    lab.until(moves, timeout_s=60, what="KV moves to it")
    lab.until(lambda: lab.all_free(TINY), timeout_s=LEASE_S + 10, what="all KV is free again")


def test_a_kv_port_that_somebody_took_is_said(lab: Lab) -> None:
    """vLLM would neither serve nor end. The agent says who has the port, and starts prefill when it is free."""
    lab.serving(WHOLE)
    lab.serving(TINY)
    prefill = lab.engine(TINY, Role.PREFILL)
    with lab.frozen_agent():
        prefill.kill()
        thief = taken(prefill.side_port)
    try:
        wanted = f"port {prefill.side_port} (KV handshakes) is taken by process "
        detail = lab.until(lambda: next((text for text in details(lab) if wanted in text), ""), timeout_s=60, what="it is said")
        print(detail)
        assert said(ask(lab.router(TINY), TINY, prompt(300, 7300)))  # decode does it
    finally:
        thief.close()
    assert back(lab, prefill).side_port == prefill.side_port


def details(lab: Lab) -> list[str]:
    """What its ranks say of themselves."""
    pools = [pool for unit in lab.stage(TINY).units for pool in unit.pools]
    return [text for pool in pools for replica in pool.replicas for text in (replica.detail, *(rank.detail for rank in replica.ranks))]


def taken(port: int) -> socket.socket:
    """Listens there, as soon as its last owner is gone."""
    end_s = time.monotonic() + 10
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < end_s, f"port {port} is not let go of"
            time.sleep(0.02)
