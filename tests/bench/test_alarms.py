"""The benchmark of the alarms in its quick form: it runs, and its promises hold on a few rollouts."""

from __future__ import annotations

import json

import pytest

from tests.bench.alarms import measure


@pytest.mark.timeout(300)
def test_quick_form_keeps_the_promises(capsys: pytest.CaptureFixture[str]) -> None:
    figures = measure(quick=True)
    assert figures["false_rollback_ratio"] == 0
    assert figures["detect_10x_median_requests"] < 150
    assert figures["detect_10x_median_minutes"] < 5
    assert "| 10 times, 20/s |" in capsys.readouterr().out
    assert json.loads(json.dumps(figures)) == figures
