"""The ledger that tells KV that moved from KV that was computed again."""

from __future__ import annotations

from fleets.router.moved import Ledger
from fleets.router.telemetry import Series
from metrics.domain.types import Route, SeriesKey

USERS = Series(SeriesKey("m/s", "u-1", "m@1", "m@1", Route.REMOTE), ())
PROBES = Series(SeriesKey("m/s", "u-1", "m@1", "m@1", Route.REMOTE, probe=True), ())


def _ledger(*tokens: int) -> Ledger:
    ledger = Ledger()
    assert not ledger.tells
    assert ledger.read(1000.0, now_s=10.0) == {}
    for count in tokens:
        ledger.ended(USERS, sent_s=11.0, tokens=count)
    return ledger


def test_what_moved_is_not_counted() -> None:
    ledger = _ledger(5000, 3000)
    assert ledger.read(1000.0 + 7500, now_s=12.0) == {USERS: (2, 0)}
    assert ledger.read(1000.0 + 7500, now_s=13.0) == {}


def test_what_never_moved_is_counted_once() -> None:
    ledger = _ledger(5000, 3000)
    assert ledger.read(1000.0, now_s=12.0) == {USERS: (2, 2)}
    assert ledger.read(1000.0, now_s=13.0) == {}


def test_each_is_judged_among_its_own() -> None:
    ledger = _ledger(5000, 3000)
    ledger.ended(PROBES, sent_s=11.0, tokens=100)
    assert ledger.read(1000.0, now_s=12.0) == {USERS: (2, 2), PROBES: (1, 1)}


def test_part_of_it() -> None:
    assert _ledger(1000, 1000, 1000, 1000).read(2000.0, now_s=12.0) == {USERS: (4, 3)}


def test_requests_from_before_the_first_reading_say_nothing() -> None:
    ledger = _ledger()
    ledger.ended(USERS, sent_s=9.0, tokens=5000)
    assert ledger.read(1000.0, now_s=12.0) == {}


def test_another_process_starts_anew_and_an_engine_without_the_counter_is_left_alone() -> None:
    ledger = _ledger(5000)
    assert ledger.read(10.0, now_s=12.0) == {}
    assert ledger.read(None, now_s=13.0) == {}
    assert not ledger.tells
    ledger.ended(USERS, sent_s=14.0, tokens=5000)
    assert ledger.read(10.0, now_s=15.0) == {}
