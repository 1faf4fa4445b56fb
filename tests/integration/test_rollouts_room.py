"""The plan that is shown is the one that runs, or is made anew with what is free by then, or waits with the new reason."""

from __future__ import annotations

import pytest

from fleets.domain.protocol import GpuReport, RankReport
from fleets.domain.types import RankState, UnitSpec
from fleets.models import GpuClaim
from fleets.services import unit_stop
from releases.models import Rollout
from tests.integration.fleets_world import unit_spec
from tests.integration.rollouts_world import Demo

pytestmark = pytest.mark.django_db


def _shown(row: Rollout) -> list[str]:
    """The domains that a plan names, in its order."""
    words = " ".join(f"{step['title']} {step['detail']}" for step in row.plan["steps"]).replace(",", " ").split()
    return [word for word in words if word.startswith("gb200-use1/")]


def _other() -> UnitSpec:
    """A unit of another stage that fills a domain."""
    return unit_spec(prefill=(4, 1), decode=(4, 1), stage="other/prod", release="other@1")


def test_the_plan_shown_is_claimed_and_run_as_shown() -> None:
    demo = Demo()
    row = demo.release()
    shown = _shown(row)
    assert len(shown) == 2
    demo.settle()
    assert [unit.domain for unit in demo.units()] == shown
    assert GpuClaim.objects.count() == 16
    assert _shown(demo.rollout()) == shown


def test_a_plan_whose_place_was_taken_is_made_anew_and_says_so() -> None:
    demo = Demo()
    shown = _shown(demo.release())
    demo.fleets.unit(_other())  # before the rollout begins
    taken = GpuClaim.objects.values_list("node__domain", flat=True).distinct().get()
    assert taken in shown
    demo.settle()
    row = demo.rollout()
    assert row.state == Rollout.State.SUCCEEDED
    assert taken not in _shown(row)
    assert [unit.domain for unit in demo.units()] == _shown(row)


def test_a_plan_that_fits_no_more_waits_with_the_new_reason_and_goes_on_when_there_is_room() -> None:
    demo = Demo(domains=2)
    demo.release()
    other = demo.fleets.unit(_other())
    for _ in range(5):
        demo.tick()
    row = demo.rollout()
    assert row.state not in Rollout.ENDED
    assert not demo.units()
    assert row.why == "waits for room: fleet gb200-use1 has no domain with 8 GPUs free; serving unit needs 8 (same-domain)"
    unit_stop(unit=other)
    demo.settle()
    assert demo.rollout().state == Rollout.State.SUCCEEDED
    assert len(demo.units()) == 2


def _break(demo: Demo, domain: str) -> None:
    agent = demo.fleets.agents[domain.replace("/", "-") + "-n01"]
    agent.gpus = tuple(GpuReport(index, healthy=index != 0, detail="Xid 79" if index == 0 else "") for index in range(8))


def test_a_unit_on_a_broken_gpu_moves_to_another_domain_and_where_there_is_none_it_serves_on() -> None:
    demo = Demo(domains=3)
    demo.first()
    first = demo.units()[0]
    _break(demo, first.domain)
    demo.settle()
    assert first.unit not in [unit.unit for unit in demo.units()]
    assert len(demo.units()) == 2 and all(unit.routable and unit.complete and not unit.leaving for unit in demo.units())
    second = demo.units()[0]
    _break(demo, second.domain)  # no third domain is left
    demo.settle()
    (kept,) = [unit for unit in demo.units() if unit.unit == second.unit]
    assert kept.routable and kept.complete and "GPU 0 of" in kept.leaving
    assert demo.weights() == {"ds-flash@1": 10_000}


def test_weights_that_take_longer_than_the_rollouts_deadline_do_not_fail_it() -> None:
    demo = Demo(domains=2)
    demo.release()
    demo.tick()
    demo.fleets.sync()  # agents read what to run, and say nothing of it yet
    waiting = [(agent, rank.rank_id) for agent in demo.fleets.agents.values() for rank in agent.snapshot.ranks]
    assert waiting
    for agent, rank_id in waiting:
        agent.states[rank_id] = RankReport(rank_id, RankState.FETCHING, detail="weights 43% (12 GB of 28 GB), about 3 min")
    for _ in range(5):
        demo.tick(240)  # twice the deadline of 10 minutes
    row = demo.rollout()
    assert row.state not in Rollout.ENDED
    assert "weights 43%" in row.why, row.why
    for agent, _ in waiting:
        agent.states.clear()
    demo.settle()
    assert demo.rollout().state == Rollout.State.SUCCEEDED
