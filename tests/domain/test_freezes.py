"""Freeze windows: DST, midnight, windows that touch, and what is no window."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from denvweb.core.errors import InvalidError
from releases.domain.freeze_reader import FreezeRequest, read_freeze
from releases.domain.freezes import DAYS, FreezeWindow, freeze_sentence, frozen, next_begin

NIGHTS = FreezeWindow("fw-1", "nobody is awake", "Europe/Berlin", days=("mon", "tue", "wed", "thu"), start=time(18), end=time(8))
WEEKEND = FreezeWindow("fw-2", "weekend", "Europe/Berlin", days=("sat", "sun"), start=time(0), end=time(0))
FRIDAY = replace(WEEKEND, id="fw-3", days=("fri",), start=time(16))


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _until(windows: list[FreezeWindow], at: str) -> str | None:
    found = frozen(windows, model="ds-flash", stage="prod-us", now=_utc(at))
    return None if found is None or found.until is None else f"{found.until:%m-%d %H:%M}"


def test_a_night_ends_on_the_next_morning_in_its_own_zone() -> None:
    assert _until([NIGHTS], "2026-11-30T16:59") is None  # 17:59 in Berlin
    assert _until([NIGHTS], "2026-11-30T17:00") == "12-01 07:00"
    assert _until([NIGHTS], "2026-12-01T06:59") == "12-01 07:00"
    assert _until([NIGHTS], "2026-12-01T07:00") is None
    assert _until([NIGHTS], "2026-12-04T20:00") is None  # a Friday


def test_windows_that_touch_are_one_and_the_first_is_named() -> None:
    found = frozen([WEEKEND, FRIDAY], model="ds-flash", stage="prod-us", now=_utc("2026-12-04T15:30"))
    assert found is not None and found.window == "fw-3"
    assert found.sentence == "frozen until 7 Dec 2026 00:00 (Europe/Berlin): weekend"


def test_without_a_gap_no_end_is_in_sight() -> None:
    always = replace(WEEKEND, days=DAYS)
    found = frozen([always], model="ds-flash", stage="prod-us", now=_utc("2026-12-04T15:30"))
    assert found is not None and found.until is None and found.sentence == "frozen, with no end in sight: weekend"


@pytest.mark.parametrize(
    ("start", "end", "day", "begins", "ends"),
    [
        (time(2, 30), time(8), "2027-03-14", "07:00", "12:00"),  # 02:30 is skipped: the moment of the skip
        (time(1), time(2, 30), "2027-03-14", "06:00", "07:00"),
        (time(1, 15), time(1, 45), "2026-11-01", "05:15", "06:45"),  # the hour comes twice: both times
        (time(12), time(13), "2027-03-14", "16:00", "17:00"),  # an hour after the skip is an hour
        (time(12), time(13), "2027-03-13", "17:00", "18:00"),
    ],
)
def test_clocks_that_jump(start: time, end: time, day: str, begins: str, ends: str) -> None:
    window = FreezeWindow("fw-1", "why", "America/New_York", days=DAYS, start=start, end=end)
    for at, on in ((begins, True), (ends, False)):
        moment = _utc(f"{day}T{at}")
        assert (frozen([window], model="m", stage="s", now=moment) is not None) is on
        assert (frozen([window], model="m", stage="s", now=moment - timedelta(seconds=1)) is not None) is not on
    assert next_begin(window, _utc(f"{day}T{begins}") - timedelta(seconds=1)) == _utc(f"{day}T{begins}")


def test_only_the_stages_that_it_names() -> None:
    ours = replace(WEEKEND, model="ds-flash", stage="prod-us")
    at = _utc("2026-12-05T12:00")
    assert frozen([ours], model="ds-flash", stage="prod-us", now=at)
    assert not frozen([ours], model="ds-flash", stage="staging", now=at)
    assert not frozen([ours], model="glm", stage="prod-us", now=at)
    assert frozen([replace(ours, stage="")], model="ds-flash", stage="staging", now=at)


@given(
    at=st.integers(0, 2 * 365 * 24 * 60).map(lambda minutes: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"]),
    days=st.sets(st.sampled_from(DAYS), min_size=1, max_size=6),
    start=st.times().map(lambda t: t.replace(second=0, microsecond=0)),
    end=st.times().map(lambda t: t.replace(second=0, microsecond=0)),
)
def test_frozen_is_what_the_clock_on_the_wall_says(at: datetime, zone: str, days: set[str], start: time, end: time) -> None:
    window = FreezeWindow("fw-1", "why", zone, days=tuple(sorted(days)), start=start, end=end)
    found = frozen([window], model="m", stage="s", now=at)
    local = at.astimezone(ZoneInfo(zone))
    offsets = {(at + timedelta(days=near)).astimezone(ZoneInfo(zone)).utcoffset() for near in (-1, 0, 1)}
    assume(len(offsets) == 1)  # a change of the clocks has its own test
    today, before, wall = DAYS[local.weekday()] in days, DAYS[local.weekday() - 1] in days, local.time()
    if end > start:
        expected = today and start <= wall < end
    else:
        expected = (today and wall >= start) or (before and wall < end)
    assert (found is not None) is expected
    if found is not None:
        assert found.until is not None and found.until > at
        assert frozen([window], model="m", stage="s", now=found.until) is None


NOW = datetime(2026, 12, 1, tzinfo=UTC)
GOOD = FreezeRequest("Europe/Berlin", "holidays", days=("fri", "mon"), start="18:00", end="24:00")


def test_a_window_is_read_and_told_in_words() -> None:
    window = read_freeze(GOOD, id="fw-1", now=NOW)
    assert window.days == ("mon", "fri") and window.end == time(0)
    assert freeze_sentence(window) == "every stage, mon, fri 18:00-00:00 (Europe/Berlin)"
    assert "ds-flash/prod-us, mon-thu" in freeze_sentence(replace(NIGHTS, model="ds-flash", stage="prod-us"))
    once = FreezeRequest("UTC", "holidays", begins_at=NOW, ends_at=NOW + timedelta(days=1))
    assert freeze_sentence(read_freeze(once, id="fw-1", now=NOW)).endswith("1 Dec 2026 00:00 (UTC) to 2 Dec 2026 00:00 (UTC)")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"zone": "Berlin"}, "zone"),
        ({"reason": "  "}, "reason"),
        ({"stage": "prod-us"}, "stage"),
        ({"days": ("monday",)}, "days"),
        ({"days": ()}, "days"),
        ({"start": "6pm"}, "start"),
        ({"end": "25:00"}, "end"),
        ({"begins_at": NOW}, "days"),
        ({"days": (), "start": "", "end": ""}, "days"),
        ({"days": (), "start": "", "end": "", "begins_at": NOW, "ends_at": NOW}, "ends_at"),
        ({"days": (), "start": "", "end": "", "begins_at": NOW}, "ends_at"),
        ({"days": (), "start": "", "end": "", "begins_at": NOW - timedelta(2), "ends_at": NOW}, "ends_at"),
        ({"days": (), "start": "", "end": "", "begins_at": NOW.replace(tzinfo=None), "ends_at": NOW}, "begins_at"),
    ],
)
def test_what_is_no_window_is_refused_by_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidError) as refused:
        read_freeze(replace(GOOD, **change), id="fw-1", now=NOW)  # type: ignore[arg-type]  # by name
    assert field in refused.value.fields and refused.value.code == "freeze-invalid"
