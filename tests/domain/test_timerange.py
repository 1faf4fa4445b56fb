"""The range of a page's charts: what an address asks for, and where one can go from there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend import timerange
from frontend.timerange import PRESETS, TimeRange

NOW = datetime(2026, 12, 1, 12, 0, 7, 250_000, tzinfo=UTC)
instants = st.floats(-40 * 86400, 3600).map(lambda seconds: NOW + timedelta(seconds=seconds))


def _opened(query: str) -> TimeRange:
    return timerange.of(dict(parse_qsl(query)), NOW)


def _sound(seen: TimeRange) -> None:
    assert NOW - timedelta(days=30) <= seen.since < seen.until <= NOW
    assert timedelta(seconds=58) <= seen.until - seen.since <= timedelta(hours=24, seconds=1)
    assert 1 <= seen.span_s / seen.step_s <= 152
    if seen.since < NOW - timedelta(hours=13):
        assert seen.step_s % 300 == 0  # nothing finer is kept for long
    assert seen.end - timedelta(seconds=seen.span_s) <= seen.since + timedelta(seconds=3)


@given(instants, instants)
def test_any_two_instants_are_a_range_that_a_link_keeps(one: datetime, other: datetime) -> None:
    seen = _opened(timerange.pin(min(one, other), max(one, other)))
    _sound(seen)
    assert _opened(seen.query).query == seen.query
    for way in timerange.links(seen, NOW).values():
        reached = _opened(way)
        _sound(reached)
        assert _opened(reached.query).query == reached.query


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_moves_with_the_clock_and_goes_no_later(preset: timerange.Preset) -> None:
    seen = _opened(f"range={preset.key}")
    assert (seen.until, seen.until - seen.since, seen.every_ms) == (NOW, preset.span, preset.every_ms)
    links = timerange.links(seen, NOW)
    assert links["later"] == seen.query
    assert (links["wider"] == seen.query) is (preset.key == "24h")
    assert _opened(links["earlier"]).until == (NOW - preset.span / 2).replace(microsecond=0)
    assert _opened(f"range={preset.span.total_seconds() / 60:.0f}").preset is preset  # as links had it once


@pytest.mark.parametrize("query", ["", "range=2y", "from=yesterday&to=now", "from=2026-12-01T11:00:00Z", "from=2026-12-01&to=2026-11-01"])
def test_what_cannot_be_shown_is_the_last_quarter_of_an_hour(query: str) -> None:
    assert _opened(query).preset is PRESETS[0]
