"""The allowance of an API key: never more than it says over any time, and never less than it could be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleets.domain.allowance import Allowance, Meter


@given(st.integers(1, 600), st.lists(st.floats(0, 5), min_size=1, max_size=120))
def test_no_more_requests_than_the_rate_over_any_time(per_min: int, waits: list[float]) -> None:
    meter, now_s, taken = Meter(Allowance(requests_per_min=per_min), 0.0), 0.0, []
    for wait_s in waits:
        now_s += wait_s
        limit, again_s = meter.enter(now_s)
        if limit:
            assert 0 < again_s <= 60 / per_min + 1e-6
        else:
            taken.append(now_s)
            meter.leave(0)
    for first, start_s in enumerate(taken):
        for last, end_s in enumerate(taken[first:], first):
            assert last - first + 1 <= per_min * ((end_s - start_s) / 60 + 1) + 1e-6


def test_the_time_to_try_again_is_enough() -> None:
    meter = Meter(Allowance(requests_per_min=2), 0.0)
    assert [meter.enter(0.0)[0] for _ in range(3)] == ["", "", "2 requests a minute"]
    _, again_s = meter.enter(0.0)
    assert again_s == 30.0 and meter.enter(again_s)[0] == ""


def test_tokens_are_owed_once_they_are_known() -> None:
    meter = Meter(Allowance(tokens_per_min=600), 0.0)
    assert meter.enter(0.0)[0] == ""
    meter.leave(1200)  # twice what it may a minute
    limit, again_s = meter.enter(0.0)
    assert limit == "600 tokens a minute" and abs(again_s - 60.1) < 1e-6
    assert meter.enter(again_s)[0] == ""


def test_requests_at_once_and_changed_limits() -> None:
    meter = Meter(Allowance(at_once=1), 0.0)
    assert meter.enter(0.0)[0] == "" and meter.enter(0.0)[0] == "1 requests at once"
    meter.change(Allowance(at_once=2, requests_per_min=1))
    assert meter.enter(0.0)[0] == ""  # the rate begins with a minute's worth, whatever came before it
    meter.leave(0)
    assert meter.enter(0.0)[0] == "1 requests a minute" and meter.running == 1


def test_shares_keep_a_limit_a_limit() -> None:
    assert Allowance(requests_per_min=10, at_once=1).shared(4) == Allowance(requests_per_min=2, at_once=1)
