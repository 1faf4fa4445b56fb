"""Any order of ticks, crashes, silences, stale reads and requests, over the real `step`: what must hold, holds."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import Phase as Phase_
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from denvweb.core.errors import DenvError
from releases.domain import rollout_commands as commands
from releases.domain.rollout_types import BACKWARD, ENDED, Observations, Phase, RollbackWish
from tests.domain.rollout_world import NEW, NEW_DECODE, World, unit_spec, verdict


class RolloutMachine(RuleBasedStateMachine):
    """A stage under everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.old_looks: list[Observations] = []
        self.turned_at: int | None = None

    @initialize(
        replicas=st.integers(1, 3),
        spare=st.integers(0, 1),
        new=st.sampled_from([NEW, NEW_DECODE, unit_spec(8)]),
    )
    def begin(self, replicas: int, spare: int, new: object) -> None:
        self.world = World(new=new, replicas=replicas, domains=replicas + spare)  # type: ignore[arg-type]  # sampled_from

    # ---- the control plane ----

    @rule(times=st.integers(1, 6))
    def ticks(self, times: int) -> None:
        for _ in range(times):
            self.old_looks = [*self.old_looks[-3:], self.world.obs()]
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

    # ---- what must hold ----

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
    def it_always_says_why(self) -> None:
        if self.world.state.phase not in ENDED and self.world.trail:
            assert self.world.state.why

    def teardown(self) -> None:
        """A request to go back always ends with the old release whole, once machines and routers work."""
        world = self.world
        for unit in world.units.values():
            unit.failed = unit.silent = False
        world.live, world.come_up, world.verdicts = 1, True, ()
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
