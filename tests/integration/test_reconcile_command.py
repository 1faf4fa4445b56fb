"""`denv reconcile`: rollouts move with neither Celery nor a broker."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from django.core.management import call_command

from releases.management.commands.reconcile import _loop
from releases.models import Rollout
from tests.integration.rollouts_world import Demo


@pytest.mark.django_db(transaction=True)
def test_one_look_begins_a_rollout_and_a_task_that_fails_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = Demo()
    demo.release()
    monkeypatch.setattr("fleets.tasks.reconcile", lambda: 1 / 0)
    call_command("reconcile", once=True)
    assert demo.rollout().state == Rollout.State.ROLLING and len(demo.units()) == 1


def test_the_loop_runs_each_as_often_as_beat_would_until_it_is_told_to_stop() -> None:
    stop, ran = threading.Event(), Counter[str]()

    def run(task: str) -> None:
        ran[task] += 1
        if ran["often"] == 5:
            stop.set()

    _loop({"often": 0.001, "seldom": 60.0}, run, stop)
    assert ran == {"often": 5, "seldom": 1}
