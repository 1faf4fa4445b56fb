"""A canary of a second release on real engines, judged by real requests, and the way back."""

from __future__ import annotations

import subprocess
import threading
import time

import httpx
import pytest

from fleets.domain.types import Role
from tests.vllm.client import ask, prompt, said
from tests.vllm.load import Load
from tests.vllm.test_c_deaths import lost_kv, right
from tests.vllm.world import TINY, WHOLE, Lab, Tools

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

POLICY = "{ canary: 50%, steps: [100%], hold: 3s, bake: 3s, min-requests: 10, max-wait: 2m }"


RECOMPUTE = "{ decode: { kv-load-failure-policy: recompute, max-num-seqs: 8 }, prefill: { max-num-seqs: 8 } }"


def test_a_second_release_and_back(lab: Lab, tools: Tools) -> None:
    """Both serve during the canary, nobody notices, and one call goes back. The second computes lost KV itself and tells events."""
    lab.serving(WHOLE)
    before = lab.serving(TINY).release
    engines_before = {engine.pid for engine in lab.engines(TINY)}
    url = lab.router(TINY)
    with Load(url, TINY, threads=2, seed=700_000) as load:
        rollout = lab.release(TINY, engine=RECOMPUTE, policy=POLICY, kv_cache="{ events: true }")
        second = lab.until(lambda: lab.rollout(rollout).to_release, timeout_s=60, what="the rollout")
        lab.until(lambda: lab.stage(TINY).releases.get(f"{TINY}@{second}", 0) > 0, timeout_s=420, what="canary")
        lab.until(lambda: not lab.rollout(rollout).active, timeout_s=420, what="the rollout is over")
        assert lab.rollout(rollout).state == "succeeded", lab.rollout(rollout)
    assert not load.failed, load.failed
    assert lab.stage(TINY).release == second
    kv_events_are_told(lab, tools)
    lost_kv_is_computed_by_the_engine(lab)
    with Load(url, TINY, threads=2, seed=800_000) as after:
        began_s = time.monotonic()
        back = lab.denv.run("rollback", f"{TINY}/lab", "--yes", "--reason", "a test of the way back", timeout_s=420)
        took_s = time.monotonic() - began_s
        assert back.status == 0, back.err
        lab.until(lambda: lab.stage(TINY).state == "steady", timeout_s=420, what="steady again")
        after.wait_for(10)
    stage = lab.stage(TINY)
    assert stage.release == before
    assert stage.routers.weights == {f"{TINY}@{before}": 10_000}
    print(f"rollback took {took_s:.1f} s; {len(load.answered)} and {len(after.answered)} answered")
    print(f"engines that stayed: {len(engines_before & {engine.pid for engine in lab.engines(TINY)})} of {len(engines_before)}")
    assert not after.failed, after.failed
    right(lab, load)
    right(lab, after)
    tokens = prompt(500, 8000)
    assert said(ask(url, TINY, tokens)) == lab.alone(tokens)


LISTENER = """
import sys, zmq
heard = zmq.Context().socket(zmq.SUB)
heard.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
heard.setsockopt(zmq.SUBSCRIBE, b"")
print("listens", flush=True)
print(heard.recv_multipart()[0].decode(), flush=True)
"""


def kv_events_are_told(lab: Lab, tools: Tools) -> None:
    """On the port that denv gave: a subscriber hears of new blocks, under the topic that denv names, and so does the router."""
    port = lab.engine(TINY, Role.PREFILL).events_port
    with subprocess.Popen([tools.python, "-c", LISTENER, str(port)], stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        try:
            assert listener.stdout.readline() == "listens\n"
            heard = threading.Thread(target=listener.wait, args=(60,))
            heard.start()
            seed = 8200
            while heard.is_alive():  # who subscribes hears only of what comes after the connection stands
                seed += 1
                ask(lab.router(TINY), TINY, prompt(200, seed))
                heard.join(0.5)
            assert listener.stdout.readline() == "kv-events\n"
        finally:
            listener.kill()
    lab.until(lambda: _router_says(lab, "kv_event_batches_total") > 0, timeout_s=20, what="the router hears of blocks")
    assert _router_says(lab, "kv_events_lost_total") == 0


def _router_says(lab: Lab, name: str) -> float:
    """A figure of the router's process, which has no labels."""
    lines = httpx.get(f"{lab.router(TINY)}/metrics", timeout=20).text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"denv_router_{name} "))


def lost_kv_is_computed_by_the_engine(lab: Lab) -> None:
    """Policy `recompute`: prefill is killed before decode has fetched a byte, and the router hears of no failure."""
    prefill, decode = lab.engine(TINY, Role.PREFILL), lab.engine(TINY, Role.DECODE)
    lost, failed = lab.routed(TINY, "kv_failed_total"), decode.figures()["failed"]
    prompts = [prompt(400, 8100), prompt(500, 8101)]
    assert lost_kv(lab, prefill, decode, prompts) == [lab.alone(tokens) for tokens in prompts]
    assert lab.routed(TINY, "kv_failed_total") == lost
    lab.until(lambda: decode.figures()["failed"] > failed, timeout_s=15, what="decode counts it")
