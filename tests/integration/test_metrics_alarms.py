"""Looks at the alarms of a rollout, on figures that routers reported."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from metrics.domain.alarm import AlarmCounter
from metrics.domain.histogram import Histogram
from metrics.domain.types import AlarmSpec, Metric, Route, SeriesDelta, SeriesKey
from metrics.domain.verdict import AlarmAsk
from metrics.domain.views import AlarmVerdict
from metrics.models import AlarmState
from metrics.selectors import with_baselines
from metrics.services import alarm_look, alarm_sweep, series_ingest
from metrics.services.rollup import metrics_prune, windows_roll_up

START = datetime(2026, 3, 1, 12, 0, 3, tzinfo=UTC)
TTFT = AlarmSpec(name="ttft-p99", metric="ttft", p0=0.01, limit_s=1.5)
ITL = AlarmSpec(name="itl-p99", metric="itl", p0=0.01, limit_s=0.06)
ERRORS = AlarmSpec(name="error-rate", metric="error-rate", p0=0.01)
pytestmark = pytest.mark.django_db

_seq = iter(range(1_000_000))


def _serve(
    release: str,
    at: datetime,
    requests: int,
    *,
    slow: int = 0,
    failed: int = 0,
    slow_gaps: float = 0.0,
    prefill: str = "",
    probe: bool = False,
) -> None:
    """A router's report of some requests, the first `slow` of them over the TTFT limit, the last `failed` failed."""
    counter = AlarmCounter([TTFT, ITL, ERRORS])
    for i in range(requests):
        counter.request(
            ttft_s=2.0 if i < slow else 0.5, gaps_over={"itl-p99": round(100 * slow_gaps)}, gaps_n=100, error=i >= requests - failed
        )
    key = SeriesKey(stage="m/s", unit="u", prefill_release=prefill or release, decode_release=release, route=Route.REMOTE, probe=probe)
    delta = SeriesDelta(key=key, counters={"requests": requests, "errors": failed}, alarms=counter.take())
    series_ingest(source="r", seq=next(_seq), at=at, series=[delta], received_at=at)


def _look(now: datetime, *, baseline: str | None = "m@1", since: datetime = START, rollout: str = "ro-1") -> dict[str, AlarmVerdict]:
    ask = AlarmAsk(rollout, "m/s", (TTFT, ITL, ERRORS), "m@2", baseline, since, 0.0033)
    swept = alarm_sweep([ask], now)[0]
    verdicts = alarm_look(ask, now)
    assert swept is None or swept.verdicts == verdicts  # without a lock the same is seen
    return {verdict.alarm: verdict for verdict in verdicts}


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_good_canary_is_proved_healthy() -> None:
    _serve("m@2", _at(1), 400)
    _serve("m@1", _at(1), 400, slow=1)
    verdicts = _look(_at(5))
    ttft = verdicts["ttft-p99"]
    assert (ttft.n, ttft.k, ttft.baseline_n, ttft.baseline_k) == (400, 0, 400, 1)
    assert all(verdict.healthy and not verdict.tripped for verdict in verdicts.values())
    assert ttft.sentence.startswith("ttft-p99: 0 of 400 requests over 1,500 ms (0%, 0-0.92%), evidence 0.5")
    assert ttft.sentence.endswith("health proved")


def test_a_slow_canary_trips_absolutely_and_against_the_baseline() -> None:
    _serve("m@2", _at(1), 60, slow=20, slow_gaps=0.5)
    _serve("m@1", _at(1), 600, slow=3)
    verdicts = _look(_at(5))
    for name in ("ttft-p99", "itl-p99"):
        verdict = verdicts[name]
        assert verdict.tripped
        assert not verdict.healthy
        assert not verdict.baseline_breaching
        assert verdict.relative_evidence is not None
        assert verdict.relative_evidence > verdict.trips_at
    assert not verdicts["error-rate"].tripped
    assert "20 of 60 requests over 1,500 ms (33.33%" in verdicts["ttft-p99"].sentence
    assert "50% of token gaps over 60 ms in 60 requests" in verdicts["itl-p99"].sentence


def test_a_burst_over_both_arms_is_no_reason_to_go_back() -> None:
    _serve("m@2", _at(1), 60, slow=20)
    _serve("m@1", _at(1), 600, slow=200)
    ttft = _look(_at(5))["ttft-p99"]
    assert ttft.tripped
    assert ttft.baseline_breaching
    assert ttft.relative_evidence is not None
    assert ttft.relative_evidence < 1
    assert "the baseline breaks the limit too" in ttft.sentence


