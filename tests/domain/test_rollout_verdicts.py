"""What the state machine makes of verdicts that say two things at once."""

from __future__ import annotations

from dataclasses import replace

from metrics.services.notices import NOTICES
from releases.domain.rollout_types import Phase, Reason
from tests.domain.rollout_world import World, verdict
from tests.domain.test_rollout_scenarios import WISH, at_canary, phase


def to_bake(world: World) -> World:
    """With good figures, until all traffic is on the new release and the bake goes on."""
    at_canary(world)
    for n in (600, 700, 800):
        if phase(world) is not Phase.BAKING:
            world.verdicts = (verdict(n),)
            world.wait(601)
    assert phase(world) is Phase.BAKING, world.state.why
    return world


def test_overwhelming_evidence_does_not_outvote_a_comparison_that_acquits() -> None:
    """A burst that hits both arms, and whose exceedances happen to fall on the new release."""
    acquitted = verdict(300, 20, evidence=1e6, tripped=True, relative=2.0, baseline=(300, 12))
    world = at_canary(World())
    world.verdicts = (acquitted,)
    world.settle()
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.BREACH_UNCONFIRMED)
    world.verdicts = (replace(acquitted, relative_evidence=25.0),)
    world.settle()
    assert phase(world) is Phase.ROLLED_BACK


def test_a_bake_does_not_end_while_a_breach_stands_that_has_not_lasted() -> None:
    world = to_bake(World())
    world.verdicts = (replace(verdict(5000, 200, evidence=1e9), lasted_s=60.0),)
    world.wait(world.policy.bake_s + 1)
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.BREACH_UNCONFIRMED)
    world.verdicts = (verdict(9000, 210),)
    world.settle()
    assert phase(world) is Phase.SUCCEEDED


def test_overwhelming_evidence_is_enough_where_the_old_release_has_too_few_requests_to_compare() -> None:
    world = at_canary(World())
    world.verdicts = (verdict(300, 40, evidence=1e6, tripped=True, relative=1.1, baseline=(12, 0)),)
    world.settle()
    assert phase(world) is Phase.ROLLED_BACK


def test_who_asks_just_as_an_alarm_breaks_is_the_cause_and_the_journal_has_both() -> None:
    for broken in (True, False):
        world = at_canary(World())
        world.verdicts = (verdict(300, 40, evidence=1e6, tripped=broken),)
        world.rollback = WISH
        world.settle()
        assert phase(world) is Phase.ROLLED_BACK and world.state.cause is not None and world.state.cause.actor == WISH.requested_by
        assert (world.events.count("rollout.rolling-back"), world.events.count("rollout.breached")) == (1, int(broken))
    assert not any(kind.startswith("rollout.breached") for kind in NOTICES), "people are told once"
