"""Several at once, and processes that die in the middle: the database decides, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from fleets import services as fleets
from metrics.selectors import events_view
from releases.models import RollbackRequest, Rollout
from releases.reconcile import reconcile
from releases.services import rollouts
from tests.integration.rollouts_world import STAGE, Demo


@pytest.mark.django_db(transaction=True)
def test_two_people_and_two_reconcilers_at_once_make_one_rollback() -> None:
    demo = Demo()
    demo.first()
    demo.release(block=32)
    demo.settle()

    def ask(who: str) -> str:
        try:
            return rollouts.rollback(stage=STAGE, actor=who, via="ui").pk
        finally:
            connection.close()

    def look(_: str) -> str:
        try:
            assert reconcile(demo.fleets.now).failures == 0
        finally:
            connection.close()
        return ""

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(do, who) for do, who in ((ask, "ada"), (look, ""), (ask, "bob"), (look, ""))]
        asked = {found for job in jobs if (found := job.result(30))}
    assert len(asked) == 1 and RollbackRequest.objects.count() == 1
    demo.settle()
    assert demo.rollout().state == Rollout.State.ROLLED_BACK and demo.weights() == {"ds-flash@1": 10_000}
    kinds = [event.kind for event in events_view(stage=STAGE, limit=500)]
    assert kinds.count("rollback.requested") == 2
    assert kinds.count("rollout.rolling-back") == kinds.count("rollout.rolled-back") == 1
    assert len(demo.units(1)) == 2 and not demo.units(2)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["routing_set", "unit_create"])
def test_a_reconciler_that_dies_in_the_middle_leaves_nothing_half_done(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = Demo()
    demo.first()
    demo.release(block=32)
    real = getattr(fleets, where)
    died: list[dict[str, Any]] = []

    def dies_once_after(**fields: Any) -> object:
        done = real(**fields)
        if not died:
            died.append(fields)
            raise RuntimeError("killed between the effect and the commit")
        return done

    monkeypatch.setattr(fleets, where, dies_once_after)
    for _ in range(80):
        demo.router(requests=400)
        demo.fleets.tick(9.0, rounds=2)
        demo.router()
        before = (demo.weights(), len(died))
        look = reconcile(demo.fleets.now)
        assert look.failures <= 1
        if look.failures:
            assert len(died) == 1 > before[1]
        if demo.rollout().state in Rollout.ENDED:
            break
    assert died and demo.rollout().state == Rollout.State.SUCCEEDED, demo.rollout().why
    assert len(demo.units(2)) == 2 and len(demo.units(1)) == 1 and demo.weights() == {"ds-flash@2": 10_000}