def test_looking_again_changes_nothing_and_peeks_no_further() -> None:
    _serve("m@2", _at(1), 350, slow=4)
    _serve("m@1", _at(1), 350, slow=4)
    first = _look(_at(5))
    rows = list(AlarmState.objects.order_by("id").values("n", "k", "log_evidence", "data", "looked_at"))
    for seconds in (6, 7, 8):
        assert _look(_at(seconds)) == first
    assert list(AlarmState.objects.order_by("id").values("n", "k", "log_evidence", "data", "looked_at")) == rows


def test_many_small_looks_and_one_large_one_count_the_same() -> None:
    for second in range(0, 40, 4):
        _serve("m@2", _at(second), 10, slow=second // 36)
        _serve("m@1", _at(second), 90)
        small = _look(_at(second + 1), rollout="often")
    large = _look(_at(37), rollout="once")
    for name, verdict in large.items():
        assert (verdict.n, verdict.k) == (small[name].n, small[name].k)
        assert verdict.evidence == pytest.approx(small[name].evidence)
        assert verdict.relative_evidence == pytest.approx(small[name].relative_evidence)


def test_what_the_canary_had_a_part_in_is_the_canary_s() -> None:
    _serve("m@1", _at(1), 7, prefill="m@2")
    _serve("m@2", _at(1), 5, prefill="m@1")
    _serve("m@1", _at(1), 11)
    _serve("m@7", _at(1), 13)
    ttft = _look(_at(5))["ttft-p99"]
    assert (ttft.n, ttft.baseline_n) == (12, 11)


def test_probes_and_what_came_before_do_not_count() -> None:
    _serve("m@2", _at(1), 50, slow=50, probe=True)
    _serve("m@2", _at(-60), 50, slow=50)
    ttft = _look(_at(5))["ttft-p99"]
    assert (ttft.n, ttft.tripped) == (0, False)
    assert "no requests yet" in ttft.sentence


def test_silence_proves_no_health() -> None:
    _serve("m@2", _at(1), 1000)
    assert _look(_at(5))["ttft-p99"].healthy
    late = _look(_at(20))["ttft-p99"]
    assert not late.fresh
    assert not late.healthy
    assert "no figures came in lately" in late.sentence
    series_ingest(source="r", seq=next(_seq), at=_at(20), series=[], stage="m/s", received_at=_at(20))
    assert _look(_at(21))["ttft-p99"].healthy


def test_without_a_baseline_the_limit_alone_decides_once_the_breach_has_lasted() -> None:
    _serve("m@2", _at(1), 60, slow=20)
    ttft = _look(_at(5), baseline=None)["ttft-p99"]
    assert (ttft.tripped, ttft.relative_evidence, ttft.baseline_n) == (False, None, 0)
    assert ttft.evidence > ttft.trips_at
    for second in range(10, 300, 10):
        _serve("m@2", _at(second), 60, slow=20)
        ttft = _look(_at(second + 1), baseline=None)["ttft-p99"]
    assert (ttft.tripped, ttft.relative_evidence, ttft.baseline_n) == (True, None, 0)


def test_plain_errors_trip_at_once() -> None:
    _serve("m@2", _at(1), 10, failed=8)
    errors = _look(_at(5))["error-rate"]
    assert errors.at_once
    assert errors.tripped
    assert "8 of 10 requests failed" in errors.sentence


def test_a_new_step_counts_anew_and_forgets_no_evidence() -> None:
    _serve("m@2", _at(1), 50, slow=4)
    _serve("m@1", _at(1), 50)
    before = _look(_at(5))["ttft-p99"]
    after = _look(_at(60), since=_at(58))["ttft-p99"]
    assert (before.n, after.n) == (50, 0)
    assert after.evidence == pytest.approx(before.evidence)
    assert after.relative_evidence == pytest.approx(before.relative_evidence)
    _serve("m@2", _at(61), 50, slow=4)
    _serve("m@1", _at(61), 50)
    worse = _look(_at(62), since=_at(58))["ttft-p99"]
    assert (worse.n, worse.k) == (50, 4)
    assert worse.relative_evidence is not None
    assert after.relative_evidence is not None
    assert worse.relative_evidence > after.relative_evidence


def test_roll_ups_and_a_rollout_of_days_lose_no_count() -> None:
    for minute in range(20):
        _serve("m@2", _at(60 * minute), 10)
    first = _look(_at(1200))["ttft-p99"].n
    windows_roll_up(now=_at(1200))
    assert _look(_at(1201))["ttft-p99"].n == first == 200
    windows_roll_up(now=_at(86400 * 2))
    metrics_prune(now=_at(86400 * 2))
    assert _look(_at(86400 * 2))["ttft-p99"].n == 200


ITL_OVER = AlarmSpec(name="itl-p99-over-baseline", metric="itl", p0=0.01, over=1.25, base_s=0.02)
ERRORS_OVER = AlarmSpec(name="error-rate-over-baseline", metric="error-rate", p0=0.01, over=1.5)


def _compared(release: str, at: datetime, requests: int, *, over: int, base_over: int, failed: int = 0) -> None:
    """Requests of which so many have all their gaps over 25 ms, and so many (those included) over 20 ms."""
    counter = AlarmCounter([ITL_OVER, ERRORS_OVER])
    for i in range(requests):
        gaps = {ITL_OVER.key: 10 * (i < over), ITL_OVER.key + "/base": 10 * (i < base_over)}
        counter.request(gaps_over=gaps, gaps_n=10, error=i < failed)
    key = SeriesKey(stage="m/s", unit="u", prefill_release=release, decode_release=release, route=Route.REMOTE)
    series_ingest(source="r", seq=next(_seq), at=at, series=[SeriesDelta(key=key, alarms=counter.take())], received_at=at)


def _look_compared(now: datetime, baseline: str | None = "m@1") -> dict[str, AlarmVerdict]:
    found = alarm_look(AlarmAsk("ro-1", "m/s", (ITL_OVER, ERRORS_OVER), "m@2", baseline, START, 0.005), now)
    return {verdict.alarm: verdict for verdict in found}


def test_a_release_slower_than_the_baseline_by_more_than_allowed_trips_below_every_limit() -> None:
    _compared("m@2", _at(1), 200, over=14, base_over=20)
    _compared("m@1", _at(1), 2000, over=8, base_over=20, failed=20)
    found = _look_compared(_at(5))
    itl = found["itl-p99-over-baseline"]
    assert (itl.n, itl.k, itl.baseline_n, itl.baseline_k) == (200, 14, 2000, 20)  # over 25 ms against over 20 ms
    assert itl.tripped and itl.evidence == itl.relative_evidence
    assert "over 25 ms, 1.25 times the baseline's 20 ms in 200 requests" in itl.sentence
    assert "on the baseline 1% of 2,000 over 20 ms" in itl.sentence
    assert not found["error-rate-over-baseline"].tripped


def test_a_release_within_its_tolerance_does_not_trip() -> None:
    _compared("m@2", _at(1), 1000, over=10, base_over=40, failed=13)  # a quarter slower: as many over 25 ms as the old one over 20 ms
    _compared("m@1", _at(1), 9000, over=20, base_over=90, failed=90)
    assert not any(verdict.tripped for verdict in _look_compared(_at(5)).values())


def test_no_errors_on_the_baseline_against_many_is_a_breach() -> None:
    _compared("m@2", _at(1), 60, over=0, base_over=0, failed=12)
    _compared("m@1", _at(1), 600, over=0, base_over=0)
    assert _look_compared(_at(5))["error-rate-over-baseline"].tripped


def test_without_a_baseline_a_comparison_rests() -> None:
    _compared("m@2", _at(1), 60, over=60, base_over=60)
    assert _look_compared(_at(5), baseline=None) == {}


def test_the_baseline_s_quantiles_are_its_own_of_lately() -> None:
    histogram, other = Histogram(), Histogram()
    histogram.record_all([0.010] * 990 + [0.020] * 10)
    other.record(9.0)
    for release in ("m@1", "m@2"):
        key = SeriesKey(stage="m/s", unit="u", prefill_release=release, decode_release=release, route=Route.REMOTE)
        scale = {Metric.ITL: (histogram if release == "m@1" else other).to_data()}
        series_ingest(source="r", seq=next(_seq), at=_at(1), series=[SeriesDelta(key=key, histograms=scale)], received_at=_at(1))
    unset = replace(ITL_OVER, base_s=None)
    limits, errors = with_baselines(stage="m/s", release="m@1", alarms=[unset, ERRORS_OVER], now=_at(60))
    assert limits.base_s == pytest.approx(0.010, rel=0.011)
    assert errors == ERRORS_OVER
    (never,) = with_baselines(stage="m/s", release="m@9", alarms=[unset], now=_at(60))
    assert never.base_s is None
