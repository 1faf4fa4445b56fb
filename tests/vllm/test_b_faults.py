"""What goes wrong with real engines, and what router and agent make of it."""

from __future__ import annotations

import os
import signal
import time

import httpx
import pytest

from fleets.domain.types import Role
from tests.vllm.client import ask, prompt, said
from tests.vllm.load import Load
from tests.vllm.test_a_serving import APART, WHOLE
from tests.vllm.world import Engine, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

LEASE_S = 30.0
ASK_TO_KEEP = {"do_remote_decode": True, "do_remote_prefill": False}


def identity(prefill: Engine, seed: int) -> str:
    """The name under which prefill's KV can be fetched; what was kept for the question goes with its lease."""
    answer = ask(prefill.url, "tiny", prompt(40, seed), max_tokens=1, kv_transfer_params=ASK_TO_KEEP)
    name: str = answer.json()["kv_transfer_params"]["remote_engine_id"]
    return name


def all_free(lab: Lab) -> bool:
    return all(engine.figures()["kv_use"] == 0 == engine.figures()["running"] for engine in lab.engines("tiny"))


def right(lab: Lab, load: Load) -> None:
    """Every answer is what one engine alone says."""
    whole = lab.engine("tiny-whole", Role.AGGREGATED)
    for tokens, answer in load.answered:
        assert said(ask(whole.url, "tiny-whole", tokens)) == answer


def test_clients_leave_at_each_phase(lab: Lab) -> None:
    """While prefill computes, before the first byte, in mid-stream: no KV is left behind for longer than the lease."""
    lab.serving("tiny", APART)
    url = f"{lab.router('tiny')}/v1/completions"
    body = {"model": "tiny", "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}
    for seed, (length, stay_s) in enumerate([(2500, 0.002), (2500, 0.01), (2500, 0.03), (2500, 0.06), (300, 0.02)]):
        try:
            httpx.post(url, json=body | {"prompt": prompt(length, 5000 + seed)}, timeout=stay_s)
        except httpx.TimeoutException:
            continue
    with httpx.stream("POST", url, json=body | {"prompt": prompt(300, 5100)}, timeout=30) as answer:
        lines = answer.iter_lines()
        first = [next(lines) for _ in range(6)]
    assert first[0].startswith("data: {")
    took_s = -time.monotonic()
    lab.until(lambda: all_free(lab), timeout_s=LEASE_S + 10, what="all KV is free again")
    print(f"all KV free {took_s + time.monotonic():.1f} s after the last client left")
    assert said(ask(lab.router("tiny"), "tiny", prompt(100, 5200)))


def test_prefill_is_killed_under_load(lab: Lab) -> None:
    """Its requests are done by decode, or fail at most while their KV is on its way; it comes back as another and is used again."""
    lab.serving("tiny-whole", WHOLE)
    lab.serving("tiny", APART)
    prefill, decode = lab.engine("tiny", Role.PREFILL), lab.engine("tiny", Role.DECODE)
    before = identity(prefill, 6000)
    with Load(lab.router("tiny"), "tiny", pause_s=0.15) as load:
        load.wait_for(10)
        os.killpg(prefill.pid, signal.SIGKILL)
        killed_s = time.monotonic()
        load.wait_for(20)  # without prefill
        lab.until(lambda: not lab.engines("tiny", Role.PREFILL), timeout_s=20, what="its death is known")
        again: Engine = lab.until(lambda: next(iter(lab.engines("tiny", Role.PREFILL)), None), timeout_s=240, what="prefill is back")
        took_s = time.monotonic() - killed_s
        moved = decode.figures()["external_kv_transfer"]
        load.wait_for(10)
        lab.until(lambda: decode.figures()["external_kv_transfer"] > moved, timeout_s=30, what="KV comes from prefill again")
    assert again.pid != prefill.pid and identity(again, 6001) != before
    assert lab.engine("tiny", Role.DECODE).pid == decode.pid
    print(f"prefill killed: {len(load.answered)} answered, {len(load.failed)} failed, back after {took_s:.1f} s: {load.failed}")
    assert len(load.failed) <= load.threads, load.failed
    right(lab, load)


def test_decode_is_killed_under_load(lab: Lab) -> None:
    """What it was saying is lost, and until it is back there is a clear refusal; then all is as before, prefill's KV too."""
    lab.serving("tiny-whole", WHOLE)
    lab.serving("tiny", APART)
    decode, prefill = lab.engine("tiny", Role.DECODE), lab.engine("tiny", Role.PREFILL)
    with Load(lab.router("tiny"), "tiny", seed=300_000, pause_s=0.15) as load:
        load.wait_for(10)
        os.killpg(decode.pid, signal.SIGKILL)
        lab.until(lambda: not lab.engines("tiny", Role.DECODE), timeout_s=20, what="its death is known")
        lab.until(lambda: lab.engines("tiny", Role.DECODE), timeout_s=240, what="decode is back")
        load.wait_for(20)
    assert lab.engine("tiny", Role.PREFILL).pid == prefill.pid
    refused = sum(line.startswith("503") for line in load.failed)
    print(f"decode killed: {len(load.answered)} answered, {refused} refused, {len(load.failed) - refused} cut")
    assert len(load.failed) - refused <= load.threads, [line for line in load.failed if not line.startswith("503")]
    right(lab, load)
    lab.until(lambda: all_free(lab), timeout_s=LEASE_S + 10, what="all KV is free again")


def test_kv_that_nobody_fetches_goes_with_its_lease(lab: Lab) -> None:
    """Prefill keeps it for 30 s, says so, and frees it."""
    lab.serving("tiny", APART)
    prefill = lab.engine("tiny", Role.PREFILL)
    before = prefill.figures()["expired"]
    identity(prefill, 7000)
    assert prefill.figures()["kv_use"] > 0
    kept_s = -time.monotonic()
    lab.until(lambda: prefill.figures()["kv_use"] == 0, timeout_s=LEASE_S + 10, what="the lease is over")
    assert LEASE_S - 3 < kept_s + time.monotonic() < LEASE_S + 5
    assert prefill.figures()["expired"] == before + 1
