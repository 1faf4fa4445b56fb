"""Scaling on real processes: a prefill pool grows by its load and is drained by hand, and no request is lost on either way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from releases.domain.scaling_views import ScaleView
from releases.domain.views import StageView
from tests.e2e.instance import ROOT, Instance

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STAGE = "llama-70b/elastic"


def prompts(demo: Instance, tmp_path: Path, name: str, *, per_s: float, seconds: int) -> Any:
    """Prompts of 3,000 tokens, each of them new, with short answers."""
    trace = tmp_path / f"{name}.csv"
    rows = (f"{index / per_s},3000,8" for index in range(int(seconds * per_s)))
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return demo.spawn("replay", str(trace), "--stage", STAGE, "--json")


def failed(traffic: Any) -> tuple[int, int]:
    """Requests that failed, and those that did not."""
    out, err = traffic.communicate(timeout=120)
    report = json.loads(out) if out else pytest.fail(err)
    return report["failed"], report["completed"]


def test_a_prefill_pool_grows_under_load_and_is_drained_without_losing_a_request(demo: Instance, tmp_path: Path) -> None:
    client = demo.client()

    def view() -> ScaleView:
        return client.get(f"stages/{STAGE}/scale", ScaleView)

    def prefill(what: str) -> int:
        return int(getattr(next(knob for knob in view().knobs if knob.knob == "prefill"), what))

    done = demo.run("release", "-f", str(ROOT / "examples/llama-70b-elastic.yaml"))
    assert done.status == 0, done.err
    demo.until(lambda: client.get(f"stages/{STAGE}", StageView).state == "steady", timeout_s=90, what="the stage serves")
    demo.until(lambda: client.get(f"stages/{STAGE}", StageView).endpoint, timeout_s=30, what="its router is there")
    load = prompts(demo, tmp_path, "load", per_s=4, seconds=24)
    demo.until(lambda: prefill("ready") >= 2, timeout_s=60, what="a prefill replica more serves")
    decided = next(event for event in view().decisions if event.kind == "scale.decided" and "prefill 1 ->" in event.sentence)
    assert decided.evidence["budget_gpus"] == 8
    print(demo.run("scale", STAGE).out)  # shown when it fails
    assert failed(load)[0] == 0

    refused = demo.run("scale", STAGE, "--prefill", "9")
    assert refused.status == 2 and "max: 9" in refused.err
    light = prompts(demo, tmp_path, "light", per_s=1, seconds=20)
    set_by_hand = demo.run("scale", STAGE, "--prefill", "1", "--reason", "the launch is over")
    assert set_by_hand.status == 0 and "set by" in set_by_hand.out, set_by_hand.err
    print(set_by_hand.out)
    demo.until(
        lambda: len(client.get(f"stages/{STAGE}", StageView).units[0].pools[0].replicas) == 1,
        timeout_s=90,
        what="the drained replicas have ended",
    )
    lost, answered = failed(light)
    assert lost == 0 and answered == 20
    given_back = demo.run("scale", STAGE, "--auto")
    assert given_back.status == 0, given_back.err
    print(given_back.out)
    assert [knob.held_by for knob in view().knobs] == ["", "", ""]
