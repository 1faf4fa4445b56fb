"""Alarms between rollouts: never deaf, seldom wrong, and over when it is over."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from metrics.domain.alarm import AlarmCounter
from metrics.domain.alarm_text import parse_alarm
from metrics.domain.steady import BLOCK_S, SteadyState, pages_at, steady_look, steady_sentence
from metrics.domain.types import AlarmCount, AlarmSpec
from tests.bench.streams import binomial

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _spec(name: str, limit: str) -> AlarmSpec:
    spec = parse_alarm(name, limit)
    assert isinstance(spec, AlarmSpec)
    return spec


TTFT, ERRORS = _spec("ttft-p99", "1500ms"), _spec("error-rate", "1%")


class Stage:
    """One alarm of a stage, block after block."""

    def __init__(self, spec: AlarmSpec = TTFT) -> None:
        self.spec, self.state, self.at, self.turns = spec, SteadyState(), START, list[tuple[float, bool]]()

    def block(self, n: int, k: float, times: int = 1) -> None:
        for _ in range(times):
            self.at += timedelta(seconds=BLOCK_S)
            before = self.state.breached_at
            self.state = steady_look(self.spec, self.state, AlarmCount(n, k), self.at, alarms=3)
            if (before is None) is not (self.state.breached_at is None):
                self.turns.append(((self.at - START).total_seconds(), before is None))


def test_a_breach_that_lasts_is_told_once_and_ends_when_the_limit_is_kept_again() -> None:
    stage = Stage()
    stage.block(600, 4, times=40)
    stage.block(600, 60, times=20)
    stage.block(600, 3, times=20)
    (began, is_breach), (ended, is_still) = stage.turns
    assert (is_breach, is_still) == (True, False)
    assert 240 <= began - 40 * BLOCK_S <= 300 and 240 <= ended - 60 * BLOCK_S <= 300
    assert max(stage.state.logs) < 1  # what was proved is spent


def test_days_of_health_do_not_make_it_deaf() -> None:
    young, old = Stage(), Stage()
    old.block(600, 4, times=10 * 2880)
    for stage in (young, old):
        before = (stage.at - START).total_seconds()
        stage.block(600, 20, times=20)
        assert stage.turns[0][0] - before <= 330


def test_a_burst_and_silence_tell_nothing_and_end_nothing() -> None:
    stage = Stage()
    for _ in range(10):
        stage.block(600, 30, times=4)
        stage.block(600, 2, times=16)
    assert stage.turns == []
    stage.block(600, 60, times=12)
    stage.block(0, 0, times=100)
    assert len(stage.turns) == 1 and stage.state.breached_at is not None


def test_plain_errors_are_told_at_once() -> None:
    stage = Stage(ERRORS)
    stage.block(20, 16)
    assert stage.turns == [(float(BLOCK_S), True)]


def test_gaps_between_tokens_too() -> None:
    spec = _spec("itl-p99", "60ms")
    counter = AlarmCounter([spec])
    for _ in range(100):
        counter.request(gaps_over={"itl-p99": 10}, gaps_n=100)
    slow, at, state = counter.take()["itl-p99"], START, SteadyState()
    for _ in range(20):
        at += timedelta(seconds=BLOCK_S)
        state = steady_look(spec, state, slow, at, alarms=3)
    assert state.breached_at is not None
    assert "10% of token gaps over 60 ms in 1,000 requests" in steady_sentence(spec, state, alarms=3)


def test_a_service_exactly_at_its_limit_is_not_told_of_in_a_month() -> None:
    rng, stage = random.Random(11), Stage()
    for _ in range(30 * 2880):
        stage.block(150, binomial(rng, 150, 0.01))
    assert stage.turns == []  # one of three alarms, which together may be wrong once a month
    assert pages_at(3) == 3 * 30 * 288
