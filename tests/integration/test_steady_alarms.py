"""Alarms between rollouts, by the reconciler on the database: told once, over once, and shown meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fleets.selectors import router_table
from metrics.domain.types import AlarmCount, Route, SeriesDelta, SeriesKey
from metrics.models import Channel, Event, Outbox, StageAlarms
from metrics.services import Watch, series_ingest, steady_alarms_look
from releases.models import Rollout
from releases.reconcile import reconcile
from releases.selectors.stages import stage_view, stages_view
from releases.services.steady import steady_look
from tests.integration.rollouts_world import STAGE, Demo

pytestmark = pytest.mark.django_db


@pytest.fixture
def demo() -> Demo:
    demo = Demo(domains=1)
    demo.first(units=1)
    Channel.objects.create(id="ch-1", kind="webhook", name="ops", address="https://example.org", created_by="ada")
    return demo


def _serve(demo: Demo, blocks: int, *, slow: int, requests: int = 600) -> None:
    """Half a minute at a time: users' requests, and a look by the whole reconciler."""
    release = f"ds-flash@{demo.rollout().to_release.number}"
    (unit, *_) = router_table(stage=STAGE).units
    key = SeriesKey(STAGE, unit.unit, release, release, Route.REMOTE)
    for _ in range(blocks):
        demo.fleets.now += timedelta(seconds=30)
        demo.seq += 1
        counts = {"ttft-p99": AlarmCount(requests, slow), "error-rate": AlarmCount(requests, 0), "errors-plainly": AlarmCount(requests, 0)}
        delta = SeriesDelta(key=key, counters={"requests": requests}, alarms=counts)
        series_ingest(source="r", seq=demo.seq, at=demo.fleets.now, series=[delta], received_at=demo.fleets.now)
        steady_look(demo.fleets.now)


def _told(kind: str) -> list[str]:
    return list(Event.objects.filter(kind=kind).order_by("seq").values_list("sentence", flat=True))


def test_a_breach_is_told_once_shown_while_it_lasts_and_its_end_told_too(demo: Demo) -> None:
    _serve(demo, 4, slow=3)
    _serve(demo, 20, slow=60)
    (sentence,) = _told("alarm.breached")
    assert sentence.startswith("ds-flash/prod-us breaks its limit: ttft-p99: ")
    assert "486 of 6,000 requests over 1,500 ms (8.1%, 7.42-8.82%) in 5:00 min, for 4:00 min without a break" in sentence
    assert sentence.endswith("told at 26,000 : 1")
    assert Outbox.objects.filter(event__kind="alarm.breached").count() == 1
    (breach,) = stage_view(stage=STAGE).breaches
    assert (breach.alarm, breach.sentence) == ("ttft-p99", sentence)
    assert reconcile(demo.fleets.now).failures == 0
    _serve(demo, 20, slow=3)
    assert _told("alarm.recovered") == [f"{STAGE} keeps its limit again: ttft-p99, which it broke from {breach.since:%H:%M:%S} on"]
    assert Outbox.objects.filter(event__kind="alarm.recovered").count() == 1
    assert stages_view()[0].breaches == ()


def test_a_new_release_is_judged_anew_and_a_rollout_judges_for_itself(demo: Demo) -> None:
    _serve(demo, 20, slow=60)
    assert len(_told("alarm.breached")) == 1
    row = StageAlarms.objects.get()
    watch = Watch(STAGE, "ds-flash@2", ())
    assert steady_alarms_look(watches=[watch], now=row.looked_to + timedelta(seconds=60)) == 1
    assert _told("alarm.recovered") == ["ds-flash/prod-us: ttft-p99 is judged anew, now on release 2"]
    assert not StageAlarms.objects.get().breaching


def test_what_a_rollout_judged_is_not_judged_again(demo: Demo) -> None:
    _serve(demo, 2, slow=3)
    since = demo.fleets.now + timedelta(minutes=9)
    Rollout.objects.update(ended_at=since)  # one that came, hurt users, and was taken back to the same release
    key = SeriesKey(STAGE, "u", "ds-flash@1", "ds-flash@1", Route.REMOTE)
    for second in range(10, 540, 10):
        demo.seq += 1
        at = demo.fleets.now + timedelta(seconds=second)
        counts = {"ttft-p99": AlarmCount(600, 300)}
        series_ingest(source="r", seq=demo.seq, at=at, series=[SeriesDelta(key=key, alarms=counts)], received_at=at)
    demo.fleets.now = since + timedelta(seconds=60)
    steady_look(demo.fleets.now)
    assert _told("alarm.breached") == []


def test_every_figure_is_taken_up_once(demo: Demo) -> None:
    def counted() -> int:
        demo.fleets.now += timedelta(seconds=60)
        for _ in range(3):
            steady_look(demo.fleets.now)
        return int(StageAlarms.objects.get().data.get("ttft-p99", {"total": {"n": 0}})["total"]["n"])

    _serve(demo, 1, slow=3)
    before = counted()
    _serve(demo, 3, slow=3)
    assert counted() - before == 1800
    assert counted() - before == 1800


def test_a_look_at_many_stages_takes_no_more_queries(demo: Demo) -> None:
    now = timezone.now()

    def queries(stages: int) -> int:
        watches = [Watch(f"m{i}/s", f"m{i}@1", ()) for i in range(stages)]
        steady_alarms_look(watches=watches, now=now)
        with CaptureQueriesContext(
            connection,
        ) as seen:
            steady_alarms_look(watches=watches, now=now + timedelta(minutes=2))
        return len(seen)

    assert queries(1) == queries(50) <= 8
