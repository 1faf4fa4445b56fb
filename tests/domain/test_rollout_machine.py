"""Any order of ticks, crashes, silences, stale reads and requests, over the real `step`: what must hold, holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import Phase as Phase_
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from denvweb.core.errors import DenvError
from fleets.domain.types import UnitSpec
from releases.domain import rollout_commands as commands
from releases.domain.freezes import Frozen
from releases.domain.rollout_types import BACKWARD, ENDED, Observations, Phase, RollbackWish
from tests.domain.rollout_world import MODEL, NEW, NEW_DECODE, World, unit_spec, verdict


class RolloutMachine(RuleBasedStateMachine):
    """A stage under everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.old_looks: list[Observations] = []
        self.turned_at: int | None = None
        self.newest = 8
        self.share_when_frozen = 0
        self.left_log: list[int] = []

    @initialize(
        replicas=st.integers(1, 3),
        spare=st.integers(0, 1),
        new=st.sampled_from([NEW, NEW_DECODE, unit_spec(8)]),
        looks=st.integers(0, 25),
    )
    def begin(self, replicas: int, spare: int, new: object, looks: int) -> None:
        """Anywhere on the way: some looks go well before anything happens."""
        self.world = World(new=new, replicas=replicas, domains=replicas + spare)  # type: ignore[arg-type]  # sampled_from
        self.go_well(looks)

    # ---- the control plane ----

    @rule(times=st.integers(1, 6))
    def ticks(self, times: int) -> None:
        for _ in range(times):
            self.old_looks = [*self.old_looks[-3:], self.world.obs()]
            self.world.tick()

    @rule(looks=st.integers(3, 15))
    def go_well(self, looks: int) -> None:
        """Machines, routers and figures do what is hoped of them."""
        self.world.verdicts = (verdict(900),)
        for _ in range(looks):
            self.world.nature()
            self.world.wait_only(300)
            self.world.tick()

    @rule()
    def the_same_look_twice(self) -> None:
        obs = self.world.obs()
        self.world.tick(obs)
        self.world.allow_dead_weight = True
        self.world.tick(obs)
        self.world.allow_dead_weight = False

    @precondition(lambda self: self.old_looks)
    @rule()
    def a_stale_look(self) -> None:
        """The database refuses these by its lock; the state machine must survive them all the same."""
        self.world.allow_dead_weight = True
        self.world.tick(self.old_looks[0])
        self.world.allow_dead_weight = False

    # ---- the world ----

    @rule(times=st.integers(1, 3))
    def nature(self, times: int) -> None:
        for _ in range(times):
            self.world.nature()
            self.world.tick()

    @rule()
    def routers_confirm(self) -> None:
        self.world.confirmed = self.world.generation

    @rule(live=st.integers(0, 2))
    def routers(self, live: int) -> None:
        self.world.live = live

    @rule(index=st.integers(0, 5), how=st.sampled_from(["failed", "silent", "died"]))
    def a_unit_breaks(self, index: int, how: str) -> None:
        units = list(self.world.units.values())
        if not units:
            return
        unit = units[index % len(units)]
        unit.ready, unit.probed = False, False
        unit.failed, unit.silent = how == "failed", how == "silent"

    @rule()
    def all_heals(self) -> None:
        for unit in self.world.units.values():
            unit.failed = unit.silent = False

    @rule(seconds=st.sampled_from([1, 30, 200, 700, 2000]))
    def time_passes(self, seconds: int) -> None:
        self.world.wait_only(seconds)

    @rule(
        what=st.sampled_from(
            [
                (),
                (verdict(),),
                (verdict(900),),
                (verdict(5, healthy=False),),
                (verdict(fresh=False),),
                (verdict(200, 30, evidence=340, tripped=True, relative=400.0),),
                (verdict(200, 30, evidence=340, tripped=True, relative=1.0),),
                (verdict(200, 30, evidence=340, tripped=True, relative=1.0, baseline_breaching=True),),
            ]
        )
    )
    def figures(self, what: tuple[()]) -> None:
        self.world.verdicts = what

    # ---- people ----

    @rule()
    def someone_rolls_back(self) -> None:
        self.world.rollback = RollbackWish("oncall", "ui")

    @rule(what=st.sampled_from([commands.promote, commands.pause, commands.resume]))
    def someone_says(self, what: object) -> None:
        try:
            decision = what(self.world.state, now=self.world.now, actor="a")  # type: ignore[operator]  # one of three commands
        except DenvError:
            return
        assert decision.state.phase not in BACKWARD
        self.world.state = decision.state

    @precondition(lambda self: self.world.state.phase is not Phase.PENDING or self.world.state.left is not None)
    @rule(spec=st.sampled_from([NEW, NEW_DECODE, unit_spec(8)]))
    def someone_supersedes(self, spec: UnitSpec) -> None:
        world, before = self.world, self.world.state
        release = f"{MODEL}@{self.newest + 1}"
        pools = tuple(replace(pool, release=release) for pool in spec.pools)
        if world.rollback is not None:
            return  # the row of a request to go back beats it
        try:
            world.supersede(replace(spec, release=release, pools=pools))
        except DenvError:
            assert before.phase in BACKWARD or before.phase in ENDED
            return
        self.newest += 1
        self.old_looks, self.turned_at, self.left_log, self.share_when_frozen = [], None, [], 0

    @rule()
    def a_freeze_begins(self) -> None:
        self.world.frozen, self.share_when_frozen = Frozen("fw-1", "holidays", "UTC", None), self.world.share

    @rule()
    def a_freeze_ends(self) -> None:
        self.world.frozen = None

    @rule()
    def someone_breaks_the_glass(self) -> None:
        try:
            self.world.state = commands.broken_glass(self.world.state, actor="a", reason="it burns").state
        except DenvError:
            assert self.world.state.phase in BACKWARD or self.world.state.phase in ENDED

    @rule(replicas=st.integers(1, 3))
    def the_stage_is_scaled(self, replicas: int) -> None:
        weights = dict(self.world.weights)
        if self.world.state.phase not in ENDED:
            self.world.scale(replicas)
        assert self.world.weights == weights

    # ---- what must hold ----

    @invariant()
    def a_freeze_gives_the_new_release_no_more(self) -> None:
        world = self.world
        if world.frozen is not None and not world.state.break_glass and world.state.phase not in ENDED:
            assert world.share <= self.share_when_frozen

    @invariant()
    def what_was_superseded_only_goes(self) -> None:
        world = self.world
        if world.state.left is not None:
            assert not world.of(world.new), "the new release waits until nothing of the other is left"
            self.left_log.append(world.weights.get(world.state.left.release, 0))
            assert self.left_log == sorted(self.left_log, reverse=True)

    @invariant()
    def weights_are_whole(self) -> None:
        assert sum(self.world.weights.values()) == 10_000

    @invariant()
    def nothing_comes_back_after_a_rollback(self) -> None:
        world = self.world
        if world.state.phase is Phase.ROLLED_BACK:
            assert world.share == 0
        if world.state.phase in BACKWARD:
            if self.turned_at is None:
                self.turned_at = len(world.weight_log)
            behind = world.weight_log[self.turned_at :]
            assert behind == sorted(behind, reverse=True), "the abandoned release never gets more again"

    @invariant()
    def what_is_behind_it_is_told_in_order(self) -> None:
        done = self.world.state.done
        assert [one.step for one in done] == sorted({one.step for one in done})
        assert all(one.began_at <= one.ended_at for one in done)
        assert all(earlier.ended_at <= later.began_at for earlier, later in pairwise(done))

    @invariant()
    def it_always_says_why(self) -> None:
        if self.world.state.phase not in ENDED and self.world.trail:
            assert self.world.state.why

    def teardown(self) -> None:
        """A request to go back always ends with the old release whole, once machines and routers work."""
        world = self.world
        for unit in world.units.values():
            unit.failed = unit.silent = False
        world.live, world.come_up, world.verdicts = 1, True, ()
        world.domains = max(world.domains, world.replicas)
        if world.state.phase in {Phase.SUCCEEDED, Phase.SUPERSEDED}:
            return
        world.rollback = RollbackWish("oncall", "ui")
        world.settle(most=200)
        assert world.state.phase is Phase.ROLLED_BACK, world.state.why
        assert world.old is not None
        if "rollout.rolling-back" in world.events and world.state.entered_at and len(world.trail) > 1:
            assert world.weights == {world.old.release: 10_000}
            assert len([unit for unit in world.of(world.old) if unit.ready and unit.routable]) >= 1


TestRolloutMachine = RolloutMachine.TestCase
TestRolloutMachine.settings = settings(
    max_examples=150,
    stateful_step_count=35,
    deadline=None,
    phases=[Phase_.explicit, Phase_.generate, Phase_.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
