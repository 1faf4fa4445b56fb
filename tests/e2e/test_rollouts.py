"""Rollouts on real processes under traffic: a bad release goes back by itself, a good one stays, and the way back is one call."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from denvweb.cli.client import Client
from metrics.domain.views import EventView
from releases.domain.views import PreflightView, RolloutView, StageView
from tests.e2e.instance import ROOT, Instance

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

STAGE = "ds-flash/prod-us"
# Shorter holds and a wider canary than a person would choose: the judge is the same, it only gets its requests sooner.
POLICY = "rollout: { canary: 30%, steps: [100%], hold: 4s, bake: 6s, min-requests: 20, max-wait: 2m }"


def release_file(tmp_path: Path, name: str, change: str) -> Path:
    text = (ROOT / "denvweb/local/data/demo.yaml").read_text(encoding="utf-8")
    lines = [f"    {POLICY}" if line.strip().startswith("rollout:") else line for line in text.splitlines()]
    at = next(index for index, line in enumerate(lines) if line.startswith("stages:"))
    path = tmp_path / f"{name}.yaml"
    path.write_text("\n".join([*lines[:at], change, *lines[at:]]) + "\n", encoding="utf-8")
    return path


def start_traffic(demo: Instance, seconds: int) -> Any:
    trace = ROOT / "denvweb/local/data/mooncake_conversation.jsonl"
    return demo.spawn("replay", str(trace), "--stage", STAGE, "--speed", "3", "--duration", f"{seconds}s", "--json")


def report_of(traffic: Any) -> dict[str, Any]:
    out, _ = traffic.communicate(timeout=180)
    report: dict[str, Any] = json.loads(out)
    return report


def roll_out(demo: Instance, path: Path) -> str:
    done = demo.run("release", "-f", str(path), "--json")
    assert done.status == 0, done.err
    rollout: str = done.json()["rollouts"][0]["id"]
    return rollout


def ended(client: Client, rollout: str) -> RolloutView | None:
    view = client.get(f"rollouts/{rollout}", RolloutView)
    return None if view.active else view


def events_of(demo: Instance, rollout: str) -> list[EventView]:
    rows = demo.client().get_list(f"stages/{STAGE}/events", EventView, limit=200)
    return [row for row in rows if row.rollout == rollout]


def test_a_slow_release_goes_back_by_itself(demo: Instance, tmp_path: Path) -> None:
    stable = demo.client().get(f"stages/{STAGE}", StageView).release
    traffic = start_traffic(demo, 90)
    path = release_file(tmp_path, "slow", "  simulated-faults: { decode: { slow-factor: 3 } }")
    rollout = roll_out(demo, path)
    view = demo.until(lambda: ended(demo.client(), rollout), timeout_s=150, what="the slow release is judged")
    assert view.state == "rolled-back", view.why
    report = report_of(traffic)
    assert report["failed"] == 0, report
    breach = [event for event in events_of(demo, rollout) if "itl-p99" in event.sentence and event.evidence]
    assert breach, [event.sentence for event in events_of(demo, rollout)]
    stage = demo.client().get(f"stages/{STAGE}", StageView)
    assert stage.release == stable
    assert stage.routers.weights == {f"ds-flash@{stable}": 10_000}


def test_a_good_release_stays_and_one_call_goes_back(demo: Instance, tmp_path: Path) -> None:
    client = demo.client()
    before = client.get(f"stages/{STAGE}", StageView).release
    traffic = start_traffic(demo, 100)
    rollout = roll_out(demo, release_file(tmp_path, "good", "  engine: { decode: { speculative-draft-length: 3 } }"))
    view = demo.until(lambda: ended(demo.client(), rollout), timeout_s=200, what="the good release is through")
    assert view.state == "succeeded", view.why

    preflight = client.get(f"stages/{STAGE}/preflight", PreflightView)
    assert (preflight.possible, preflight.to_release) == (True, before)
    assert preflight.warm_units == 1
    assert "warm" in preflight.sentence
    began_s = time.monotonic()
    done = demo.run("rollback", STAGE, "--yes", "--reason", "a test of the way back")
    took_s = time.monotonic() - began_s
    assert done.status == 0, done.err
    assert f"all traffic on {before}" in done.out
    assert took_s < 20, done.out  # seconds, not a cold start; the figure itself is the benchmark's
    demo.until(lambda: client.get(f"stages/{STAGE}", StageView).state == "steady", timeout_s=90, what="both units are back")
    assert report_of(traffic)["failed"] == 0
