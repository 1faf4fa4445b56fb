"""Clients that leave in each phase of a request, KV that nobody fetches, and decodes that come too late for it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

from fleets.domain.types import Role
from tests.vllm.client import ask, prompt, said
from tests.vllm.world import LEASE_S, TINY, WHOLE, Engine, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

AT_PREFILL = 16  # that a router sends to one prefill at once; more wait in the router
BODY = {"model": TINY, "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}


@contextmanager
def clients(lab: Lab, count: int, tokens: int, seed: int) -> Iterator[None]:
    """Streams that have been asked for, and nothing came yet; leaving the context hangs up on all of them."""
    address = httpx.URL(lab.router(TINY))
    with ExitStack() as stack:
        for index in range(count):
            content = json.dumps(BODY | {"prompt": prompt(tokens, seed + index)}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
            sock = stack.enter_context(socket.create_connection((address.host, address.port or 80), timeout=10))
            sock.sendall(head.encode() + content)
        yield


def all_free_within_the_lease(lab: Lab) -> None:
    """After the last client left, at once or when prefill's lease is over."""
    left_s = time.monotonic()
    lab.until(lambda: lab.all_free(TINY), timeout_s=LEASE_S + 5, what="all KV is free again")
    print(f"all KV free {time.monotonic() - left_s:.1f} s after the last client left")
    assert lab.routed(TINY, "inflight") == 0
    tokens = prompt(100, 5999)
    assert said(ask(lab.router(TINY), TINY, tokens)) == lab.alone(tokens)


def both(lab: Lab) -> tuple[Engine, Engine]:
    """Prefill and decode, with nothing going on."""
    lab.serving(WHOLE)
    lab.serving(TINY)
    lab.until(lambda: lab.all_free(TINY), timeout_s=LEASE_S + 10, what="nothing goes on")
    return lab.engine(TINY, Role.PREFILL), lab.engine(TINY, Role.DECODE)


def test_while_they_wait_for_prefill(lab: Lab) -> None:
    """16 are at prefill, which stands still; four wait in the router."""
    prefill, _ = both(lab)
    cancelled = lab.routed(TINY, "cancelled_total")
    with prefill.frozen():
        with clients(lab, AT_PREFILL + 4, 400, 5000):  # of a size that 16 are less than the tokens which fill prefill, too
            lab.until(lambda: lab.routed(TINY, "prefill_queue") == 4, timeout_s=10, what="four wait")
            assert lab.routed(TINY, "prefill_inflight") == AT_PREFILL
        lab.until(lambda: lab.routed(TINY, "cancelled_total") == cancelled + AT_PREFILL + 4, timeout_s=10, what="all have left")
        assert lab.routed(TINY, "prefill_queue") == lab.routed(TINY, "prefill_inflight") == 0
    all_free_within_the_lease(lab)


def test_while_prefill_computes_and_a_little_later(lab: Lab) -> None:
    """Real prompts of 2,500 tokens take tens of milliseconds: somewhere in prefill, on the way, or at the first token."""
    both(lab)
    url = f"{lab.router(TINY)}/v1/completions"
    for seed, stay_s in enumerate((0.002, 0.01, 0.02, 0.03, 0.045, 0.06, 0.09)):
        with suppress(httpx.TimeoutException):
            httpx.post(url, json=BODY | {"prompt": prompt(2500, 5100 + seed)}, timeout=stay_s)
    all_free_within_the_lease(lab)


def test_before_decode_has_asked_for_the_kv(lab: Lab) -> None:
    """Prefill keeps it, and decode stands still with the request in its socket."""
    prefill, decode = both(lab)
    with decode.frozen():
        with clients(lab, 1, 900, 5200):
            lab.until(lambda: prefill.figures()["kv_use"] > 0, timeout_s=LEASE_S / 2, what="prefill keeps it")
        lab.until(lambda: lab.routed(TINY, "inflight") == 0, timeout_s=5, what="the router has let go")
    all_free_within_the_lease(lab)


def test_while_the_kv_is_on_its_way(lab: Lab) -> None:
    """Prefill stands still in the middle of the transfer."""
    prefill, decode = both(lab)
    with ExitStack() as stack, clients(lab, 1, 2000, 5300):  # the client leaves first
        with decode.frozen():
            lab.until(lambda: prefill.figures()["kv_use"] > 0, timeout_s=LEASE_S / 2, what="prefill keeps it")
            stack.enter_context(prefill.frozen())
        lab.until(lambda: decode.fetching() == 1, timeout_s=LEASE_S / 2, what="decode fetches")
    all_free_within_the_lease(lab)


@pytest.mark.parametrize("events", [1, 8])
def test_at_the_first_token_and_in_mid_stream(lab: Lab, events: int) -> None:
    both(lab)
    with httpx.stream(
        "POST", f"{lab.router(TINY)}/v1/completions", json=BODY | {"prompt": prompt(300, 5400 + events)}, timeout=30
    ) as answer:
        told = [line for line, _ in zip(filter(None, answer.iter_lines()), range(events), strict=False)]
    assert len(told) == events and told[0].startswith("data: {")
    all_free_within_the_lease(lab)


def test_kv_that_nobody_fetches_goes_with_its_lease(lab: Lab) -> None:
    """Prefill keeps it for as long as the release says, counts it, and frees it; the agent tells."""
    prefill, _ = both(lab)
    before = prefill.figures()["expired"]
    params = {"do_remote_decode": True, "do_remote_prefill": False}
    assert ask(prefill.url, TINY, prompt(40, 5500), max_tokens=1, kv_transfer_params=params).json()["kv_transfer_params"]
    kept_s = -time.monotonic()
    assert prefill.figures()["kv_use"] > 0
    lab.until(lambda: prefill.figures()["kv_use"] == 0, timeout_s=LEASE_S + 10, what="the lease is over")
    assert LEASE_S * 0.8 < kept_s + time.monotonic() < LEASE_S + 5
    lab.until(lambda: prefill.figures()["expired"] == before + 1, timeout_s=15, what="it is counted")
    lab.until(lambda: lab.gauges(TINY, Role.PREFILL).get("kv_expired") == before + 1, timeout_s=15, what="the agent tells")


def test_a_decode_that_comes_too_late_gets_nothing_to_do(lab: Lab) -> None:
    """It stands still for longer than prefill keeps the KV, and would then read whatever lies there. The router gives it up before."""
    prefill, decode = both(lab)
    lost, asked = lab.routed(TINY, "events_total", event="kv.expired"), prefill.figures()["prompt"]
    tokens = prompt(700, 5600)
    with ThreadPoolExecutor(2) as pool, decode.frozen():
        began_s = time.monotonic()
        whole = pool.submit(ask, lab.router(TINY), TINY, tokens)
        streamed = pool.submit(ask, lab.router(TINY), TINY, prompt(700, 5601), stream=True)
        for answer in (whole.result(), streamed.result()):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_unit")
        took_s = time.monotonic() - began_s
        lab.until(lambda: prefill.figures()["kv_use"] == 0, timeout_s=LEASE_S + 5, what="the lease is over")
    assert LEASE_S * 0.6 < took_s < LEASE_S + 2, took_s
    assert lab.routed(TINY, "events_total", event="kv.expired") == lost + 2
    assert prefill.figures()["prompt"] - asked == 1400  # each asked once: there was no other decode to begin anew for
    answer = lab.until(lambda: (now := ask(lab.router(TINY), TINY, tokens)).status_code == 200 and now, timeout_s=30, what="it is in again")
    assert said(answer) == lab.alone(tokens)
    all_free_within_the_lease(lab)
