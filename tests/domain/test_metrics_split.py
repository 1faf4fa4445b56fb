"""The slowest requests by phase: what a sort of all requests would say, however their counts were cut up and merged."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denvweb.core import wire
from metrics.domain.histogram import GAMMA
from metrics.domain.split import BUCKETS_A_BIN, Split
from metrics.domain.types import Route, SeriesDelta, SeriesKey

_phase = st.floats(min_value=0, max_value=30)
requests = st.lists(st.tuples(_phase, _phase, _phase, _phase), min_size=1, max_size=150)


def _of(rows: list[tuple[float, float, float, float]]) -> Split:
    split = Split()
    split.record_all(rows)
    return split


@given(requests)
def test_the_tail_is_the_slowest_percent_within_the_width_of_a_bin(rows: list[tuple[float, float, float, float]]) -> None:
    tail = _of(rows).tail()
    assert tail is not None
    rank = max(1, math.ceil(0.99 * len(rows) - 1e-9))
    slowest = sorted(map(sum, rows))[rank - 1 :]
    assert (tail.n, tail.of) == (len(slowest), len(rows))
    width = GAMMA**BUCKETS_A_BIN
    assert tail.from_s <= max(2e-6, slowest[0] * (1 + 1e-9)) <= max(2e-6, tail.from_s * width * (1 + 1e-6))
    mean = math.fsum(slowest) / len(slowest)
    assert mean / width - 3e-6 <= tail.ttft_s <= mean * width + 3e-6


@given(requests, requests)
def test_merging_kept_and_sent_parts_is_counting_all_at_once(a: list[tuple[float, ...]], b: list[tuple[float, ...]]) -> None:
    both, parts = _of([*a, *b]), Split()  # type: ignore[list-item]  # the strategy makes fours
    key = SeriesKey("m/s", "u-1", "m@1", "m@1", Route.REMOTE)
    sent = wire.decode(wire.encode(SeriesDelta(key, split=_of(a).bins)), SeriesDelta)  # type: ignore[arg-type]
    parts.merge_bins(sent.split)
    parts.merge_text(_of(b).pack())  # type: ignore[arg-type]
    assert parts.tail() == both.tail()
    assert parts.bins == both.bins


def test_what_waited_longest_need_not_be_what_computed_longest() -> None:
    rows = [(0.1, 0.2, 0.05, 0.05)] * 198 + [(2.0, 0.2, 0.05, 0.05), (0.1, 2.2, 0.05, 0.05)]
    tail = _of(rows).tail()
    assert tail is not None
    assert (tail.n, tail.of) == (3, 200)  # both of them, and one as the others are
    assert tail.queue_s == pytest.approx(2.2 / 3) and tail.prefill_s == pytest.approx(2.6 / 3)
    assert tail.transfer_s == pytest.approx(0.05) and tail.first_step_s == pytest.approx(0.05)
    assert Split().tail() is None
