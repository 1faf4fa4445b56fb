"""Silence and doubt never promote: each reason for which a rollout is held, by the reconciler on figures that routers report."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from metrics.domain.types import AlarmCount, Route, SeriesDelta, SeriesKey
from metrics.models import Event
from releases.models import Rollout
from releases.services.releases import release_create
from tests.integration.rollouts_world import STAGE, Demo, release_yaml

pytestmark = pytest.mark.django_db
OLD, NEW = "ds-flash@1", "ds-flash@2"
CANARY = {OLD: 9_000, NEW: 1_000}


@dataclass
class Heard(Demo):
    """Requests of each look by release, and how many of them are over the TTFT limit."""

    told: dict[str, tuple[int, int]] = field(default_factory=dict)

    def _figures(self, unit: str, prefill: str, decode: str, requests: int) -> SeriesDelta:
        n, over = self.told.get(decode, (0, 0))
        counts = {"ttft-p99": AlarmCount(n, over), "error-rate": AlarmCount(n, 0), "errors-plainly": AlarmCount(n, 0)}
        return SeriesDelta(SeriesKey(STAGE, unit, prefill, decode, Route.REMOTE), {"requests": n}, alarms=counts if n else {})

    def canary(self) -> None:
        """Release 2 has its first share of the traffic, and nobody has asked it yet."""
        self.first(units=1)
        yaml = release_yaml(block=32, units=1).replace("hold: 8s", "max-wait: 40s, hold: 20s")
        release_create(yaml=yaml, actor="ada", via="cli")
        for _ in range(40):
            self.tick()
            data = self.rollout().data
            if self.weights() == CANARY and data["moves"][data["cursor"]]["kind"] == "hold":
                return
        raise AssertionError(self.rollout().why)

    def hear(self, told: dict[str, tuple[int, int]]) -> None:
        """One look with these requests; those after it have none."""
        self.told = told
        self.tick(requests=1)
        self.told = {}

    def wait(self, seconds: float) -> Rollout:
        """With reports that say that nothing was asked."""
        for _ in range(round(seconds / 4)):
            self.tick(4)
        return self.rollout()

    def held_for(self) -> list[str]:
        found = Event.objects.filter(kind="rollout.held").order_by("seq").values_list("sentence", flat=True)
        return [sentence.partition("(")[2].partition(")")[0] for sentence in found]


@pytest.fixture
def heard() -> Heard:
    heard = Heard(domains=2)
    heard.canary()
    return heard


def test_without_a_request_it_is_held_as_no_data(heard: Heard) -> None:
    row = heard.wait(200)
    assert (row.state, row.reason, heard.weights()) == (Rollout.State.HELD, "no_data", CANARY)
    assert "nothing is promoted by silence" in row.why and heard.held_for() == ["no_data"]
    heard.hear({OLD: (900, 3), NEW: (400, 0)})
    assert heard.wait(12).state != Rollout.State.HELD


def test_when_figures_stop_it_is_held_as_stale_metrics_and_goes_on_when_they_come_back(heard: Heard) -> None:
    heard.hear({OLD: (900, 3), NEW: (400, 0)})  # all that it needs, one tick before its time is over
    heard.live = False
    row = heard.wait(60)
    assert (row.state, row.reason, heard.weights()) == (Rollout.State.HELD, "stale_metrics", CANARY)
    heard.live = True
    heard.wait(16)
    assert heard.rollout().reason != "stale_metrics" and heard.held_for()[0] == "stale_metrics"


def test_five_requests_are_insufficient_samples(heard: Heard) -> None:
    heard.hear({OLD: (45, 0), NEW: (5, 0)})
    row = heard.wait(24)
    assert (row.state, row.reason, heard.weights()) == (Rollout.State.ROLLING, "insufficient_samples", CANARY)
    row = heard.wait(60)
    assert (row.state, row.reason, heard.weights()) == (Rollout.State.HELD, "insufficient_samples", CANARY)
    assert "ttft-p99 has n=5 of 100" in row.why


def test_when_both_releases_are_over_the_limit_it_is_held_and_people_are_told(heard: Heard) -> None:
    heard.hear({OLD: (900, 300), NEW: (100, 33)})
    row = heard.wait(8)
    assert (row.state, row.reason, heard.weights()) == (Rollout.State.HELD, "baseline_breaching", CANARY)
    event = Event.objects.get(kind="rollout.held")
    assert event.level == "bad" and "going back would not help" in event.sentence
    assert (event.evidence["n"], event.evidence["baseline_n"]) == (100, 900)
    assert heard.wait(120).state == Rollout.State.HELD  # however long it lasts


def test_a_breach_that_is_not_confirmed_holds_and_goes_back_at_max_wait(heard: Heard) -> None:
    heard.hear({OLD: (150, 4), NEW: (40, 6)})
    row = heard.wait(8)
    assert (row.state, row.reason, heard.weights()) == (Rollout.State.HELD, "breach_unconfirmed", CANARY)
    (ttft,) = [verdict for verdict in row.verdicts if verdict["alarm"] == "ttft-p99"]
    assert ttft["tripped"] and ttft["relative_evidence"] < ttft["trips_at"] and not ttft["baseline_breaching"]
    assert heard.wait(60).state in (Rollout.State.ROLLING_BACK, Rollout.State.ROLLED_BACK)
    assert heard.weights() == {OLD: 10_000} and heard.rollout().data["cause"]["code"] == "breach"


def test_all_that_a_release_had_a_part_in_is_judged_as_its_own(heard: Heard) -> None:
    """A request with the new release's prefill and the old one's decode, and the other way round, is the new one's."""
    heard.told = {OLD: (20, 15)}
    figures = heard._figures
    for prefill, decode in ((NEW, OLD), (OLD, NEW)):
        heard.told = {decode: (20, 15)}
        heard.seq += 1
        heard.fleets.router(seq=heard.seq, generation=0, series=(figures("u", prefill, decode, 20),))
    heard.hear({OLD: (900, 3)})
    (ttft,) = [verdict for verdict in heard.rollout().verdicts if verdict["alarm"] == "ttft-p99"]
    assert (ttft["n"], ttft["k"], ttft["baseline_n"]) == (40, 30, 900)
