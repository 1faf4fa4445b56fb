"""Evidence: the doc's tables, an independent computation of the formulas, and what seeded simulation says of its promises."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp, log

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.domain.alarm import BET_GRID, BREACH_ODDS, HEALTH_ODDS, NOTHING, bet_sums, health_bound, minus, plus
from metrics.domain.beta import interval, log1mexp, log_betainc, log_sum
from metrics.domain.evidence import (
    TOLERANCE,
    ArmState,
    RelativeState,
    arm_begin_anew,
    arm_look,
    log_arm_evidence,
    log_health,
    log_health_of,
    log_relative_evidence,
    log_weight,
    plainly_broken,
    relative_begin_anew,
    relative_look,
)
from metrics.domain.types import AlarmCount, AlarmSpec

TTFT = AlarmSpec(name="ttft-p99", metric="ttft", p0=0.01, limit_s=1.5)
ITL = AlarmSpec(name="itl-p99", metric="itl", p0=0.01, limit_s=0.06)
TRIP = log(1 / 0.0033)
PROVED = log(20)


def log_breach(spec: AlarmSpec, count: AlarmCount) -> float:
    """The evidence of a single test over all of these requests: the state's without the half that is kept for restarts."""
    state = arm_look(spec, ArmState(), count)
    return log(2 * exp(log_arm_evidence(spec, state)) - 1) if count.n else 0.0


# ---- the special functions ----


def _series(a: float, b: float, x: float) -> mpmath.mpf:
    """I_x(a, b) by its power series in 40 digits: another way than the continued fraction, and all terms are positive."""
    with mpmath.workdps(40):
        a, b, x = mpmath.mpf(a), mpmath.mpf(b), mpmath.mpf(x)
        total, term, i = mpmath.mpf(0), mpmath.mpf(1), 0
        while term > total * mpmath.mpf(10) ** -35:
            total += term
            term *= (a + b + i) / (a + 1 + i) * x
            i += 1
        log_front = a * mpmath.log(x) + b * mpmath.log1p(-x) + mpmath.loggamma(a + b) - mpmath.loggamma(a + 1) - mpmath.loggamma(b)
        return mpmath.exp(log_front) * total


@settings(max_examples=100, deadline=None)
@given(st.floats(0.5, 500), st.floats(0.5, 500), st.floats(0.001, 0.9))
def test_incomplete_beta_agrees_with_mpmath(a: float, b: float, x: float) -> None:
    below, above = log_betainc(a, b, x)
    true = _series(a, b, x)
    with mpmath.workdps(40):
        for got, wanted in ((below, true), (above, 1 - true)):
            if wanted > mpmath.mpf(10) ** -25:
                assert got == pytest.approx(float(mpmath.log(wanted)), rel=1e-8, abs=1e-10)


@pytest.mark.parametrize(("a", "b", "x"), [(0.5, 1e6, 0.01), (9_900.0, 990_100.0, 0.01), (40.5, 1972.0, 0.01), (500.5, 512.0, 0.01)])
def test_incomplete_beta_far_out(a: float, b: float, x: float) -> None:
    below, _ = log_betainc(a, b, x)
    with mpmath.workdps(40):
        assert below == pytest.approx(float(mpmath.log(_series(a, b, x))), rel=1e-6, abs=1e-8)


def test_small_helpers_at_their_edges() -> None:
    assert log_betainc(2, 3, 0.0) == (float("-inf"), 0.0)
    assert log_betainc(2, 3, 1.0) == (0.0, float("-inf"))
    assert log_sum([]) == float("-inf")
    assert log_sum([float("-inf"), 0.0]) == 0.0
    assert log1mexp(0.0) == float("-inf")
    assert exp(log1mexp(-1e-12)) == pytest.approx(1e-12)


def test_interval_is_clopper_pearson() -> None:
    assert interval(1204, 9) == pytest.approx((0.003424, 0.014142), abs=1e-6)
    assert interval(10, 0) == pytest.approx((0.0, 1 - 0.025 ** (1 / 10)))
    assert interval(10, 10) == pytest.approx((0.025 ** (1 / 10), 1.0))
    assert interval(0, 0) == (0.0, 1.0)


# ---- breach and health ----


def test_breach_trips_where_the_table_says() -> None:
    trips = {
        n: next(k for k in range(n + 1) if log_breach(TTFT, AlarmCount(n=n, k=k)) >= TRIP) for n in (10, 50, 100, 200, 500, 1000, 2000)
    }
    assert trips == {10: 4, 50: 5, 100: 7, 200: 10, 500: 16, 1000: 25, 2000: 40}


def test_health_is_proved_where_the_doc_says() -> None:
    assert {k: next(n for n in range(1, 1000) if log_health(n, k, 0.02) >= PROVED) for k in range(3)} == {0: 177, 1: 325, 2: 438}


