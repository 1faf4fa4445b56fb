"""Whole journeys on the database: first deployment, canary, breach, success, one-click rollback, healing."""

from __future__ import annotations

import pytest

from fleets.services import unit_stop
from releases.models import Release, Rollout
from releases.services import rollouts
from releases.services.releases import release_create
from tests.integration.rollouts_world import STAGE, Demo, release_yaml

pytestmark = pytest.mark.django_db


def test_the_first_release_serves_with_all_its_units() -> None:
    demo = Demo()
    demo.first()
    assert demo.weights() == {"ds-flash@1": 10_000}
    assert [(unit.slot, unit.routable, unit.probed) for unit in demo.units()] == [(1, True, True), (2, True, True)]
    stage = demo.stage()
    assert stage.release is not None and stage.release.number == 1 and stage.previous is None
    assert demo.kinds()[0] == "rollout.started" and "rollout.succeeded" in demo.kinds()


def test_a_good_release_succeeds_by_itself_and_a_click_takes_it_back_at_once() -> None:
    demo = Demo()
    demo.first()
    demo.release(block=32)
    demo.settle()
    assert demo.weights() == {"ds-flash@1": 9000, "ds-flash@2": 1000}
    row = demo.through(until={Rollout.State.SUCCEEDED, Rollout.State.ROLLED_BACK})
    assert row.state == Rollout.State.SUCCEEDED, row.why
    assert {verdict["alarm"] for verdict in row.verdicts} == {"ttft-p99", "error-rate", "errors-plainly"}
    demo.settle()
    assert len(demo.units(2)) == 2 and len(demo.units(1)) == 1, "one old unit stays warm"
    stage = demo.stage()
    assert stage.release and stage.release.number == 2 and stage.previous and stage.previous.number == 1

    back = rollouts.rollback(stage=STAGE, actor="oncall", via="ui", reason="users complain")
    again = rollouts.rollback(stage=STAGE, actor="slack-user", via="slack")
    assert back.pk == again.pk and back.kind == "rollback"
    demo.tick()
    assert demo.weights() == {"ds-flash@1": 10_000}, "the first look flips the traffic to the warm unit"
    demo.settle()
    assert demo.rollout().state == Rollout.State.ROLLED_BACK, demo.rollout().why
    assert len(demo.units(1)) == 2 and len(demo.units(2)) == 1
    stage = demo.stage()
    assert stage.release and stage.release.number == 1 and stage.previous is None, "the way back never leads to a held release"
    assert "oncall" in Release.objects.get(number=2).held_reason
    assert demo.kinds().count("rollback.requested") == 2

    demo.release(block=64)
    demo.settle()
    assert demo.weights() == {"ds-flash@1": 9000, "ds-flash@3": 1000}, demo.rollout().why
    assert not demo.units(2), "the warm unit gave way to the next release"


def test_a_slow_release_is_taken_back_by_its_alarm() -> None:
    demo = Demo()
    demo.first()
    demo.slow = "ds-flash@2"
    demo.release(block=32)
    demo.settle()
    row = demo.through(until={Rollout.State.ROLLED_BACK, Rollout.State.SUCCEEDED})
    assert row.state == Rollout.State.ROLLED_BACK
    assert row.data["cause"]["code"] == "breach" and row.data["cause"]["evidence"]["alarm"] == "ttft-p99"
    assert demo.weights() == {"ds-flash@1": 10_000}
    demo.settle()
    assert len(demo.units(1)) == 2 and not demo.units(2)
    assert Release.objects.get(number=2).held_reason
    stage = demo.stage()
    assert stage.release and stage.release.number == 1


def test_a_full_fleet_goes_one_unit_at_a_time_and_comes_back_cold() -> None:
    demo = Demo(domains=2)
    demo.first()
    demo.release(block=32)
    row = demo.through(until={Rollout.State.SUCCEEDED, Rollout.State.ROLLED_BACK})
    assert row.state == Rollout.State.SUCCEEDED, row.why
    assert len(demo.units(2)) == 2 and not demo.units(1)
    rollouts.rollback(stage=STAGE, actor="oncall", via="ui")
    demo.settle(most=60)
    assert demo.rollout().state == Rollout.State.ROLLED_BACK, demo.rollout().why
    assert len(demo.units(1)) == 2 and not demo.units(2)


def test_a_stage_heals_between_rollouts_and_more_units_need_no_canary() -> None:
    demo = Demo()
    demo.first()
    unit_stop(unit=demo.units()[0].unit)
    demo.settle()
    assert len(demo.units(1)) == 2 and all(unit.routable and unit.probed for unit in demo.units(1))
    before = {unit.unit for unit in demo.units()}
    demo.release(units=3)
    demo.settle()
    assert demo.rollout().state == Rollout.State.SUCCEEDED, demo.rollout().why
    assert before < {unit.unit for unit in demo.units(2)} and len(demo.units(2)) == 3


def test_one_more_prefill_replica_restarts_no_engine() -> None:
    demo = Demo(gpus=12)
    demo.first()
    before = {replica.replica for unit in demo.units() for pool in unit.pools for replica in pool.replicas}
    demo.release(prefills=2)
    demo.settle()
    assert demo.rollout().state == Rollout.State.SUCCEEDED, demo.rollout().why
    after = {replica.replica for unit in demo.units(2) for pool in unit.pools for replica in pool.replicas}
    assert before < after and len(after) == 6


def test_a_later_stage_waits_and_a_cancelled_wait_changes_nothing() -> None:
    demo = Demo()
    demo.first()
    before = demo.stage().settings
    staged = release_yaml(block=32, units=1).replace("stages:", "stages:\n  staging: { fleets: [gb200-use1] }")
    first, second = release_create(yaml=staged, actor="ada", via="cli").rollouts
    assert second.after_id == first.pk
    demo.tick()
    second.refresh_from_db()
    assert second.state == Rollout.State.PENDING and "before it" in second.why
    assert len(demo.units(1)) == 2, "a stage that waits is still healed, to the release that serves"
    rollouts.rollback(stage=STAGE, actor="oncall", via="ui")
    demo.tick()
    second.refresh_from_db()
    assert second.state == Rollout.State.ROLLED_BACK and not second.to_release.held_reason
    assert demo.stage().settings == before and len(demo.units(1)) == 2
