"""What may be written as an alarm, and the router's counting."""

from __future__ import annotations

import pytest

from denvweb.core import wire
from metrics.domain.alarm import ALARM_NAMES, AlarmCounter, bet_sums, parse_alarm
from metrics.domain.types import AlarmCount, AlarmSpec


def _alarm(name: str, limit: str) -> AlarmSpec:
    spec = parse_alarm(name, limit)
    assert isinstance(spec, AlarmSpec)
    return spec


ALARMS = [_alarm("ttft-p99", "1500ms"), _alarm("itl-p99", "60ms"), _alarm("error-rate", "1%"), _alarm("kv-transfer-p90", "2s")]


def test_names_limits_and_quantiles() -> None:
    assert ALARMS[0] == AlarmSpec(name="ttft-p99", metric="ttft", p0=0.01, limit_s=1.5)
    assert ALARMS[3] == AlarmSpec(name="kv-transfer-p90", metric="kv-transfer", p0=0.1, limit_s=2.0)
    assert ALARMS[2] == AlarmSpec(name="error-rate", metric="error-rate", p0=0.01)
    assert all(isinstance(parse_alarm(name, "5%" if name == "error-rate" else "1s"), AlarmSpec) for name in ALARM_NAMES)


@pytest.mark.parametrize(
    ("name", "limit", "sentence"),
    [
        ("ttft-p9", "1s", "`ttft-p9` is no alarm; did you mean `ttft-p9"),
        ("tftt-p99", "1s", "did you mean `ttft-p99`?"),
        ("errors-rate", "1%", "did you mean `error-rate`?"),
        ("qwxyz", "1s", "an alarm is `error-rate`, or a metric and a quantile such as `ttft-p99`"),
        ("ttft-p99", "1500", "write a time with its unit, such as `1500ms`"),
        ("ttft-p99", "0ms", "write a time"),
        ("ttft-p99", "1%", "write a time"),
        ("error-rate", "1s", "write a percentage over 0% and under 100%"),
        ("error-rate", "0%", "write a percentage"),
        ("error-rate", "100%", "write a percentage"),
    ],
)
def test_what_is_wrong_is_said(name: str, limit: str, sentence: str) -> None:
    problem = parse_alarm(name, limit)
    assert isinstance(problem, str)
    assert sentence in problem


def test_counts_are_exact_and_taken_once() -> None:
    counter = AlarmCounter(ALARMS)
    assert counter.gap_limits == (("itl-p99", 0.06),)
    counter.request(ttft_s=1.6, kv_transfer_s=0.1, gaps_over={"itl-p99": 3}, gaps_n=12)
    counter.request(ttft_s=1.5, gaps_n=100)  # at the limit is not over it; local, so no transfer
    counter.request(error=True)  # failed before its first token
    taken = counter.take()
    assert taken["ttft-p99"] == AlarmCount(n=2, k=1)
    assert taken["kv-transfer-p90"] == AlarmCount(n=1, k=0)
    assert taken["error-rate"] == AlarmCount(n=3, k=1)
    itl = taken["itl-p99"]
    assert (itl.n, itl.k) == (2, 0.25)
    assert itl.bets == pytest.approx([a + b for a, b in zip(bet_sums(0.25, 0.01), bet_sums(0.0, 0.01), strict=True)])
    assert counter.take() == {}


def test_a_count_survives_the_wire() -> None:
    counter = AlarmCounter(ALARMS)
    counter.request(ttft_s=2.0, gaps_over={"itl-p99": 1}, gaps_n=3)
    for count in counter.take().values():
        assert wire.decode(wire.encode(count), AlarmCount) == count
