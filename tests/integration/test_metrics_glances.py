"""Glances: kept up in small steps they are what a look at all windows gives, and they say what frames say."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from metrics.domain.glance import NAMES, POINTS, REDONE, STEP_S
from metrics.domain.types import Metric, Route, SeriesKey
from metrics.domain.window import Figures
from metrics.models import Glance
from metrics.selectors import frame_view, glances_view
from metrics.selectors.windows import floor_to
from metrics.services.glances import glances_write
from metrics.services.ingest import windows_write

STAGE = "ds-flash/prod-us"


@pytest.fixture
def now(db: None) -> datetime:
    return floor_to(timezone.now(), 300) + timedelta(seconds=12)


def window(at: datetime, latency_s: float, *, unit: str = "u-1", release: str = "ds-flash@7", stage: str = STAGE) -> None:
    """One request and one token gap, ten seconds' worth."""
    figures = Figures(counters={"requests": 5, "errors": 1})
    figures.histogram(Metric.TTFT.value).record(latency_s)
    figures.histogram(Metric.ITL.value).record(latency_s / 10)
    windows_write(floor_to(at, 10), 10, {SeriesKey(stage, unit, release, release, Route.REMOTE): figures}, settled=False)


def test_kept_up_in_small_steps_it_is_what_one_look_gives(now: datetime) -> None:
    for second in range(0, 1800, 70):
        window(now - timedelta(seconds=1805 - second), 0.1 + second / 1000)
        if second % 350 == 0:
            glances_write(now=now - timedelta(seconds=1795 - second))
    glances_write(now=now)
    kept = glances_view(now=now)[STAGE]
    Glance.objects.all().delete()
    glances_write(now=now)
    assert glances_view(now=now)[STAGE] == kept


def test_it_says_what_the_frame_says(now: datetime) -> None:
    for minute in range(10):
        window(now - timedelta(minutes=minute), 0.2 + minute / 10)
        window(now - timedelta(minutes=minute), 0.9, unit="u-2", release="ds-flash@8")
    glances_write(now=now)
    glance = glances_view(now=now)[STAGE]
    frame = frame_view(stage=STAGE, names=NAMES, span_s=STEP_S * POINTS, step_s=STEP_S, now=now)
    for line in frame.lines:
        short = tuple(None if value is None else float(f"{value:.4g}") for value in line.values)
        assert glance.lines[line.group][line.name] == short, line
    assert (glance.requests, glance.errors, glance.error_ratio) == (20, 4, 0.2)


def test_late_figures_are_taken_in_and_later_ones_not_before_their_step_is_over(now: datetime) -> None:
    window(now - timedelta(seconds=STEP_S * 3), 0.5)
    glances_write(now=now)
    window(now - timedelta(seconds=STEP_S * REDONE - 5), 0.7)
    window(now, 9.0)
    glances_write(now=now)
    values = glances_view(now=now)[STAGE].lines["ds-flash@7"]["ttft.p99"]
    assert [round(value, 1) for value in values if value is not None] == [0.5, 0.7]


def test_without_the_writer_the_line_ends_where_it_was_left(now: datetime) -> None:
    window(now - timedelta(seconds=40), 0.5)
    glances_write(now=now)
    later = glances_view(now=now + timedelta(minutes=5))[STAGE]
    assert later.lines["ds-flash@7"]["ttft.p99"][-11:] == (*later.lines["ds-flash@7"]["ttft.p99"][-11:-10], *([None] * 10))
    assert later.requests == 0
    assert glances_view(now=now + timedelta(hours=1))[STAGE].lines == {}


def test_a_stage_without_a_request_in_the_span_has_none(now: datetime) -> None:
    window(now - timedelta(minutes=20), 0.5)
    window(now - timedelta(minutes=1), 0.5, stage="other/prod")
    assert glances_write(now=now) == 2
    assert glances_write(now=now + timedelta(minutes=15)) == 1
    assert set(glances_view(now=now)) == {"other/prod"}
