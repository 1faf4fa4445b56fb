"""kill -9 of each program, one after another, under traffic and in mid-rollout: the rollout ends as it should."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from releases.domain.views import RolloutView, StageView
from tests.e2e.instance import Instance
from tests.e2e.test_rollouts import STAGE, ended, release_file, report_of, roll_out, start_traffic

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]

CONTROL_PLANE = ("worker", "beat", "web", "valkey", "postgres", "agent-gb200-use1")
ROUTER = "router-ds-flash-prod-us"


def kill_and_await(demo: Instance, name: str) -> None:
    """kill -9 one program; return once its supervisor has another one running."""
    before = demo.pids()[name]
    os.kill(before, signal.SIGKILL)
    demo.until(lambda: demo.pids().get(name) not in (None, before), timeout_s=30, what=f"{name} runs again")


def state_of(demo: Instance) -> StageView:
    return demo.client().get(f"stages/{STAGE}", StageView)


def test_the_control_plane_dies_in_mid_rollout(demo: Instance, tmp_path: Path) -> None:
    """Nothing of it serves requests, so no request fails; and the rollout goes on where it was."""
    traffic = start_traffic(demo, tmp_path, 45)
    rollout = roll_out(demo, release_file(tmp_path, "kills", "  engine: { decode: { speculative-draft-length: 4 } }"))
    for name in CONTROL_PLANE:
        kill_and_await(demo, name)
    view = demo.until(lambda: ended(demo.client(), rollout), timeout_s=240, what="the rollout is through")
    assert view.state == "succeeded", view.why
    report = report_of(traffic)
    assert report["failed"] == 0, report


def test_an_engine_rank_dies(demo: Instance, tmp_path: Path) -> None:
    """The replica dies as a gang and comes back; only requests on it fail."""
    demo.until(lambda: state_of(demo).units_ready == 2, timeout_s=60, what="both units ready")
    traffic = start_traffic(demo, tmp_path, 10)
    follower = demo.engines(kind="follower.py")[0]
    gang = follower.environ()["DENV_NODE"].rsplit("-", 1)[0]
    demo.until(lambda: state_of(demo).routers.inflight, timeout_s=20, what="requests in flight")
    follower.kill()
    demo.until(lambda: any(not unit.complete for unit in state_of(demo).units), timeout_s=20, what=f"the unit in {gang} is not complete")
    demo.until(lambda: all(unit.complete for unit in state_of(demo).units), timeout_s=60, what="the gang is back")
    report = report_of(traffic)
    assert report["completed"] > 0
    assert report["failed"] <= 30, report  # what was in flight on one of the two units


def test_the_router_dies(demo: Instance, tmp_path: Path) -> None:
    """It starts from its table on disk; requests on it are lost, later ones are served."""
    traffic = start_traffic(demo, tmp_path, 10)
    demo.until(lambda: state_of(demo).routers.inflight, timeout_s=20, what="requests in flight")
    kill_and_await(demo, ROUTER)
    demo.until(lambda: state_of(demo).routers.live == 1, timeout_s=30, what="the router reports again")
    report = report_of(traffic)
    assert report["completed"] > 0, report


def test_rollback_is_not_lost_with_the_web_process(demo: Instance) -> None:
    """Accepted is committed: the process that took the call dies right after it."""
    before = state_of(demo).release
    answer = demo.client().post(f"stages/{STAGE}/rollback", RolloutView, {"reason": "a test"})
    for name in ("web", "worker"):
        os.kill(demo.pids()[name], signal.SIGKILL)
    view = demo.until(lambda: ended(demo.client(), answer.id), timeout_s=120, what="the rollback is through")
    assert view.to_release != before
    assert state_of(demo).routers.weights == {f"ds-flash@{view.to_release}": 10_000}
