"""What counts as a good request, and what a second of a GPU brings of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.domain.goodput import MET, OF, GoodLimits, good_limits, goodput
from metrics.domain.types import AlarmSpec

seconds = st.none() | st.floats(0, 10)


def test_the_limits_are_those_of_the_highest_quantile_and_never_a_comparison() -> None:
    alarms = (
        AlarmSpec("ttft-p99", "ttft", 0.01, 1.5),
        AlarmSpec("ttft-p50", "ttft", 0.5, 0.3),
        AlarmSpec("itl-p99-over-baseline", "itl", 0.01, over=1.25, base_s=0.04),
        AlarmSpec("error-rate", "error-rate", 0.01),
    )
    assert good_limits(alarms) == GoodLimits(1.5, None)
    assert good_limits(alarms).given and not good_limits(alarms[3:]).given


@given(seconds, seconds, st.booleans(), st.booleans())
def test_good_is_whole_and_within_both(ttft_s: float | None, gap_s: float | None, failed: bool, left: bool) -> None:
    met = GoodLimits(1.5, 0.06).met(ttft_s=ttft_s, gap_s=gap_s, failed=failed, left=left)
    over = failed or (ttft_s or 0) > 1.5 or (gap_s or 0) > 0.06
    assert met is (False if over else None if left or ttft_s is None else True)


def test_a_second_of_a_gpu() -> None:
    good = goodput({MET: 540, OF: 600}, 72.0, 60.0)
    assert good is not None and good.per_gpu_s == pytest.approx(540 / 60 / 72)
    unsaid = goodput({MET: 540, OF: 600}, None, 60.0)
    assert unsaid is not None and unsaid.per_gpu_s is None
    assert goodput({"requests": 600}, 72.0, 60.0) is None
