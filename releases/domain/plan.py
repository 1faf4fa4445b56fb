"""`plan_stage`: the moves that take a stage from one release to another, planned against the GPUs that are really free.

The dry run shows the plan, the rollout stores it, and `rollout.step` runs it as it was shown. At most one unit more than the
stage has stands at any moment. Where that one finds no room, units are replaced one at a time, and the plan says how much
capacity is left meanwhile. One unit of the old release stays warm, weight 0, for as long as its GPUs are not needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleets.domain.placement import Refusal
from fleets.domain.types import FleetView, UnitPlacement, UnitSpec
from fleets.domain.views import UnitView
from releases.domain import plan_words as words
from releases.domain.rollout_room import give, place_in_its_place, place_near, placement_of, take
from releases.domain.spec_types import Approval, RolloutPolicy
from releases.domain.views import PlanStepView, StagePlanView

FULL_BP = 10_000


class MoveKind(StrEnum):
    """What one move does; each is idempotent and ends when what it wants is observed."""

    EVICT = "evict"  # stop a warm unit of an earlier release, whose GPUs are needed
    BRING_UP = "bring-up"  # create the new unit of a slot, and wait until all of it is ready
    PROBE = "probe"  # a real request through a router to that unit; then it may be routed to
    SHIFT = "shift"  # give the new release this weight, and wait until every live router has it
    HOLD = "hold"  # watch the alarms for a time
    APPROVE = "approve"  # wait for a person
    RETIRE = "retire"  # route nothing more to the old unit of a slot, let it finish, stop it
    REPLACE = "replace"  # the same, then turn it into the new release in place; pools that did not change keep running
    RELABEL = "relabel"  # the engines are the same: every unit takes the new release's name at once
    BAKE = "bake"  # all traffic is on the new release; watch the alarms
    FINISH = "finish"  # every unit is there and healthy: the new release is the stable one


@dataclass(frozen=True, slots=True)
class Move:
    """One move of a plan. `step` is the index of the step, in words, that it belongs to."""

    kind: MoveKind
    step: int
    slot: int = 0
    placement: UnitPlacement | None = None  # of BRING_UP, as planned
    weight_bp: int = 0  # of the new release, for SHIFT
    duration_s: float = 0.0  # of HOLD and BAKE
    outage: bool = False  # RETIRE or REPLACE of the only unit: nothing serves until the new one does, and the plan says so


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Moves and the same in words. With a `refusal` the plan cannot be run."""

    moves: tuple[Move, ...]
    view: StagePlanView
    refusal: Refusal | None = None


def convertible(old: UnitSpec, new: UnitSpec) -> bool:
    """Whether a unit can be turned from one into the other in place: KV stays compatible, and at least one pool is untouched."""
    return old.compat == new.compat and bool({pool.generation for pool in old.pools} & {pool.generation for pool in new.pools})


def same_engines(old: UnitSpec, new: UnitSpec) -> bool:
    """Whether the two differ in nothing but numbers of replicas: such a change restarts no engine and needs no canary."""
    key = {(pool.role, pool.generation) for pool in old.pools}
    return old.compat == new.compat and key == {(pool.role, pool.generation) for pool in new.pools}


def plan_stage(
    *,
    stage: str,
    old: UnitSpec | None,
    new: UnitSpec,
    replicas: int,
    policy: RolloutPolicy,
    units: Sequence[UnitView],
    fleets: Sequence[FleetView],
    bring_up_s: float | None = None,
    changed: str = "",
) -> StagePlan:
    """Plan a stage's way from `old` (None: nothing runs yet) to `new`, with `replicas` serving units of it at the end.

    `units` are the stage's, as they stand; `fleets` those that it may use, in order of preference. `bring_up_s` is how long a
    unit took to come up the last time, None when nobody knows. `changed` says in words what differs.
    """
    draft = _Draft(old=old, new=new, replicas=replicas, policy=policy, units=units, fleets=fleets, bring_up_s=bring_up_s)
    if old is None or not draft.old_units:
        draft.first()
    elif same_engines(old, new):
        draft.relabel()
    else:
        draft.canary()
    view = StagePlanView(
        stage=stage,
        from_release=words.number(old.release) if old else None,
        to_release=words.number(new.release),
        changed=changed or words.changed(old, new),
        surge=draft.surge,
        capacity_ratio_min=round(draft.capacity_min, 4),
        way_back=draft.way_back,
        steps=tuple(draft.steps),
    )
    return StagePlan(tuple(draft.moves), view, draft.refusal)