@pytest.mark.parametrize(("n", "k", "p0"), [(10, 4, 0.01), (300, 2, 0.01), (1000, 60, 0.05), (40, 25, 0.5)])
def test_formulas_are_the_integrals_they_stand_for(n: int, k: int, p0: float) -> None:
    def mixture(a: float, b: float, low: float, high: float, null: float) -> float:
        with mpmath.workdps(30):
            mass = mpmath.quad(lambda p: p ** (a - 1) * (1 - p) ** (b - 1), mpmath.linspace(low, high, 9))
            likelihood = mpmath.quad(lambda p: p ** (a - 1 + k) * (1 - p) ** (b - 1 + n - k), mpmath.linspace(low, high, 9))
            return float(mpmath.log(likelihood / mass / (mpmath.mpf(null) ** k * (1 - mpmath.mpf(null)) ** (n - k))))

    bound = health_bound(p0)
    spec = AlarmSpec(name="ttft-p99", metric="ttft", p0=p0, limit_s=1.0)
    assert log_breach(spec, AlarmCount(n=n, k=k)) == pytest.approx(mixture(0.5, 12.0, p0, 1.0, p0), abs=0.15)  # points, not the integral
    assert log_health(n, k, bound) == pytest.approx(mixture(0.5, 60.0, 1e-12, bound, bound), rel=1e-2)


def test_the_bound_of_a_lax_limit_stays_under_one() -> None:
    assert health_bound(0.01) == 0.02
    assert health_bound(0.5) == 0.75


def test_plainly_broken_needs_ten_requests_and_no_doubt() -> None:
    assert not plainly_broken(9, 9)
    assert plainly_broken(10, 6)
    assert not plainly_broken(10, 4)
    assert not plainly_broken(10_000, 2_000)
    assert plainly_broken(10_000, 2_200)


def _tripped_share(runs: int, requests: int, share: float, trips: Callable[[list[int]], bool]) -> float:
    rng = random.Random(20260301)
    return sum(trips([rng.random() < share for _ in range(requests)]) for _ in range(runs)) / runs


def _trips_ever(over: list[int]) -> bool:
    """Looks after every 15 requests, with restarts, at alpha = 5%."""
    state, n, k = ArmState(), 0, 0
    for start in range(0, len(over), 15):
        n, k = n + len(over[start : start + 15]), k + sum(over[start : start + 15])
        state = arm_look(TTFT, state, AlarmCount(n=n, k=k))
        if log_arm_evidence(TTFT, state) >= PROVED:
            return True
    return False


def test_looking_all_the_time_does_not_condemn_a_service_at_its_limit() -> None:
    assert _tripped_share(200, 1500, 0.01, _trips_ever) <= 0.08  # promised: 5%; three standard errors on top would be 9.6%


def test_a_bad_service_is_seen() -> None:
    assert _tripped_share(50, 1500, 0.05, _trips_ever) == 1.0


# ---- restarts ----


def test_weights_never_give_out_more_than_one() -> None:
    assert sum(exp(log_weight(j)) for j in range(1, 10_000)) == pytest.approx(1.0, abs=1e-3)
    assert log_arm_evidence(TTFT, ArmState()) == pytest.approx(0.0)


def test_long_health_does_not_make_it_deaf() -> None:
    state, n, k = ArmState(), 0, 0
    for _ in range(200):  # 60,000 requests at 0.5%
        n, k = n + 300, k + (2 if n % 600 else 1)
        state = arm_look(TTFT, state, AlarmCount(n=n, k=k))
    assert state.newest == 200
    healthy = log_arm_evidence(TTFT, state)
    for _ in range(10):  # 100 requests at 20%
        n, k = n + 10, k + 2
        state = arm_look(TTFT, state, AlarmCount(n=n, k=k))
    assert healthy < 0
    assert log_arm_evidence(TTFT, state) >= TRIP
    assert log_breach(TTFT, AlarmCount(n=n, k=k)) < 0  # what a test without restarts would say


def test_a_look_at_the_same_counts_changes_nothing() -> None:
    state = arm_look(TTFT, ArmState(), AlarmCount(n=900, k=9))
    assert arm_look(TTFT, state, AlarmCount(n=900, k=9)) == state


def test_counting_anew_keeps_what_is_spent_and_proved() -> None:
    state = arm_look(TTFT, ArmState(), AlarmCount(n=50, k=6))
    before = log_arm_evidence(TTFT, state)
    anew = arm_begin_anew(TTFT, state)
    assert anew.seen == NOTHING
    assert log_arm_evidence(TTFT, anew) == pytest.approx(before)
    worse = arm_look(TTFT, anew, AlarmCount(n=50, k=10))
    assert log_arm_evidence(TTFT, worse) > before


# ---- against the baseline ----


