"""The main job, as a user sees it: what the demo serves, what a dry run says, how requests are routed, what is measured."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import httpx
import pytest
from openai import DefaultHttpxClient, OpenAI

from fleets.domain.views import FleetMap
from releases.domain.views import StageView
from tests.e2e.instance import ROOT, Instance

pytestmark = pytest.mark.e2e

STAGE = "ds-flash/prod-us"


def stage_of(demo: Instance) -> StageView:
    return demo.client().get(f"stages/{STAGE}", StageView)


def test_two_units_serve_under_traffic(demo: Instance) -> None:
    view = stage_of(demo)
    assert view.simulated
    assert [unit.shape for unit in view.units] == ["2P1D", "2P1D"]
    assert view.units_ready == 2
    assert {unit.domain for unit in view.units} == {"gb200-use1/d01", "gb200-use1/d02"}
    demo.until(lambda: all(alarm.value is not None for alarm in stage_of(demo).alarms), timeout_s=30, what="figures beside every alarm")


def test_the_fleets_are_as_said(demo: Instance) -> None:
    fleets = {fleet.fleet: fleet for fleet in demo.client().get_list("fleets", FleetMap)}
    gb200, h200 = fleets["gb200-use1"], fleets["h200-use1"]
    assert (gb200.gpus, gb200.nodes, len(gb200.domains), gb200.free) == (216, 54, 3, 72)
    assert (h200.gpus, h200.nodes, len(h200.domains)) == (32, 4, 4)


def test_a_unit_that_does_not_fit_is_refused_with_its_arithmetic(demo: Instance) -> None:
    done = demo.run("release", "-f", str(ROOT / "examples/ds-flash-on-h200.yaml"), "--dry-run")
    assert done.status == 1
    assert "error  stage prod-us: fleet h200-use1 domain is 8 GPUs; serving unit needs 72 (same-domain)" in done.err
    assert "short by 64" in done.err


def test_a_unit_that_fits_gets_a_plan(demo: Instance) -> None:
    done = demo.run("release", "-f", str(ROOT / "examples/ds-flash-next.yaml"), "--dry-run")
    assert done.status == 0, done.err
    assert "canary 10%" in done.out
    assert "way back" in done.out
    assert "0 errors" in done.out


@pytest.mark.parametrize(("tokens", "route", "reason"), [(40, "local", "short"), (20_000, "remote", "remote"), (300, "local", "short")])
def test_where_a_prompt_is_prefilled(demo: Instance, tokens: int, route: str, reason: str) -> None:
    """The three worked cases; each prompt is new, so nothing of it is cached."""

    def count() -> int:
        return int(demo.run("metrics", STAGE, "--json").json()["total"]["reasons"].get(reason, 0))

    prompt = f"{time.time_ns():x} ".ljust(tokens * 4 - 64, "x")
    before = count()
    answer = httpx.post(
        f"{stage_of(demo).endpoint}/v1/chat/completions",
        json={"model": "ds-flash", "messages": [{"role": "user", "content": prompt}], "max_tokens": 3},
        timeout=30,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    assert abs(answer.json()["usage"]["prompt_tokens"] - tokens) < 40
    demo.until(lambda: count() > before, timeout_s=15, what=f"one more request prefilled {route} ({reason})")


def test_the_openai_client_streams_through_the_router(demo: Instance) -> None:
    client = OpenAI(base_url=f"{stage_of(demo).endpoint}/v1", api_key="any", http_client=DefaultHttpxClient(trust_env=False))
    assert [model.id for model in client.models.list()] == ["ds-flash"]
    chunks: list[Any] = list(
        client.chat.completions.create(
            model="ds-flash",
            messages=[{"role": "user", "content": "Say something."}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.completion_tokens == 8
    done = client.completions.create(model="ds-flash", prompt="Once upon a time", max_tokens=5)
    assert done.usage is not None
    assert (done.choices[0].text != "", done.usage.completion_tokens) == (True, 5)


def test_replay_and_metrics_agree(demo: Instance) -> None:
    """What the client saw and what the router counted are the same latencies, seen from two ends.

    Measured on a quiet machine they agree within 3%; the bounds here leave room for a suite that runs beside.
    """

    def counted(since: str) -> Any:
        return demo.run("metrics", STAGE, "--since", since, "--json").json()["total"]

    traffic = demo.pids()["traffic"]
    os.kill(traffic, signal.SIGSTOP)  # the demo's own requests would be in the figures too
    try:
        # Figures are kept in windows of 10 s: those before the replay must be empty, or they would be read with it.
        demo.until(lambda: counted("10s")["requests"] == 0, timeout_s=90, what="the demo's requests are over")
        began_s = time.monotonic()
        trace = ROOT / "denvweb/local/data/mooncake_conversation.jsonl"
        report = demo.run("replay", str(trace), "--stage", STAGE, "--duration", "20s", "--json", timeout_s=180).json()
        assert (report["failed"], report["completed"]) == (0, report["requests"])

        def all_counted() -> Any:
            total = counted(f"{int(time.monotonic() - began_s) + 1}s")
            return total["latencies"] if total["requests"] == report["requests"] else None

        seen = demo.until(all_counted, timeout_s=20, what="every request is in the figures, and no other")
        for name in ("ttft", "itl"):
            assert report[f"{name}_p50_ms"] == pytest.approx(seen[name]["p50_s"] * 1000, rel=0.06, abs=8), name
            assert report[f"{name}_p99_ms"] == pytest.approx(seen[name]["p99_s"] * 1000, rel=0.15, abs=15), name
    finally:
        os.kill(traffic, signal.SIGCONT)


def test_a_stage_that_is_not_there_is_404(demo: Instance) -> None:
    done = demo.run("rollout", "show", "ds-flash/nowhere")
    assert done.status == 1
    assert "nowhere" in done.err


@pytest.mark.parametrize("command", [("stages",), ("fleets",), ("nodes",), ("recipes",), ("releases", "ds-flash"), ("events", STAGE)])
def test_every_list_prints_and_has_json(demo: Instance, command: tuple[str, ...]) -> None:
    plain, structured = demo.run(*command), demo.run(*command, "--json")
    assert plain.status == structured.status == 0, plain.err + structured.err
    assert plain.out.strip()
    assert structured.json()
