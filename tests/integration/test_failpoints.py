"""kill -9 before and after every commit and effect: the next look goes on from what is there, and the end is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.db import connection

from fleets.domain.types import RankDesired
from fleets.reconcile import reconcile as fleets_reconcile
from metrics.selectors import events_view
from releases.domain import rollout_types
from releases.models import RollbackRequest, Rollout
from releases.reconcile import reconcile
from releases.services.rollouts import rollback
from tests.integration.mortal import Mortal
from tests.integration.rollouts_world import STAGE, Demo

pytestmark = pytest.mark.django_db(transaction=True)

COMMITS = (
    "rollout.before-commit",
    "rollout.after-commit",
    "heal.before-commit",
    "heal.after-commit",
    "sweep.before-commit",
    "sweep.after-commit",
    "steady.before-commit",
)
FLEETS = ("fleets.after-nodes", "fleets.after-units", "fleets.after-routes")
EFFECTS = ("CreateUnit", "RetargetUnit", "StopUnit", "SetRoutable", "RequestProbe", "SetWeights", "SetStable", "HoldRelease")
POINTS = (*COMMITS, *FLEETS, *(f"{when}.{effect}" for effect in EFFECTS for when in ("before", "after")))


@pytest.fixture
def mortal() -> Iterator[Mortal]:
    program = Mortal(connection.settings_dict["NAME"])
    yield program
    program.close()


@dataclass
class Journey:
    """A rollout whose control plane is killed at each failpoint when it first comes there; every look is a process of its own."""

    mortal: Mortal
    demo: Demo
    kills: bool
    died: list[str] = field(default_factory=list)
    launched: Counter[str] = field(default_factory=Counter)

    def tick(self, *, requests: int = 0) -> None:
        """As Demo.tick, with the reconcilers in a mortal process; who is killed is started again."""
        demo = self.demo
        demo.router(requests=requests)
        before = {rank.rank_id: rank.desired for agent in demo.fleets.agents.values() for rank in agent.snapshot.ranks}
        demo.fleets.now += timedelta(seconds=9)
        demo.fleets.sync(rounds=2)
        self._count_launches(before)
        demo.router()
        self.act("reconcile")

    def act(self, what: str) -> None:
        """Again and again until it comes to its end."""
        if not self.kills:
            _calmly(what, self.demo)
            return
        while died_at := self.mortal.act(what, self.demo.fleets.now, armed=self._armed()):
            self.died.append(died_at)

    def _armed(self) -> list[str]:
        return (
            [point for point in (*POINTS, "rollback.before-commit", "rollback.after-commit") if point not in self.died]
            if self.kills
            else []
        )

    def _count_launches(self, before: dict[str, RankDesired]) -> None:
        """An agent launches a rank when it is first told to run it."""
        for agent in self.demo.fleets.agents.values():
            for rank in agent.snapshot.ranks:
                if rank.desired is RankDesired.RUN and before.get(rank.rank_id) is not RankDesired.RUN:
                    self.launched[rank.rank_id] += 1

    def until_ended(self) -> Rollout:
        for _ in range(90):
            self.tick(requests=400)
            if self.demo.rollout().state in Rollout.ENDED:
                break
        for _ in range(5):  # healing, and what still drains
            self.tick(requests=400)
        return self.demo.rollout()

    def outcome(self) -> object:
        """What must not depend on who was killed when."""
        rollout = self.demo.rollout()
        units = sorted((unit.slot, unit.release, unit.ready, unit.probed, unit.routable) for unit in self.demo.units())
        kinds = Counter(
            event.kind for event in events_view(stage=STAGE, limit=1000) if event.kind != "rollback.requested"
        )  # once an asking
        return rollout.state, self.demo.weights(), units, str(self.demo.stage().release), kinds


def _calmly(what: str, demo: Demo) -> None:
    if what == "rollback":
        rollback(stage=STAGE, actor="ada", via="ui", reason="a test")
        return
    fleets_reconcile(demo.fleets.now)
    assert reconcile(demo.fleets.now).failures == 0


def _forward(mortal: Mortal, *, kills: bool, domains: int, block: int, prefills: int) -> Journey:
    demo = Demo(domains=domains, gpus=8 if prefills == 1 else 16)
    demo.first()
    journey = Journey(mortal, demo, kills)
    demo.release(block=block, prefills=prefills)
    journey.until_ended()
    return journey


def _back(mortal: Mortal, *, kills: bool, slow: bool) -> Journey:
    demo = Demo()
    demo.first()
    journey = Journey(mortal, demo, kills)
    demo.slow = "ds-flash@2" if slow else ""
    demo.release(block=32)
    for _ in range(40):
        journey.tick(requests=0)
        if demo.weights().get("ds-flash@2"):
            break
    assert demo.weights().get("ds-flash@2")
    if not slow:
        journey.act("rollback")
    journey.until_ended()
    return journey


def _once_each(journey: Journey) -> None:
    assert journey.launched and max(journey.launched.values()) == 1, journey.launched
    assert len(journey.died) == len(set(journey.died))


def _again(mortal: Mortal) -> None:
    """Empty the tables for the second run of a test."""
    from django.core.management import call_command

    call_command("flush", verbosity=0, interactive=False)


def test_every_failpoint_is_an_effect_or_a_commit() -> None:
    kinds = {kind.__name__ for kind in rollout_types.Effect.__args__}
    assert kinds == set(EFFECTS)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("domains", "block", "prefills"), [(3, 32, 1), (2, 32, 1)], ids=["surge", "in place"])
def test_a_good_release_succeeds_whoever_is_killed(mortal: Mortal, domains: int, block: int, prefills: int) -> None:
    calm = _forward(mortal, kills=False, domains=domains, block=block, prefills=prefills).outcome()
    _again(mortal)
    journey = _forward(mortal, kills=True, domains=domains, block=block, prefills=prefills)
    assert journey.outcome() == calm
    _once_each(journey)
    assert {"rollout.before-commit", "rollout.after-commit", "before.SetWeights", "after.SetWeights", *FLEETS} <= set(journey.died)
    assert {"before.CreateUnit", "after.CreateUnit"} <= set(journey.died) or {"before.RetargetUnit", "after.RetargetUnit"} <= set(
        journey.died
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("slow", [True, False], ids=["by its alarms", "by a person"])
def test_a_rollback_arrives_whoever_is_killed(mortal: Mortal, slow: bool) -> None:
    calm = _back(mortal, kills=False, slow=slow).outcome()
    _again(mortal)
    journey = _back(mortal, kills=True, slow=slow)
    assert journey.outcome() == calm
    _once_each(journey)
    rollout = journey.demo.rollout()
    assert rollout.state == Rollout.State.ROLLED_BACK and journey.demo.weights() == {"ds-flash@1": 10_000}
    assert RollbackRequest.objects.count() == (0 if slow else 1)
    assert {"before.HoldRelease", "after.StopUnit", "rollout.after-commit"} <= set(journey.died)
    assert slow or {"rollback.before-commit", "rollback.after-commit"} <= set(journey.died)
