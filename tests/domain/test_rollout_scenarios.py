"""The scenarios that other systems got wrong, each on the real `step`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from denvweb.core.errors import ConflictError, InvalidError
from fleets.domain.types import RankState
from releases.domain import rollout_commands as commands
from releases.domain.rollout_types import Phase, Reason, RollbackWish, RolloutState, Turn
from releases.domain.spec_types import Approval
from tests.domain.rollout_world import NEW, NEW_DECODE, OLD, POLICY, World, unit_spec, verdict

GOOD = (verdict(),)
WISH = RollbackWish("oncall-a", "ui")


def phase(world: World) -> Phase:
    """Asked anew each time: a checker that narrowed the attribute would call the rest unreachable."""
    return world.state.phase


def at_canary(world: World) -> World:
    """Up to the hold at the canary's weight."""
    world.verdicts = GOOD
    world.settle()
    assert world.share == 1000 and phase(world) == Phase.ROLLING, world.state.why
    return world


def to_success(world: World) -> World:
    """With good figures, through every watch."""
    world.verdicts = GOOD
    world.settle()
    for n in range(600, 2000, 200):
        world.verdicts = (verdict(n),)
        world.wait(601)
    return world


def test_the_first_deployment_comes_up_and_takes_all_traffic() -> None:
    world = World(old=None).settle()
    assert phase(world) == Phase.SUCCEEDED
    assert world.weights == {NEW.release: 10_000} and len(world.of(NEW)) == 2 and world.stable == NEW.release


def test_a_good_release_succeeds_and_leaves_one_old_unit_warm() -> None:
    world = to_success(World())
    assert phase(world) == Phase.SUCCEEDED, world.state.why
    assert world.weight_log == sorted(world.weight_log) and set(world.weight_log) == {0, 1000, 5000, 10_000}
    assert len(world.of(NEW)) == 2
    warm = world.of(OLD)
    assert len(warm) == 1 and warm[0].ready and warm[0].probed
    assert world.trail == [Phase.ROLLING, Phase.BAKING, Phase.SUCCEEDED]
    watched = [done for done in world.state.done if done.told]
    assert [done.step for done in world.state.done] == list(range(len(world.state.done)))
    assert len(watched) == 4 and all("n=" in done.told[0] for done in watched)  # 10%, 50%, 100% and the bake, each with its evidence


def test_a_full_fleet_succeeds_in_place_without_a_moment_of_no_capacity() -> None:
    world = to_success(World(domains=2))
    assert phase(world) == Phase.SUCCEEDED, world.state.why
    assert len(world.of(NEW)) == 2 and not world.of(OLD)


def test_a_kv_compatible_change_replaces_units_in_place() -> None:
    world = World(new=NEW_DECODE, domains=2)
    ids = set(world.units)
    to_success(world)
    assert phase(world) == Phase.SUCCEEDED and set(world.units) == ids


def test_renaming_restarts_nothing_and_goes_back_the_same_way() -> None:
    world = World(new=unit_spec(8)).settle()
    assert phase(world) == Phase.SUCCEEDED and world.created == 2
    world = World(new=unit_spec(8))
    world.live = 0
    for _ in range(3):
        world.tick()
    world.live, world.rollback = 1, WISH
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and world.weights == {OLD.release: 10_000} and world.created == 2


def test_a_breach_at_the_canary_rolls_back() -> None:
    world = at_canary(World())
    world.verdicts = (verdict(200, 30, evidence=340, tripped=True, healthy=False, relative=5000),)
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and world.weights == {OLD.release: 10_000}
    assert not world.of(NEW) and len(world.of(OLD)) == 2
    assert world.held == [NEW.release]
    assert world.state.cause is not None and world.state.cause.evidence["k"] == 30


def test_metrics_stop_one_tick_before_promotion() -> None:
    world = at_canary(World())
    world.verdicts = (verdict(fresh=False),)
    world.wait(601)
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.STALE_METRICS)
    world.wait(100_000)
    assert phase(world) == Phase.HELD and world.share == 1000
    world.verdicts = (verdict(700),)
    world.wait(1)
    assert world.share == 5000