class _Draft:
    """A plan in the making: the world as it would be after each move."""

    def __init__(
        self,
        *,
        old: UnitSpec | None,
        new: UnitSpec,
        replicas: int,
        policy: RolloutPolicy,
        units: Sequence[UnitView],
        fleets: Sequence[FleetView],
        bring_up_s: float | None,
    ) -> None:
        live = [unit for unit in units if not unit.stopping]
        # Units that do not serve go first: unhealthy old members never block their own replacement.
        mine = [unit for unit in live if old is not None and unit.release == old.release]
        self.old_units = sorted(mine, key=lambda unit: (unit.ready, unit.slot))
        self.spares = [unit for unit in live if unit.release not in {new.release, old.release if old else new.release}]
        self.there = [unit for unit in live if unit.release == new.release and not unit.failed]
        self.used_slots = {unit.slot for unit in units}
        self.old, self.new, self.replicas, self.policy = old, new, max(1, replicas), policy
        self.fleets = tuple(fleets)
        self.bring_up_s = bring_up_s
        self.limit = max(self.replicas, len(self.old_units)) + 1
        self.moves: list[Move] = []
        self.steps: list[PlanStepView] = []
        self.refusal: Refusal | None = None
        self.serving_new = 0
        self.weight_bp = 0
        self.surge = True
        self.capacity_min = 1.0
        self.way_back = ""

    # ---- the three kinds of journey ----

    def first(self) -> None:
        """Nothing serves yet: bring all units up, probe them, give them all traffic."""
        while self.serving_new < self.replicas and self.refusal is None:
            self.bring_up_somewhere()
        self.step("shift", "all traffic", "once every unit was probed", FULL_BP)
        self.add(MoveKind.SHIFT, weight_bp=FULL_BP)
        self.add(MoveKind.FINISH)
        self.surge, self.way_back = True, "none: nothing ran here before"

    def relabel(self) -> None:
        """The same engines in other numbers: no canary, nothing restarts."""
        self.step("replace", f"{words.count(len(self.old_units), 'unit')} renamed", "the engines are the same: none restarts")
        self.add(MoveKind.RELABEL)
        for unit in self.old_units:
            placed = place_in_its_place(self.new, self.fleets, unit)
            if isinstance(placed, Refusal):
                self.refusal = placed
                return
            self.fleets = take(give(self.fleets, placement_of(unit)), placed)
        self.serving_new, self.weight_bp = len(self.old_units), FULL_BP
        self.old_units = []
        while self.serving_new < self.replicas and self.refusal is None:
            self.bring_up_somewhere()
        self.step("retire", "done", f"{words.count(self.replicas, 'unit')} serve" + ("s" if self.replicas == 1 else ""))
        self.add(MoveKind.FINISH)
        self.way_back = "instant: the engines are the same"

    def canary(self) -> None:
        """Canary, further steps, 100%; old units are replaced one by one before the new ones get more than they can carry."""
        assert self.old is not None
        self.surge = self.room_for_one_more()
        if not self.surge and len(self.old_units) == 1:
            self.replace_the_only_one()
            return
        weights = _weights(self.policy)
        cold_step: int | None = None
        for index, weight in enumerate(weights):
            self.reach(weight)
            last = index == len(weights) - 1
            approve = index == 0 and not last and self.policy.approve is Approval.MANUAL
            title = f"canary {words.percent(weight)}" if index == 0 and not last else words.percent(weight)
            self.step("shift", title, words.hold(self.policy.hold_s, approve), weight)
            self.add(MoveKind.SHIFT, weight_bp=weight)
            self.weight_bp = weight
            self.note_capacity()
            self.add(MoveKind.HOLD, duration_s=self.policy.hold_s)
            if approve:
                self.add(MoveKind.APPROVE)
        while self.serving_new < self.replicas and self.refusal is None:
            if not self.room_for_one_more() and self.old_units:
                cold_step = cold_step or len(self.steps) + 1
                self.swap_one()
            else:
                self.bring_up_somewhere()
        self.finish(cold_step)

    def finish(self, cold_step: int | None) -> None:
        """Bake, and say what the way back is."""
        assert self.old is not None
        self.step("bake", "bake", words.bake(self.policy.bake_s))
        self.add(MoveKind.BAKE, duration_s=self.policy.bake_s)
        self.add(MoveKind.FINISH)
        self.way_back = words.way_back(self.old, self.old_units, cold_step, self.replicas, self.bring_up_s, self.policy.keep_warm_s)

    def replace_the_only_one(self) -> None:
        """One unit and no room for a second: there is nothing to compare with, and nothing serves meanwhile."""
        self.swap_one(keep_serving=False)
        self.step("shift", "all traffic", words.hold(self.policy.hold_s, False), FULL_BP)
        self.add(MoveKind.SHIFT, weight_bp=FULL_BP)
        self.add(MoveKind.HOLD, duration_s=self.policy.hold_s)
        self.weight_bp = FULL_BP
        while self.serving_new < self.replicas and self.refusal is None:
            self.bring_up_somewhere()
        self.finish(1)

    # ---- building blocks ----

    def reach(self, weight_bp: int) -> None:
        """Have as many new units as this weight needs, the last old one left warm."""
        need = min(self.replicas, math.ceil(weight_bp * self.replicas / FULL_BP))
        while self.serving_new < need and self.refusal is None:
            if self.total < self.limit and self.room_for_one_more():
                self.bring_up_somewhere()
            elif len(self.old_units) > 1:
                ramp = self.serving_new * FULL_BP // self.replicas
                if ramp > self.weight_bp:  # what the new ones can carry, so that the old ones are fewer by right
                    self.step("shift", words.percent(ramp), "as much as the new units carry", ramp)
                    self.add(MoveKind.SHIFT, weight_bp=ramp)
                    self.weight_bp = ramp
                self.swap_one()
            else:
                return

    @property
    def total(self) -> int:
        """Units that stand."""
        return self.serving_new + len(self.old_units)

    def room_for_one_more(self) -> bool:
        """Whether one more new unit finds a place, at most by giving up a warm unit of an earlier release."""
        if self.there:
            return True
        fleets = self.fleets
        for spare in self.spares:
            fleets = give(fleets, placement_of(spare))
        return not isinstance(place_near(self.new, fleets, None), Refusal)

    def bring_up_somewhere(self) -> None:
        """One more new unit: one that is there already, or in free GPUs, or in those of a warm unit of an earlier release."""
        if self.there:
            unit = self.there.pop(0)
            self.step("bring-up", f"unit {unit.slot}", f"is there already, in {unit.domain or unit.fleet}; probe")
            self.come_up(unit.slot, placement_of(unit), taken=True)
            return
        placed = place_near(self.new, self.fleets, None)
        while isinstance(placed, Refusal) and self.spares:
            spare = self.spares.pop(0)
            self.fleets = give(self.fleets, placement_of(spare))
            self.step("retire", f"unit {spare.slot}", f"release {words.number(spare.release)}, warm until now, gives up its GPUs")
            self.add(MoveKind.EVICT, slot=spare.slot)
            self.used_slots.discard(spare.slot)
            placed = place_near(self.new, self.fleets, None)
        if isinstance(placed, Refusal):
            self.refusal = placed
            return
        slot = min(set(range(1, len(self.used_slots) + 2)) - self.used_slots)
        detail = f"bring up in {placed.domain or placed.fleet} ({self.new.gpus} GPUs), probe{words.about(self.bring_up_s)}"
        self.step("bring-up", f"unit {slot}", detail)
        self.come_up(slot, placed)

    def swap_one(self, *, keep_serving: bool = True) -> None:
        """Replace one old unit by a new one where it stands."""
        assert self.old is not None
        unit = self.old_units.pop(0)
        where = placement_of(unit)
        self.note_capacity(serving=keep_serving)
        in_place = convertible(self.old, self.new) and not isinstance(place_in_its_place(self.new, self.fleets, unit), Refusal)
        detail = words.replaced(self.old, self.new, in_place=in_place) + words.about(self.bring_up_s)
        self.step("replace", f"unit {unit.slot}", detail)
        if in_place:
            self.add(MoveKind.REPLACE, slot=unit.slot, outage=not keep_serving)
            self.add(MoveKind.PROBE, slot=unit.slot)
            self.serving_new += 1
            return
        self.fleets = give(self.fleets, where)
        placed = place_near(self.new, self.fleets, where if self.old.gpus == self.new.gpus else None)
        if isinstance(placed, Refusal):
            self.refusal = placed
            return
        self.add(MoveKind.RETIRE, slot=unit.slot, outage=not keep_serving)
        self.come_up(unit.slot, placed)

    def come_up(self, slot: int, placement: UnitPlacement, *, taken: bool = False) -> None:
        """The two moves that every new unit goes through."""
        if not taken:
            self.fleets = take(self.fleets, placement)
        self.used_slots.add(slot)
        self.add(MoveKind.BRING_UP, slot=slot, placement=placement)
        self.add(MoveKind.PROBE, slot=slot)
        self.serving_new += 1

    def note_capacity(self, *, serving: bool = True) -> None:
        """Remember the worst moment: what share of the stage's load the units in service could carry."""
        if not serving:
            self.capacity_min = 0.0
            return
        new_share = self.weight_bp / FULL_BP
        for have, share in ((len(self.old_units), 1 - new_share), (self.serving_new, new_share)):
            if share > 0:
                self.capacity_min = min(self.capacity_min, have / (share * self.replicas))

    def step(self, kind: str, title: str, detail: str, weight_bp: int | None = None) -> None:
        """Open a step; the moves added next belong to it."""
        self.steps.append(PlanStepView(index=len(self.steps), kind=kind, title=title, detail=detail, weight_bp=weight_bp))

    def add(
        self,
        kind: MoveKind,
        *,
        slot: int = 0,
        placement: UnitPlacement | None = None,
        weight_bp: int = 0,
        duration_s: float = 0.0,
        outage: bool = False,
    ) -> None:
        """Append a move to the present step."""
        self.moves.append(Move(kind, len(self.steps) - 1, slot, placement, weight_bp, duration_s, outage))


def _weights(policy: RolloutPolicy) -> list[int]:
    """Canary and steps in basis points, rising, ending at all of it."""
    wanted = [round(ratio * FULL_BP) for ratio in (policy.canary_ratio, *policy.steps)]
    return sorted({min(FULL_BP, weight) for weight in wanted if weight > 0} | {FULL_BP})
