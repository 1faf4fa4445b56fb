"""Histograms: within 1% of the true quantile, and merging loses nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denvweb.core import wire
from metrics.domain.histogram import RELATIVE_ERROR, Histogram
from metrics.domain.types import HistogramData
from metrics.domain.window import pack, unpack_into, unpack_sums_into

latencies = st.lists(st.just(0.0) | st.floats(min_value=2e-6, max_value=3600.0), min_size=1, max_size=300)
quantiles = st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 1.0])


def _of(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


def _state(histogram: Histogram) -> tuple[dict[int, int], int, int]:
    return histogram.buckets, histogram.count, histogram.zeros


@given(latencies, quantiles)
def test_quantile_is_within_one_percent_of_the_sample_of_that_rank(values: list[float], q: float) -> None:
    true = sorted(values)[max(1, math.ceil(q * len(values) - 1e-9)) - 1]
    got = _of(values).quantile(q)
    assert got is not None
    assert abs(got - true) <= (RELATIVE_ERROR + 1e-9) * true


@given(latencies, latencies, latencies)
def test_merge_is_the_histogram_of_all_samples_in_any_order(a: list[float], b: list[float], c: list[float]) -> None:
    left, right = _of(a), _of(c)
    left.merge(_of(b))
    left.merge(_of(c))
    right.merge(_of(a))
    right.merge(_of(b).to_data())
    assert _state(left) == _state(right) == _state(_of(a + b + c))
    assert left.sum == pytest.approx(math.fsum(a + b + c))


@given(st.lists(latencies, min_size=1, max_size=5), quantiles)
def test_kept_parts_add_up_to_the_figures_of_the_whole(parts: list[list[float]], q: float) -> None:
    merged, sums = Histogram(), Histogram()
    for part in parts:
        unpack_into(merged, pack(_of(part)))
        unpack_sums_into(sums, pack(_of(part)))
    whole = _of([value for part in parts for value in part])
    assert _state(merged) == _state(whole)
    assert merged.quantile(q) == whole.quantile(q)
    assert (sums.count, sums.zeros) == (whole.count, whole.zeros)
    assert sums.mean == pytest.approx(whole.mean) == pytest.approx(merged.mean)


@given(latencies)
def test_the_wire_keeps_everything(values: list[float]) -> None:
    histogram = _of(values)
    back = Histogram.from_data(wire.decode(wire.encode(histogram.to_data()), HistogramData))
    assert _state(back) == _state(histogram)
    assert back.sum == pytest.approx(histogram.sum)


def test_an_empty_histogram_knows_nothing() -> None:
    assert Histogram().quantile(0.99) is None
    assert Histogram().mean is None


@pytest.mark.parametrize("value", [0.0, -0.001, 1e-9])
def test_noise_of_the_clock_is_zero(value: float) -> None:
    histogram = _of([value, 1.0])
    assert histogram.quantile(0.5) == 0.0
    assert histogram.quantile(1.0) == pytest.approx(1.0, rel=RELATIVE_ERROR + 1e-9)


def test_a_copy_and_a_cleared_one_do_not_share() -> None:
    histogram = _of([0.1])
    data = histogram.to_data()
    histogram.clear()
    assert (histogram.count, data.count) == (0, 1)
    histogram.record(0.1)
    assert data.buckets == histogram.buckets
