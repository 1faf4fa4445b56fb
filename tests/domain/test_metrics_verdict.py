"""Verdicts in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from metrics.domain.alarm import NOTHING
from metrics.domain.alarm_text import parse_alarm
from metrics.domain.types import AlarmCount, AlarmSpec
from metrics.domain.verdict import Arms, JudgeState, state_look, verdict_of
from metrics.domain.verdict_text import ratio_text
from metrics.domain.views import AlarmVerdict

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


def _verdict(name: str, limit: str, canary: AlarmCount, baseline: AlarmCount | None = None, *, fresh: bool = True) -> AlarmVerdict:
    spec = parse_alarm(name, limit)
    assert isinstance(spec, AlarmSpec)
    arms = Arms(canary=canary, baseline=baseline)
    return verdict_of(spec, state_look(spec, JudgeState(), arms, NOW), arms, alpha=0.0033, fresh=fresh)


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        (
            _verdict("ttft-p99", "1500ms", AlarmCount(n=1204, k=9)),
            "ttft-p99: 9 of 1,204 requests over 1,500 ms (0.75%, 0.34-1.41%), evidence 0.53 : 1, rolls back at 300 : 1; health proved",
        ),
        (
            _verdict("error-rate", "1%", AlarmCount(n=10, k=9), NOTHING),
            "error-rate: 9 of 10 requests failed (90%, 55.5-99.75%), limit 1%, evidence over 1,000,000 : 1, rolls back at 300 : 1; "
            "against the baseline 1 : 1; errors are plainly over 20%",
        ),
        (
            _verdict("itl-p99", "60ms", NOTHING, fresh=False),
            "itl-p99: no requests yet, evidence 1 : 1, rolls back at 300 : 1; no figures came in lately",
        ),
    ],
)
def test_sentences(verdict: AlarmVerdict, sentence: str) -> None:
    assert verdict.sentence == sentence


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.001, "under 0.01 : 1"),
        (0.061, "0.061 : 1"),
        (3.44, "3.4 : 1"),
        (303.03, "300 : 1"),
        (12_345, "12,000 : 1"),
        (1e9, "over 1,000,000 : 1"),
    ],
)
def test_evidence_has_two_digits(ratio: float, text: str) -> None:
    assert ratio_text(ratio) == text


def test_counts_that_fall_start_a_new_count() -> None:
    spec = parse_alarm("ttft-p99", "1s")
    assert isinstance(spec, AlarmSpec)
    state = state_look(spec, JudgeState(), Arms(canary=AlarmCount(n=100, k=3), baseline=AlarmCount(n=900, k=3)), NOW)
    state = state_look(spec, state, Arms(canary=AlarmCount(n=40, k=0), baseline=AlarmCount(n=950, k=3)), NOW)
    assert state.canary.seen == AlarmCount(n=40, k=0)
    assert state.canary.newest == 2


def _looks(minutes: list[float], baseline: AlarmCount | None = None) -> AlarmVerdict:
    """A verdict after so many minutes of 600 requests each, with these shares over the limit, looked at every ten seconds."""
    spec = parse_alarm("ttft-p99", "1500ms")
    assert isinstance(spec, AlarmSpec)
    state, n, k, now = JudgeState(), 0, 0.0, NOW
    for share in minutes:
        for _ in range(6):
            n, k, now = n + 100, k + 100 * share, now + timedelta(seconds=10)
            state = state_look(spec, state, Arms(AlarmCount(n=n, k=k), baseline), now)
    return verdict_of(spec, state, Arms(AlarmCount(n=n, k=k), baseline), alpha=0.0033, fresh=True)


def test_without_an_old_release_a_burst_passes_and_a_breach_that_lasts_does_not() -> None:
    burst, breach = _looks([0, 0.1, 0.1]), _looks([0, *[0.1] * 5])
    assert burst.evidence > burst.trips_at
    assert not burst.tripped
    assert "over the limit for 2:00 min without a break, 4:00 min count where no old release serves beside it" in burst.sentence
    assert breach.tripped


def test_beside_an_old_release_a_breach_need_not_last() -> None:
    verdict = _looks([0.1], AlarmCount(n=9_000, k=40))
    assert verdict.tripped
    assert verdict.lasted_s is None


def test_a_break_ends_the_spell() -> None:
    assert _looks([0.1, 0.1, 0.1, 0, 0.1, 0.1]).lasted_s == pytest.approx(120, abs=30)