def test_no_figures_at_all_are_not_health() -> None:
    world = World()
    world.settle()
    world.wait(10_000)
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.NO_DATA)


def test_five_samples_are_insufficient_until_a_person_decides() -> None:
    world = at_canary(World())
    world.verdicts = (verdict(5, healthy=False),)
    world.wait(601)
    assert (phase(world), world.state.reason) == (Phase.ROLLING, Reason.INSUFFICIENT_SAMPLES)
    world.wait(1300)
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.INSUFFICIENT_SAMPLES)
    world.state = commands.promote(world.state, now=world.now, actor="deployer-b").state
    world.settle()
    assert world.share == 5000


def test_a_breach_while_an_approval_is_awaited_rolls_back() -> None:
    world = at_canary(World(policy=replace(POLICY, approve=Approval.MANUAL)))
    world.verdicts = (verdict(700),)
    world.wait(601)
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.APPROVAL)
    world.verdicts = (verdict(700, 60, evidence=900, tripped=True, relative=900),)
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK


def test_an_approval_goes_on() -> None:
    world = at_canary(World(policy=replace(POLICY, approve=Approval.MANUAL)))
    world.verdicts = (verdict(700),)
    world.wait(601)
    world.state = commands.promote(world.state, now=world.now, actor="approver").state
    world.settle()
    assert world.share == 5000


def test_a_breach_while_a_step_is_being_advanced_rolls_back() -> None:
    world = at_canary(World())
    world.now = world.now.replace(hour=10)
    world.verdicts = (verdict(700),)
    while world.share == 1000:  # just told the routers, not confirmed yet
        world.tick()
    world.verdicts = (verdict(700, 60, evidence=900, tripped=True, relative=900),)
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and world.share == 0


def test_a_canary_that_is_never_ready_rolls_back_at_its_deadline() -> None:
    world = World()
    world.come_up = False
    world.settle()
    assert phase(world) == Phase.ROLLING and "comes up" in world.state.why
    world.wait(1801)
    world.come_up = True
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and world.state.cause is not None and world.state.cause.code == "deadline"
    assert world.weight_log == [0] or set(world.weight_log) == {0}


def test_a_dead_canary_rolls_back_at_once() -> None:
    world = at_canary(World())
    world.of(NEW)[0].ready = False
    world.tick()
    assert phase(world) == Phase.ROLLING_BACK and world.state.cause is not None and world.state.cause.code == "no-ready-canary"
    world.tick()
    assert world.share == 0


def test_silent_nodes_hold_and_do_not_condemn() -> None:
    world = at_canary(World())
    unit = world.of(NEW)[0]
    unit.ready, unit.silent = False, True
    world.settle()
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.NODES_UNREACHABLE)
    unit.ready, unit.silent = True, False
    world.settle()
    assert phase(world) == Phase.ROLLING


def test_a_unit_that_gave_up_rolls_back() -> None:
    world = at_canary(World())
    world.of(NEW)[0].failed = True
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and world.state.cause is not None and world.state.cause.code == "unit-failed"


def test_a_crash_loop_rolls_back_though_the_unit_is_ready_in_between() -> None:
    world = at_canary(World())
    unit = world.of(NEW)[0]
    unit.restarts, unit.rank_state = 4, RankState.STARTING
    world.settle()
    assert phase(world) == Phase.ROLLING
    unit.rank_state = RankState.BACKOFF
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and world.state.cause is not None and world.state.cause.code == "crash-loop"


def test_a_breach_that_both_share_holds_and_pages() -> None:
    world = at_canary(World())
    world.verdicts = (verdict(200, 30, evidence=340, tripped=True, relative=1.0, baseline_breaching=True),)
    world.settle()
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.BASELINE_BREACHING)
    with pytest.raises(InvalidError):
        commands.promote(world.state, now=world.now, actor="a")
    world.state = commands.promote(world.state, now=world.now, actor="a", reason="the fix is in 8").state
    world.verdicts = (verdict(2000, 30, evidence=340, tripped=False, relative=1.0),)
    world.wait(601)
    assert world.share == 5000


