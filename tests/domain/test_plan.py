"""Plans: what is moved, in which order, with how much capacity left, and what way back they promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from releases.domain.plan import MoveKind, StagePlan
from releases.domain.spec_types import Approval, RolloutPolicy
from tests.domain.rollout_world import NEW, NEW_DECODE, POLICY, World, unit_spec


def kinds(plan: StagePlan) -> list[str]:
    return [f"{move.kind.value}:{move.slot or move.weight_bp or ''}".rstrip(":") for move in plan.moves]


def test_the_first_release_comes_up_whole_and_takes_everything() -> None:
    plan = World(old=None).plan
    assert kinds(plan) == ["bring-up:1", "probe:1", "bring-up:2", "probe:2", "shift:10000", "finish"]
    assert plan.view.from_release is None and plan.view.changed == "first deployment"


def test_room_to_surge_puts_the_canary_beside_and_keeps_one_old_unit_warm() -> None:
    plan = World().plan
    assert kinds(plan) == [
        *("bring-up:3", "probe:3", "shift:1000", "hold", "shift:5000", "hold"),
        *("retire:1", "bring-up:1", "probe:1", "shift:10000", "hold", "bake", "finish"),
    ]
    assert plan.view.surge and plan.view.capacity_ratio_min == 1
    assert plan.view.way_back.startswith("instant: release 7 stays warm on unit 2")


def test_a_full_fleet_is_replaced_in_place_and_says_where_the_way_back_turns_cold() -> None:
    plan = World(domains=2).plan
    assert kinds(plan) == [
        *("retire:1", "bring-up:1", "probe:1", "shift:1000", "hold", "shift:5000", "hold", "shift:10000", "hold"),
        *("retire:2", "bring-up:2", "probe:2", "bake", "finish"),
    ]
    assert not plan.view.surge and plan.view.capacity_ratio_min == 0.5
    assert plan.view.way_back.startswith("instant until step 5, then about")


def test_a_kv_compatible_change_keeps_the_pool_that_did_not_change() -> None:
    plan = World(new=NEW_DECODE, domains=2).plan
    assert [move.kind for move in plan.moves if move.kind in {MoveKind.REPLACE, MoveKind.RETIRE, MoveKind.BRING_UP}] == [
        MoveKind.REPLACE
    ] * 2
    assert plan.view.changed == "decode only"
    assert "replace decode (8 GPUs), keep prefill" in plan.view.steps[0].detail


def test_numbers_of_replicas_alone_need_no_canary() -> None:
    wider = unit_spec(8)
    plan = World(new=wider).plan
    assert kinds(plan) == ["relabel", "finish"]


def test_one_unit_and_no_room_says_that_nothing_serves_meanwhile() -> None:
    plan = World(replicas=1, domains=1).plan
    assert kinds(plan)[:3] == ["retire:1", "bring-up:1", "probe:1"] and plan.moves[0].outage
    assert plan.view.capacity_ratio_min == 0 and "without capacity" in plan.view.way_back


def test_weights_follow_what_the_new_units_carry() -> None:
    plan = World(replicas=4, domains=5, policy=RolloutPolicy(canary_ratio=0.1, steps=(0.5, 1.0))).plan
    assert kinds(plan) == [
        *("bring-up:5", "probe:5", "shift:1000", "hold", "shift:2500", "retire:1", "bring-up:1", "probe:1", "shift:5000", "hold"),
        *("retire:2", "bring-up:2", "probe:2", "shift:7500", "retire:3", "bring-up:3", "probe:3", "shift:10000", "hold", "bake", "finish"),
    ]
    assert plan.view.capacity_ratio_min == 1


def test_approval_is_asked_for_after_the_canary() -> None:
    plan = World(policy=RolloutPolicy(approve=Approval.MANUAL)).plan
    assert [move.kind.value for move in plan.moves[:5]] == ["bring-up", "probe", "shift", "hold", "approve"]
    assert "then a person approves" in plan.view.steps[1].detail


def test_a_warm_unit_of_an_earlier_release_gives_way() -> None:
    world = World()
    spare = unit_spec(6, decode="d0", compat="kv0")
    placed = world.place(spare, None)
    assert hasattr(placed, "replicas")
    world._add(3, spare, placed, up=True)  # type: ignore[arg-type]  # a refusal would have failed the line above
    plan = world.plan_now()
    assert kinds(plan)[:2] == ["evict:3", "bring-up:3"] and plan.view.surge


def test_what_does_not_fit_is_refused() -> None:
    wide = unit_spec(8, decode="d2", compat="kv2", decodes=2)
    assert World(new=wide).plan.refusal is None
    assert World(old=None, domains=1).plan.refusal is not None


@given(
    replicas=st.integers(1, 6),
    spare=st.integers(0, 3),
    steps=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4),
    canary=st.floats(0.01, 1.0),
    compatible=st.booleans(),
)
def test_every_plan_ends_with_all_traffic_and_all_units(
    replicas: int, spare: int, steps: list[float], canary: float, compatible: bool
) -> None:
    policy = RolloutPolicy(canary_ratio=canary, steps=tuple(steps), hold_s=POLICY.hold_s)
    world = World(new=NEW_DECODE if compatible else NEW, replicas=replicas, domains=replicas + spare, policy=policy)
    plan = world.plan
    weights = [move.weight_bp for move in plan.moves if move.kind is MoveKind.SHIFT]
    assert plan.refusal is None
    assert weights == sorted(weights) and weights[-1] == 10_000
    assert sum(move.kind is MoveKind.PROBE for move in plan.moves) == replicas
    assert plan.moves[-1].kind is MoveKind.FINISH
    assert 0 <= plan.view.capacity_ratio_min <= 1
    assert [step.index for step in plan.view.steps] == list(range(len(plan.view.steps)))
    if spare:
        assert plan.view.surge and plan.view.way_back.startswith("instant")


@pytest.mark.parametrize("new", [NEW, NEW_DECODE])
def test_a_plan_is_deterministic(new: object) -> None:
    assert World(new=new).plan == World(new=new).plan  # type: ignore[arg-type]  # parametrized
