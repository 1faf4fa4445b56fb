"""Several at once, and processes that die in the middle: the database decides, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from denvweb.core.errors import ConflictError
from fleets import services as fleets
from metrics.models import Channel, Outbox
from metrics.selectors import events_view
from releases.domain.rollout_types import Decision, SetWeights
from releases.models import RollbackRequest, Rollout
from releases.reconcile import reconcile
from releases.selectors.rollouts import state_of
from releases.services import rollouts, sweep
from releases.services.decisions import decision_write
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


@pytest.mark.django_db(transaction=True)
def test_slack_the_dashboard_and_an_alarm_at_once_are_one_rollback_three_rows_and_one_notice() -> None:
    demo = Demo()
    Channel.objects.create(id="ch-1", kind=Channel.Kind.SLACK, name="ops", address="C0123456789", created_by="ada")
    demo.first()
    demo.release(block=32)
    while demo.weights().get("ds-flash@2") is None:
        demo.tick(3.0, requests=20)
    demo.slow = "ds-flash@2"
    demo.fleets.tick(1.0, rounds=1)
    demo.router(requests=400)  # the evidence is there, and nobody has looked yet
    together = Barrier(3)

    def ask(via: str) -> str:
        try:
            together.wait(10)
            return rollouts.rollback(stage=STAGE, actor="ada", via=via).pk
        finally:
            connection.close()

    def look(_: str) -> str:
        try:
            together.wait(10)
            assert reconcile(demo.fleets.now).failures == 0
            return demo.rollout().pk
        finally:
            connection.close()

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(do, via) for do, via in ((ask, "slack"), (ask, "ui"), (look, "alarm"))]
        assert len({job.result(30) for job in jobs}) == 1
    demo.settle()
    assert Rollout.objects.filter(kind="rollback").count() == 0 and demo.rollout().state == Rollout.State.ROLLED_BACK
    events = [event for event in events_view(stage=STAGE, limit=500) if event.kind in {"rollback.requested", "rollout.rolling-back"}]
    assert sorted(event.kind for event in events) == ["rollback.requested", "rollback.requested", "rollout.rolling-back"]
    assert {event.via for event in events if event.kind == "rollback.requested"} == {"slack", "ui"}
    assert Outbox.objects.filter(event__kind="rollout.rolling-back").count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_reconciler_that_was_stopped_and_goes_on_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = Demo()
    demo.first()
    demo.release(block=32)
    while demo.weights().get("ds-flash@2") is None:
        demo.tick(3.0, requests=20)
    for _ in range(3):  # into the hold, where there is nothing to decide
        demo.tick(1.0, requests=20)
    with CaptureQueriesContext(connection) as seen:
        assert sweep.rollouts_sweep(demo.fleets.now) == []  # it waits, and nothing of it is locked
    locks = [query["sql"] for query in seen if "FOR NO KEY UPDATE" in query["sql"]]
    assert len(seen) <= 14 and all("SKIP LOCKED" in sql for sql in locks)
    stale = Rollout.objects.select_related("stage__model", "to_release__model").get(pk=demo.rollout().pk)
    late: list[Any] = []
    real = sweep._write
    monkeypatch.setattr(sweep, "_write", lambda *found: late.append(found))
    demo.tick(1.0, requests=20)  # it has looked, and is stopped before it writes
    monkeypatch.undo()
    rollouts.rollback(stage=STAGE, actor="ada", via="ui")
    demo.settle()
    before = Rollout.objects.values("generation", "state", "why", "verdicts", "data").get(pk=stale.pk)
    table, units = demo.weights(), demo.units()
    assert late and late[0][0] and late[0][1]
    real(*late[0])
    decision = Decision(replace(state_of(stale), weight_bp=10_000), (SetWeights({"ds-flash@2": 10_000}),))
    with pytest.raises(ConflictError) as refused:
        decision_write(row=stale, decision=decision, now=demo.fleets.now)
    assert refused.value.code == "stale-generation"
    assert Rollout.objects.values("generation", "state", "why", "verdicts", "data").get(pk=stale.pk) == before
    assert demo.weights() == table == {"ds-flash@1": 10_000} and demo.units() == units