def test_an_unconfirmed_breach_waits_then_rolls_back() -> None:
    world = at_canary(World())
    world.verdicts = (verdict(200, 12, evidence=340, tripped=True, relative=2.0),)
    world.settle()
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.BREACH_UNCONFIRMED)
    world.wait(1801)
    assert phase(world) == Phase.ROLLED_BACK


def test_overwhelming_absolute_evidence_needs_no_comparison() -> None:
    world = at_canary(World())
    world.verdicts = (verdict(200, 100, evidence=300.0**2, tripped=True, relative=2.0),)
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK


def test_zero_baseline_errors_against_half_is_a_breach_at_once() -> None:
    world = at_canary(World())
    world.verdicts = (verdict(12, 6, metric="error-rate", low=0.25, healthy=False, baseline=(100, 0)),)
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and world.state.cause is not None and world.state.cause.urgent


def test_a_breach_in_the_bake_returns_to_the_warm_unit_first() -> None:
    world = World()
    world.verdicts = GOOD
    world.settle()
    while phase(world) != Phase.BAKING:
        world.verdicts = (verdict(world.verdicts[0].n + 200),)
        world.wait(601)
    assert world.share == 10_000
    world.verdicts = (verdict(3000, 100, evidence=400, tripped=True),)
    world.tick()
    world.tick()
    assert world.share == 0, "the warm unit takes all traffic with the first decision"
    assert len(world.of(NEW)) == 2, "nothing is stopped before the routers confirm"
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and len(world.of(OLD)) == 2 and not world.of(NEW)


def test_rollback_at_100_percent_in_place_restores_before_it_shifts() -> None:
    world = World(domains=2)
    world.verdicts = GOOD
    world.settle()
    while phase(world) != Phase.BAKING:
        world.verdicts = (verdict(world.verdicts[0].n + 200),)
        world.wait(601)
    assert not world.of(OLD)
    world.rollback = WISH
    world.come_up = False
    world.settle()
    assert world.share == 10_000, "the one new unit that is left serves while the old one comes up"
    assert len(world.of(NEW)) == 1 and len(world.of(OLD)) == 1
    world.come_up = True
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and len(world.of(OLD)) == 2 and world.share == 0


def test_abort_while_a_stable_unit_is_drained_takes_it_back() -> None:
    world = World(domains=2)
    while not any(not unit.routable for unit in world.of(OLD)):
        world.nature()
        world.tick()
    for unit in world.of(OLD):
        unit.inflight = 9
    world.rollback = WISH
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK
    assert len(world.of(OLD)) == 2 and world.created == 2, "its engines never stopped"


def test_one_warm_unit_of_eight_is_not_crushed() -> None:
    world = World(replicas=8, domains=9)
    world.verdicts = GOOD
    world.settle()
    for n in range(600, 2000, 200):
        if phase(world) == Phase.BAKING:
            break
        world.verdicts = (verdict(n),)
        world.wait(601)
    assert phase(world) == Phase.BAKING and len(world.of(OLD)) == 1
    world.rollback = WISH
    world.weight_log.clear()
    world.settle(most=300)
    assert phase(world) == Phase.ROLLED_BACK, world.state.why
    assert world.weight_log[0] == 8750 and world.weight_log == sorted(world.weight_log, reverse=True)
    assert len(world.of(OLD)) == 8


def test_a_dead_release_gives_everything_to_the_one_warm_unit() -> None:
    world = World(replicas=8, domains=9)
    world.verdicts = GOOD
    world.settle()
    while phase(world) != Phase.BAKING:
        world.verdicts = (verdict(world.verdicts[0].n + 200),)
        world.wait(601)
    for unit in world.of(NEW):
        unit.ready, unit.failed = False, True
    world.tick()
    world.tick()
    assert world.share == 0


def test_a_rollback_beats_a_pause_and_asking_twice_is_the_same() -> None:
    world = at_canary(World())
    world.state = commands.pause(world.state, now=world.now, actor="a").state
    world.settle()
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.MANUAL)
    world.rollback = WISH
    world.settle()
    cause = world.state.cause
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and world.state.cause == cause
    assert world.events.count("rollout.rolling-back") == 1


