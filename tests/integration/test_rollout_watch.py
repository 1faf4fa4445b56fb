"""`denv rollout watch` as a person sees it: the tree, where it stands, and always why it waits."""

from __future__ import annotations

import click
import pytest

from denvweb.cli.rollout_text import rollout_text
from releases.selectors.rollouts import rollout_view
from releases.selectors.stages import stage_view
from releases.services import rollouts
from tests.integration.rollouts_world import STAGE, Demo

pytestmark = pytest.mark.django_db


def test_the_tree_from_the_start_to_where_it_stopped() -> None:
    demo = Demo()
    demo.first()
    pk = demo.release(block=32, approve="manual").pk
    while demo.rollout().reason != "approval":
        demo.tick(9.0, requests=400)
    text = rollout_text(rollout_view(id=pk), stage_view(stage=STAGE), demo.fleets.now)
    lines = click.unstyle(text).splitlines()
    assert lines[0].startswith("ds-flash/prod-us   1 -> 2   held (approval)   10% on 2   step 2 of ")
    assert "|- unit 1  release 1   45% wanted, 45% seen   ready, probed" in lines
    assert "`- unit 3  release 2   10% wanted, 10% seen   ready, probed" in lines
    assert any(line.startswith("   `- decode     1 of 1 ready   gb200-use1/") for line in lines)
    assert any(line.startswith("      `- replica 1  ready") for line in lines)
    assert any(line.startswith(">  2  canary 10%") for line in lines) and any(line.startswith("x  1  unit 3") for line in lines)
    assert any("ttft-p99" in line and "n=" in line and "k=0" in line and "rolls back at" in line for line in lines)
    assert lines[-1] == "why it waits: waits for a person to approve more than 10% on release 2"

    rollouts.rollback(stage=STAGE, actor="ada", via="cli", reason="not today")
    demo.settle()
    over = click.unstyle(rollout_text(rollout_view(id=pk), stage_view(stage=STAGE), demo.fleets.now)).splitlines()
    assert any(line.startswith("!  2  canary 10%  stopped here;") for line in over)
    assert not any("skipped" in line for line in over)
    assert over[-1].startswith("outcome: release 1 has all traffic again")
