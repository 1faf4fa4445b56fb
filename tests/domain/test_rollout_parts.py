"""The parts of the rollout machine by themselves: gates, healing, the promise before a rollback."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleets.domain.types import DomainView, FleetView, NodeView, RankPlacement, ReplicaPlacement, Role, UnitPlacement
from fleets.domain.views import RoutersView
from metrics.domain.views import AlarmVerdict
from releases.domain.gates import Ruling, hold_over, judge
from releases.domain.rollout_heal import Healing, Steady, heal
from releases.domain.rollout_preflight import Way, preflight
from releases.domain.rollout_room import give
from releases.domain.rollout_types import CreateUnit, Reason, SetRoutable, SetWeights, StopUnit
from releases.domain.spec_types import RolloutPolicy
from tests.domain.rollout_world import NEW, OLD, POLICY, STAGE, World, unit_spec, verdict


@pytest.mark.parametrize(
    ("seen", "ruling", "code"),
    [
        (verdict(), Ruling.PASS, ""),
        (verdict(tripped=True, evidence=340), Ruling.BACK, "breach"),  # no baseline: the limit alone
        (verdict(tripped=True, evidence=340, relative=300), Ruling.BACK, "breach"),
        (verdict(tripped=True, evidence=340, relative=299), Ruling.HOLD, Reason.BREACH_UNCONFIRMED),
        (verdict(tripped=True, evidence=340, relative=1, baseline_breaching=True), Ruling.HOLD, Reason.BASELINE_BREACHING),
        (verdict(tripped=True, evidence=340, relative=400, baseline_breaching=True), Ruling.BACK, "breach"),
        (verdict(tripped=True, evidence=90_000, relative=1), Ruling.BACK, "breach"),
        (verdict(10, 10, metric="error-rate", low=0.69), Ruling.BACK, "errors"),
        (verdict(9, 9, metric="error-rate", low=0.66), Ruling.PASS, ""),  # fewer than 10 requests
        (verdict(10, 4, metric="error-rate", low=0.17), Ruling.PASS, ""),  # not plainly
        (verdict(50, 25, metric="error-rate", low=0.36, baseline=(50, 24)), Ruling.HOLD, Reason.BASELINE_BREACHING),
    ],
)
def test_what_goes_back_and_what_holds(seen: AlarmVerdict, ruling: Ruling, code: str) -> None:
    found = judge((seen,), doubted_s=None, policy=POLICY)
    assert (found.ruling, found.code) == (ruling, code)
    assert ruling is Ruling.PASS or (found.sentence and found.evidence["n"] == seen.n)


@given(
    n=st.integers(0, 2000),
    healthy=st.booleans(),
    fresh=st.booleans(),
    tripped=st.booleans(),
    waited=st.floats(0, 5000),
    before=st.integers(0, 500),
)
def test_nothing_passes_by_silence(n: int, healthy: bool, fresh: bool, tripped: bool, waited: float, before: int) -> None:
    seen = verdict(n, healthy=healthy, fresh=fresh, tripped=tripped)
    over = hold_over((seen,), policy=POLICY, waited_s=waited, hold_s=600, counted={seen.alarm: before})
    passes = waited >= 600 and n > 0 and fresh and not tripped and ((healthy and n > before) or n - before >= POLICY.min_requests)
    assert (over.ruling is Ruling.PASS) == passes


def test_no_alarm_at_all_passes_nothing() -> None:
    assert hold_over((), policy=POLICY, waited_s=9999, hold_s=1, counted={}).code == Reason.NO_DATA


def healed(world: World, replicas: int = 2, *, warm: bool = True, draining: dict[str, object] | None = None) -> Healing:
    want = Steady(STAGE, OLD, replicas, world.now + timedelta(hours=1) if warm else None)
    obs = world.obs()
    return heal(want, units=obs.units, routers=obs.routers, place=world.place, draining=draining or {}, now=world.now)  # type: ignore[arg-type]  # empty


def heal_all(world: World, replicas: int = 2, *, warm: bool = True) -> None:
    """Until there is nothing to do."""
    draining: dict[str, object] = {}
    for _ in range(30):
        found = healed(world, replicas, warm=warm, draining=draining)
        draining = dict(found.draining)
        for effect in found.effects:
            world.apply(effect)
        world.nature()
        if not found.effects and not found.why:
            return
    raise AssertionError(found)


def test_a_steady_stage_needs_nothing() -> None:
    assert healed(World()) == Healing("")


def test_a_missing_unit_is_made_again() -> None:
    world = World()
    world.units.pop("u1")
    assert any(isinstance(effect, CreateUnit) for effect in healed(world).effects)
    heal_all(world)
    assert len(world.of(OLD)) == 2 and all(unit.routable and unit.probed for unit in world.of(OLD))


def test_a_unit_that_gave_up_is_replaced_before_it_goes() -> None:
    world = World()
    world.units["u1"].failed, world.units["u1"].ready = True, False
    first = healed(world)
    assert any(isinstance(effect, CreateUnit) for effect in first.effects)
    assert not any(isinstance(effect, StopUnit) for effect in first.effects)
    heal_all(world)
    assert sorted(world.units) == ["u2", "u3"]


def test_without_room_the_warm_unit_goes_first_then_the_one_that_gave_up() -> None:
    world = World()
    warm = world.place(NEW, None)
    world._add(3, NEW, warm, up=True)  # type: ignore[arg-type]  # it fits
    world.units["u1"].failed, world.units["u1"].ready = True, False
    heal_all(world)
    assert len(world.of(OLD)) == 2 and not world.of(NEW) and "u1" not in world.units
    world = World(domains=2)
    world.units["u1"].failed, world.units["u1"].ready = True, False
    heal_all(world)
    assert len(world.of(OLD)) == 2 and "u1" not in world.units


def test_a_warm_unit_stays_for_its_time() -> None:
    world = World()
    world._add(3, NEW, world.place(NEW, None), up=True)  # type: ignore[arg-type]  # it fits
    assert healed(world) == Healing("")
    heal_all(world, warm=False)
    assert not world.of(NEW)


def test_fewer_units_are_drained_and_weights_put_right() -> None:
    world = World()
    heal_all(world, replicas=1)
    assert len(world.of(OLD)) == 1 and world.of(OLD)[0].routable
    world.weights = {}
    assert SetWeights({OLD.release: 10_000}) in healed(world, 1).effects
    world.of(OLD)[0].routable = False
    assert SetRoutable(world.of(OLD)[0].id, True) in healed(world, 1).effects


def promised(world: World, *, desired: int = 2, bring_up_s: float | None = 20) -> tuple[bool, str, float]:
    routers = RoutersView(STAGE, 1, 1, 1, (), {}, {NEW.release: 41})
    view = preflight(Way(STAGE, OLD, NEW.release, desired, bring_up_s), units=world.views(), routers=routers, place=world.place)
    return view.possible, view.sentence, view.capacity_ratio


def test_the_promise_before_a_rollback() -> None:
    world = World()
    world._add(3, NEW, world.place(NEW, None), up=True)  # type: ignore[arg-type]  # it fits
    possible, sentence, ratio = promised(world)
    assert possible and ratio == 1
    assert sentence == (
        "Release 7 is warm on units 1 and 2: all traffic in about 2 s, at full capacity. 41 requests in flight on release 8 finish there."
    )
    del world.units["u2"]
    world._add(2, NEW, world.place(NEW, None), up=True)  # type: ignore[arg-type]  # it fits
    possible, sentence, ratio = promised(world)
    assert possible and ratio == 0.5
    assert sentence.startswith(
        "Release 7 is warm on unit 1: all traffic in about 2 s, at 50% of capacity until 1 more unit is back (about 20 s)."
    )
    del world.units["u1"]
    possible, sentence, ratio = promised(world, bring_up_s=None)
    assert possible and ratio == 0 and sentence.startswith("Release 7 is cold")
    assert promised(world, desired=8)[1].startswith("Release 7 does not fit any more") or promised(world, desired=8)[0]


def test_nothing_to_go_back_to_is_said() -> None:
    world = World()
    view = preflight(Way(STAGE, None, NEW.release, 2), units=world.views(), routers=world.obs().routers, place=world.place)
    assert not view.possible and view.blocked_by == "nothing-to-roll-back"


def test_a_larger_unit_is_only_renamed_where_it_fits() -> None:
    wider = unit_spec(8)
    wider = replace(wider, pools=(replace(wider.pools[0], replicas=3), wider.pools[1]))
    assert World(new=wider, policy=RolloutPolicy()).plan.refusal is not None


def test_gpus_that_broke_meanwhile_do_not_come_free_with_their_unit() -> None:
    node = NodeView("n1", 4, free=(), unfit=(1,))
    fleet = FleetView("f", "GB200", (DomainView("f/d01", (node,)),))
    where = UnitPlacement("f", "f/d01", (ReplicaPlacement(Role.AGGREGATED, 0, (RankPlacement("n1", (0, 1, 2, 3)),)),))
    assert give((fleet,), where)[0].domains[0].nodes[0].free == (0, 2, 3)