def test_a_pause_does_not_use_up_a_hold() -> None:
    world = at_canary(World())
    world.wait(300)
    world.state = commands.pause(world.state, now=world.now, actor="a").state
    world.wait(5000)
    world.state = commands.resume(world.state, now=world.now, actor="a").state
    world.settle()
    world.verdicts = (verdict(700),)
    world.wait(200)
    assert world.share == 1000 and phase(world) == Phase.ROLLING
    world.wait(200)
    assert world.share == 5000


def test_full_promotion_needs_a_reason_and_keeps_alarms_armed() -> None:
    world = at_canary(World())
    with pytest.raises(InvalidError):
        commands.promote(world.state, now=world.now, actor="a", full=True)
    world.state = commands.promote(world.state, now=world.now, actor="a", full=True, reason="hot fix").state
    for _ in range(200):
        if world.share == 10_000:
            break
        world.nature()
        world.tick()
    assert world.share == 10_000
    world.verdicts = (verdict(200, 60, evidence=400, tripped=True),)
    if phase(world) != Phase.SUCCEEDED:
        world.settle()
        assert phase(world) == Phase.ROLLED_BACK


def test_nothing_to_promote_is_refused() -> None:
    world = World()
    world.come_up = False
    world.settle()
    with pytest.raises(ConflictError):
        commands.promote(world.state, now=world.now, actor="a")


def test_without_a_router_nothing_is_shifted_and_no_deadline_runs() -> None:
    world = World()
    world.live = 0
    world.settle()
    assert (phase(world), world.state.reason) == (Phase.HELD, Reason.WEIGHTS_UNVERIFIED)
    world.wait(100_000)
    assert phase(world) == Phase.HELD
    world.live, world.verdicts = 1, GOOD
    world.settle()
    assert world.share == 1000


def test_a_sick_old_release_does_not_block_the_fix() -> None:
    world = World()
    world.allow_dead_weight = True
    for unit in world.of(OLD):
        unit.ready = False
        unit.silent = True
    world.plan = world.plan_now()
    world.state = replace(world.state, moves=world.plan.moves)
    to_success(world)
    assert world.share == 10_000 and "not ready" in world.sentences[0]


def test_the_first_release_goes_back_to_nothing() -> None:
    world = World(old=None)
    world.come_up = False
    world.settle()
    world.wait(1801)
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and not world.units and world.weights == {}


def test_a_later_stage_waits_and_never_begins_when_the_first_goes_back() -> None:
    world = World()
    world.turn = Turn.LATER
    world.settle()
    assert phase(world) == Phase.PENDING and world.created == 2
    world.turn = Turn.NEVER
    world.settle()
    assert phase(world) == Phase.SUPERSEDED


def test_a_target_that_no_longer_fits_is_blocked_and_says_so() -> None:
    world = World(domains=2)
    to_success(world)
    back = RolloutState(
        world.state.stage,
        world.state.model,
        unit_spec(7, decodes=2),
        NEW,
        2,
        POLICY,
        kind="rollback",
        phase=Phase.ROLLING_BACK,
        weight_bp=10_000,
        entered_at=world.now,
        replicas_back=3,
    )
    world.state = back
    world.settle()
    assert (phase(world), world.state.reason) == (Phase.ROLLBACK_BLOCKED, "capacity")
    assert "no domain" in world.state.why
    world.domains = 3
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK


def test_a_rollback_after_success_flips_to_the_warm_unit_and_keeps_one_of_the_left() -> None:
    world = to_success(World())
    world.state = replace(
        world.state, kind="rollback", phase=Phase.ROLLING_BACK, weight_bp=10_000, entered_at=world.now, replicas_back=2, cause=None
    )
    world.tick()
    assert world.share == 0
    world.settle()
    assert phase(world) == Phase.ROLLED_BACK and len(world.of(OLD)) == 2 and len(world.of(NEW)) == 1
    assert world.stable == OLD.release
