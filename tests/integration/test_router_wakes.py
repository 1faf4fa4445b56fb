"""A second in which much is over a limit has the rollouts looked at there and then."""

from __future__ import annotations

import pytest

from fleets.services import routers
from metrics.domain.types import AlarmCount, Route, SeriesDelta, SeriesKey
from tests.integration.fleets_world import STAGE, World

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("k", "probe", "woken"), [(0, False, 0), (1, False, 0), (5, False, 1), (5, True, 0)])
def test_a_plain_breach_wakes(k: int, probe: bool, woken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(domains=1, nodes=1)
    world.router(seq=1, generation=0)  # the first report of a router wakes by itself
    wakes: list[str] = []
    monkeypatch.setattr(routers, "wake", wakes.append)
    delta = SeriesDelta(key=SeriesKey(STAGE, "u", "m@2", "m@2", Route.REMOTE, probe), alarms={"ttft-p99": AlarmCount(20, k)})
    assert world.router(seq=2, generation=0, series=(delta,))
    assert wakes == ["releases.reconcile"] * woken
