"""A canary of a second release on real engines, judged by real requests, and the way back."""

from __future__ import annotations

import time

import pytest

from fleets.domain.types import Role
from tests.vllm.client import ask, prompt, said
from tests.vllm.load import Load
from tests.vllm.test_a_serving import APART, WHOLE
from tests.vllm.world import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

POLICY = "{ canary: 50%, steps: [100%], hold: 3s, bake: 3s, min-requests: 10, max-wait: 2m }"


def test_a_second_release_and_back(lab: Lab) -> None:
    """Both releases serve during the canary, nobody notices, and one call goes back."""
    lab.serving("tiny-whole", WHOLE)
    before = lab.serving("tiny", APART).release
    engines_before = {engine.pid for engine in lab.engines("tiny")}
    url = lab.router("tiny")
    with Load(url, "tiny", threads=2, seed=700_000, pause_s=0.3) as load:
        rollout = lab.release("tiny", APART, engine="{ decode: { max-num-seqs: 8 }, prefill: { max-num-seqs: 8 } }", policy=POLICY)
        lab.until(lambda: lab.stage("tiny").releases.get(f"tiny@{lab.rollout(rollout).to_release}", 0) > 0, timeout_s=420, what="canary")
        lab.until(lambda: not lab.rollout(rollout).active, timeout_s=420, what="the rollout is over")
        assert lab.rollout(rollout).state == "succeeded", lab.rollout(rollout)
        began_s = time.monotonic()
        back = lab.denv.run("rollback", "tiny/lab", "--yes", "--reason", "a test of the way back", timeout_s=420)
        took_s = time.monotonic() - began_s
        assert back.status == 0, back.err
        lab.until(lambda: lab.stage("tiny").state == "steady", timeout_s=420, what="steady again")
        load.wait_for(10)
    stage = lab.stage("tiny")
    assert stage.release == before
    assert stage.routers.weights == {f"tiny@{before}": 10_000}
    print(f"rollback took {took_s:.1f} s; {len(load.answered)} answered, {len(load.failed)} failed: {load.failed[:3]}")
    print(f"engines that stayed: {len(engines_before & {engine.pid for engine in lab.engines('tiny')})} of {len(engines_before)}")
    assert not load.failed
    whole = lab.engine("tiny-whole", Role.AGGREGATED)
    for tokens, answer in load.answered[:: max(1, len(load.answered) // 50)]:
        assert said(ask(whole.url, "tiny-whole", tokens)) == answer
    assert said(ask(url, "tiny", prompt(500, 8000)))
