"""What may be written as an alarm, and the router's counting."""

from __future__ import annotations

import pytest

from denvweb.core import wire
from metrics.domain.alarm import AlarmCounter, bet_sums
from metrics.domain.alarm_text import ALARM_NAMES, parse_alarm, parse_over_baseline
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
    limits = {"error-rate": "5%", "kv-effective": "99%", "prefill-queue": "32", "kv-use": "90%"}
    assert all(isinstance(parse_alarm(name, limits.get(name, "1s")), AlarmSpec) for name in ALARM_NAMES)
    assert _alarm("kv-effective", "99%") == AlarmSpec(name="kv-effective", metric="kv-effective", p0=0.01)
    assert _alarm("prefill-queue", "32") == AlarmSpec(name="prefill-queue", metric="prefill-queue", p0=0.01, limit=32)
    assert _alarm("kv-use", "90%") == AlarmSpec(name="kv-use", metric="kv-use", p0=0.01, limit=0.9)


def test_a_comparison_has_its_tolerance_and_for_a_latency_its_thresholds_later() -> None:
    itl = parse_over_baseline("itl-p99", "25%", ALARMS[1])
    assert itl == AlarmSpec(name="itl-p99-over-baseline", metric="itl", p0=0.01, over=1.25)
    assert AlarmCounter([itl]).gap_limits == ()  # nothing to count against yet
    errors = parse_over_baseline("error-rate", "50%", None)
    assert isinstance(errors, AlarmSpec) and errors.over == 1.5
    queue = parse_over_baseline("prefill-queue", "50%", None)
    assert isinstance(queue, str) and "write `max` too" in queue
    for wrong in ("0%", "25", "25ms", "-5%", "1000000%"):
        assert "write a percentage over 0%" in str(parse_over_baseline("itl-p99", wrong, None))


def test_a_comparison_of_latencies_counts_over_both_thresholds() -> None:
    alarms = [
        AlarmSpec("ttft-p99-over-baseline", "ttft", 0.01, over=1.25, base_s=0.4),
        AlarmSpec("itl-p99-over-baseline", "itl", 0.01, over=1.5, base_s=0.02),
    ]
    counter = AlarmCounter(alarms)
    assert dict(counter.gap_limits) == {"itl-p99-over-baseline@20000us": 0.03, "itl-p99-over-baseline@20000us/base": 0.02}
    for ttft_s in (0.4, 0.41, 0.5, 0.51):
        counter.request(ttft_s=ttft_s, gaps_over={"itl-p99-over-baseline@20000us": 1, "itl-p99-over-baseline@20000us/base": 3}, gaps_n=4)
    taken = counter.take()
    assert taken["ttft-p99-over-baseline@400000us"] == AlarmCount(n=4, k=1, base_k=3)
    assert taken["itl-p99-over-baseline@20000us"] == AlarmCount(n=4, k=1, base_k=3)


def test_queues_caches_and_moved_kv_count_each_in_their_own_trials() -> None:
    counter = AlarmCounter([_alarm("prefill-queue", "32"), _alarm("kv-use", "90%"), _alarm("kv-effective", "99%")])
    for waiting in (0, 32, 33, None):  # the last had no queue to find
        counter.request(ttft_s=0.1, waiting=waiting)
    for use in (0.2, 0.9, 0.95):
        counter.kv_read(use)
    counter.kv_judged(5, 2)
    taken = counter.take()
    assert taken == {"prefill-queue": AlarmCount(3, 1), "kv-use": AlarmCount(3, 1), "kv-effective": AlarmCount(5, 2)}


@pytest.mark.parametrize(
    ("name", "limit", "sentence"),
    [
        ("ttft-p9", "1s", "`ttft-p9` is no alarm; did you mean `ttft-p9"),
        ("tftt-p99", "1s", "did you mean `ttft-p99`?"),
        ("errors-rate", "1%", "did you mean `error-rate`?"),
        ("qwxyz", "1s", "or a metric and a quantile such as `ttft-p99`"),
        ("ttft-p99", "1500", "write a time with its unit, such as `1500ms`"),
        ("ttft-p99", "0ms", "write a time"),
        ("ttft-p99", "1%", "write a time"),
        ("error-rate", "1s", "write a percentage over 0% and under 100%"),
        ("error-rate", "0%", "write a percentage"),
        ("error-rate", "100%", "write a percentage"),
        ("kv-efective", "99%", "did you mean `kv-effective`?"),
        ("kv-effective", "99", "such as `99%`"),
        ("prefill-queue", "32ms", "write how many requests may wait"),
        ("prefill-queue", "0", "write how many requests may wait"),
        ("kv-use", "0.9", "such as `90%`"),
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
