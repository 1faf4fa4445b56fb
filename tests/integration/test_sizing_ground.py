"""What a real stage is sized on: the shape in force, its alarms, and the traffic of the last hour; and the dry run that looks at it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from denvweb.core.errors import NotFoundError
from fleets.domain.scaling.types import Knob
from fleets.domain.types import Role
from metrics.domain.types import Route, SeriesDelta, SeriesKey
from metrics.services import series_ingest
from releases.domain.spec import ReleaseFile, parse
from releases.selectors.ground import sizing_ground
from releases.selectors.worlds import world_for
from releases.services.scaling import stage_scale
from tests.integration.rollouts_world import STAGE, Demo, release_yaml

RANGE = "{ min: 1, max: 3 }"
pytestmark = pytest.mark.django_db


def test_a_stage_is_sized_on_what_is_in_force_and_what_came() -> None:
    demo = Demo(domains=3, gpus=16)
    demo.first(units=1, prefills=RANGE, decodes=RANGE)
    ground = sizing_ground(stage=STAGE)
    assert ground.traffic is None
    assert [(pool.role, pool.replicas, pool.gpus) for pool in ground.shape.pools] == [(Role.PREFILL, 1, 4), (Role.DECODE, 1, 4)]
    stage_scale(stage=STAGE, actor="ada", via="cli", counts={Knob.PREFILL: 2})
    assert sizing_ground(stage=STAGE).shape.text == "1 unit of 2P1D"

    now = timezone.now()
    counters = {"requests": 3600, "tokens.in": 14_400_000, "tokens.out": 1_080_000, "tokens.cached": 3_600_000}
    delta = SeriesDelta(key=SeriesKey(STAGE, demo.units()[0].unit, "m@1", "m@1", Route.REMOTE), counters=counters)
    series_ingest(source="r", seq=99_999, at=now - timedelta(seconds=30), series=[delta], received_at=now)
    traffic = sizing_ground(stage=STAGE).traffic
    assert traffic is not None
    assert (traffic.input_tokens, traffic.output_tokens) == (4000, 300)
    file = parse(release_yaml())
    assert isinstance(file, ReleaseFile)
    assert world_for(file, traffic=True).traffic["prod-us"].input_tokens == 4000
    assert not world_for(file).traffic, "a release that is created waits for no simulation"


def test_an_unknown_stage_has_no_ground() -> None:
    with pytest.raises(NotFoundError):
        sizing_ground(stage="nobody/nowhere")
