"""Stages as pages and commands read them."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from denvweb.core.errors import NotFoundError
from fleets.domain.scaling.types import Knob
from fleets.models import Fleet
from fleets.selectors import unit_releases
from fleets.services import unit_set_routable
from releases.healing import stages_unwell
from releases.models import Release, Stage
from releases.selectors.heads import drawn_head, stage_bases, stage_heads, stage_keys
from releases.selectors.stages import preflight_view, stage_view, stages_view
from releases.services.scaling import stage_scale
from tests.integration.rollouts_world import STAGE, Demo, make_api

pytestmark = pytest.mark.django_db


def _another(like: Stage, number: int) -> None:
    """A stage of its own release, which says the same."""
    name, release = f"stage-{number}", like.release
    assert release is not None
    file = {**release.spec, "stages": [{**stage, "name": name} for stage in release.spec["stages"]]}
    own = Release.objects.create(model=like.model, number=100 + number, yaml="", spec=file, generations={}, created_by="ada")
    Stage.objects.create(model=like.model, name=name, position=number, settings={**like.settings, "name": name}, release=own)


def test_a_steady_stage_says_what_serves_over_rest_too() -> None:
    demo = Demo()
    demo.first()
    demo.tick(requests=50)
    view = stage_view(stage=STAGE)
    assert (view.state, view.release, view.units_ready, view.replicas) == ("steady", 1, 2, 2)
    assert view.releases == {"ds-flash@1": 1.0} and view.simulated and view.endpoint == "http://127.0.0.1:9000"
    assert view.sentence == "release 1 serves on 2 units"
    assert [(alarm.name, alarm.limit_text) for alarm in view.alarms] == [("ttft-p99", "1500ms"), ("error-rate", "1%")]
    assert view.preflight.blocked_by == "nothing-to-roll-back" and not view.preflight.possible
    assert view.rollout is not None and all(step.state == "done" for step in view.rollout.plan.steps)

    api = make_api()
    queries = []
    for stages in (1, 20):
        for number in range(Stage.objects.count(), stages):
            _another(demo.stage(), number)
        with CaptureQueriesContext(connection) as seen:
            assert len(stages_view()) == stages
        queries.append([query["sql"][:90] for query in seen.captured_queries])
        with CaptureQueriesContext(connection) as healed:
            assert len(stages_unwell(demo.fleets.now)) == stages - 1  # whose units are still to come up
        assert len(healed) <= 10, [query["sql"][:90] for query in healed.captured_queries]
    assert len(queries[0]) == len(queries[1]) <= 14, queries
    Stage.objects.exclude(name="prod-us").delete()
    found = api.get("/api/v1/stages").json()
    assert [stage["stage"] for stage in found["results"]] == [STAGE] and found["next"] is None
    one = api.get("/api/v1/stages/ds-flash/prod-us").json()
    assert one["units"][0]["pools"][0]["role"] == "prefill"
    assert api.get(f"/api/v1/rollouts/{one['rollout']['id']}").json()["state"] == "succeeded"
    assert api.get("/api/v1/stages/ds-flash/other").json()["code"] == "not-found"
    assert api.get("/api/v1/stages/ds-flash/prod-us/preflight?to=x").json()["code"] == "invalid"

    unit_set_routable(unit=demo.units()[0].unit, routable=False)
    assert stage_view(stage=STAGE).state == "degraded"


def test_a_stage_under_a_rollout_says_what_it_waits_for() -> None:
    demo = Demo()
    demo.first()
    demo.release(block=32)
    demo.settle()
    view = stage_view(stage=STAGE)
    assert view.state == "rolling" and view.rollout is not None and view.rollout.active
    assert view.sentence == view.rollout.why and "hold ends at" in view.sentence
    assert view.releases == {"ds-flash@1": 0.9, "ds-flash@2": 0.1}
    assert [step.state for step in view.rollout.plan.steps][:3] == ["done", "now", "planned"]
    assert view.rollout.plan.changed and view.rollout.weight_bp == 1000


def test_lists_say_of_a_stage_what_its_own_page_says() -> None:
    same = ("replicas", "state", "release", "releases", "units_ready", "fleets", "breaches")
    seen = ("stage", "release", "releases", "limits", "rollout", "ratio", "ratio_advised", "queue_above")

    def compare() -> tuple[str, int]:
        view, (head,), drawn = stage_view(stage=STAGE), stage_heads(), drawn_head(stage=STAGE)
        assert [getattr(head, name) for name in same] == [getattr(view, name) for name in same]
        assert head.simulated and stage_keys() == (STAGE,)
        assert [getattr(drawn, name) for name in seen] == [getattr(head, name) for name in seen]
        assert [(unit.unit, unit.slot, unit.release) for unit in drawn.units] == [
            (unit.unit, unit.slot, unit.release) for unit in head.units
        ]
        for unit, shown in zip(view.units, head.units, strict=True):
            assert (unit.unit, unit.ready, unit.complete, unit.routable) == (shown.unit, shown.ready, shown.complete, shown.routable)
        assert unit_releases() == ({STAGE: {unit.unit: unit.release for unit in view.units}} if view.units else {})
        return head.state, head.replicas

    demo = Demo(domains=4)
    demo.release(units="{ min: 2, max: 3 }")
    assert compare() == ("rolling", 2) and stage_bases() == {STAGE: "ds-flash@1"}
    demo.through(until={"succeeded"})
    assert compare() == ("steady", 2)
    assert drawn_head(stage=STAGE).ratio == "1P1D"
    stage_scale(stage=STAGE, actor="ada", via="cli", counts={Knob.UNITS: 3})
    assert compare() == ("degraded", 3), "the numbers in force count, not those that the release starts with"
    client = Client()
    client.force_login(User.objects.create_user("eve"))
    assert "2 / 3" in client.get("/").content.decode()
    demo.settle()
    assert compare() == ("steady", 3)
    demo.release(block=32, units="{ min: 2, max: 3 }")
    demo.settle()
    assert compare() == ("rolling", 3) and stage_bases() == {STAGE: "ds-flash@1"}


def test_before_the_first_release_a_stage_is_on_its_way() -> None:
    demo = Demo()
    demo.release()
    view = stage_view(stage=STAGE)
    assert view.state == "rolling" and view.units_ready == 0 and view.rollout is not None
    with pytest.raises(NotFoundError):
        stage_view(stage="ds-flash/nowhere")
    with pytest.raises(NotFoundError):
        preflight_view(stage="nothing")


def test_a_stage_whose_fleet_is_frozen_says_so(client: Client) -> None:
    demo = Demo()
    demo.first()
    assert stage_view(stage=STAGE).healing_frozen == ()
    Fleet.objects.update(frozen="fleet gb200-use1: 54 of 54 nodes went silent at once")
    (frozen,) = {sentence for view in stages_view() for sentence in view.healing_frozen}
    assert frozen.startswith("fleet gb200-use1: 54 of 54 nodes")
    client.force_login(User.objects.create_user("eve"))
    page = client.get(f"/stages/{STAGE}").content.decode()
    assert "Healing is frozen." in page and "54 of 54 nodes went silent at once" in page