def _against(*looks: tuple[int, float, int, float]) -> float:
    state, canary, baseline = RelativeState(), NOTHING, NOTHING
    for m, over, n, base_over in looks:
        canary, baseline = plus(canary, AlarmCount(n=m, k=over)), plus(baseline, AlarmCount(n=n, k=base_over))
        state = relative_look(state, canary, baseline)
    return log_relative_evidence(state)


def test_no_errors_against_twenty_percent_is_a_breach() -> None:
    assert _against((100, 20, 900, 0)) > TRIP


def test_a_burst_that_hits_both_says_nothing() -> None:
    assert _against((100, 30, 900, 270), (100, 1, 900, 9)) < 0


def test_a_change_of_weights_is_no_evidence() -> None:
    """Bad minutes while the canary has most of the traffic would fool a comparison of overall rates."""
    assert _against((100, 0, 900, 0), (900, 270, 100, 30)) < 0


def test_one_arm_alone_says_nothing() -> None:
    assert _against((100, 50, 0, 0)) == pytest.approx(0.0)
    assert _against((0, 0, 100, 50)) == pytest.approx(0.0)


@given(st.integers(1, 400), st.integers(1, 400), st.floats(0.001, 0.79))
def test_no_bet_gains_while_the_canary_is_within_the_tolerance(m: int, n: int, share: float) -> None:
    """E[wealth] <= 1 for independent requests at exactly the tolerance, in closed form, for every alternative."""
    zero = RelativeState().logs
    ours = relative_look(RelativeState(), AlarmCount(n=m, k=1), AlarmCount(n=n)).logs
    theirs = relative_look(RelativeState(), AlarmCount(n=m), AlarmCount(n=n, k=1)).logs
    assert relative_look(RelativeState(), AlarmCount(n=m), AlarmCount(n=n)).logs == zero
    for nothing, canary, baseline in zip(zero, ours, theirs, strict=True):
        u, v = exp(canary - nothing), exp(baseline - nothing)
        p = TOLERANCE * share
        expectation = (1 - p + p * u) ** m * (1 - share + share * v) ** n
        assert expectation <= 1 + 1e-9


def test_a_release_that_goes_bad_after_long_health_is_still_proved_worse() -> None:
    healthy = [(300, 2, 300, 2)] * 100
    assert _against(*healthy) < 1
    assert _against(*healthy, *[(20, 2, 20, 0)] * 20) > TRIP


def test_comparing_anew_keeps_what_is_proved() -> None:
    state = relative_look(RelativeState(), AlarmCount(n=100, k=8), AlarmCount(n=900, k=5))
    anew = relative_begin_anew(state)
    assert anew.canary == anew.baseline == NOTHING
    assert log_relative_evidence(anew) == pytest.approx(log_relative_evidence(state))


# ---- ITL by betting ----


@given(st.floats(0.001, 0.5))
def test_no_stake_gains_at_the_limit_and_none_can_lose_all(p0: float) -> None:
    none, full = bet_sums(0.0, p0), bet_sums(1.0, p0)
    assert len(none) == len(BET_GRID) == len(BREACH_ODDS) + len(HEALTH_ODDS)
    for place, (low, high) in enumerate(zip(none, full, strict=True)):
        null = p0 if place < len(BREACH_ODDS) else health_bound(p0)
        assert (1 - null) * exp(low) + null * exp(high) == pytest.approx(1.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 30))
def test_sums_of_routers_and_windows_add_up(shares: list[float], cut: int) -> None:
    def count(part: list[float]) -> AlarmCount:
        total = NOTHING
        for y in part:
            total = plus(total, AlarmCount(n=1, k=y, bets=bet_sums(y, 0.01)))
        return total

    whole, first, second = count(shares), count(shares[:cut]), count(shares[cut:])
    both = plus(second, first)
    assert both.n == whole.n
    assert both.k == pytest.approx(whole.k)
    assert log_breach(ITL, both) == pytest.approx(log_breach(ITL, whole))
    assert minus(whole, first).bets == pytest.approx(second.bets or (0.0,) * len(whole.bets), abs=1e-9)


def _itl(requests: int, share: Callable[[int], float]) -> AlarmCount:
    total = NOTHING
    for i in range(requests):
        y = share(i)
        total = plus(total, AlarmCount(n=1, k=y, bets=bet_sums(y, 0.01)))
    return total


def test_slow_tokens_trip_and_quick_ones_are_proved_healthy() -> None:
    slow = _itl(60, lambda i: 0.3)
    assert log_breach(ITL, slow) > TRIP
    quick = _itl(400, lambda i: 0.005 if i % 10 == 0 else 0.0)
    assert log_breach(ITL, quick) < 0
    assert log_health_of(ITL, quick) >= PROVED


def test_one_request_of_many_slow_gaps_is_one_request() -> None:
    """A thousand gaps of a single request are no thousand observations."""
    assert log_breach(ITL, _itl(100, lambda i: 1.0 if i == 50 else 0.0)) < TRIP
