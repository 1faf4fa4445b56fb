"""A release while another is in flight, and releases in freeze windows: on the real database, with simulated agents and router."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from denvweb.core.errors import ConflictError
from metrics.selectors import events_view
from releases.models import FreezeWindow, Rollout
from releases.selectors.stages import stage_view
from releases.services import rollouts
from releases.services.dry_runs import dry_run_run
from releases.services.releases import How, release_create
from tests.integration.rollouts_world import STAGE, Demo, make_api, release_yaml

pytestmark = pytest.mark.django_db
ROLLOUT = f"/api/v1/stages/{STAGE}/rollout"


def _release(demo: Demo, how: How, **fields: Any) -> Rollout:
    return release_create(yaml=release_yaml(**fields), actor="ada", via="cli", how=how).rollouts[0]


def _findings(**how: Any) -> dict[str, str]:
    """What a dry run says, as code -> severity."""
    api = make_api()
    asked = api.post("/api/v1/dry-runs", {"yaml": release_yaml(block=64), **how}, content_type="application/json")
    assert asked.status_code == 202, asked.content
    dry_run_run(id=asked.json()["id"])
    found = api.get(f"/api/v1/dry-runs/{asked.json()['id']}").json()["findings"]
    return {finding["code"]: finding["severity"] for finding in found}


def _at_half(demo: Demo) -> Rollout:
    """The second release at 50%."""
    demo.first()
    second = demo.release(block=32)
    for _ in range(60):
        demo.tick(9.0, requests=400)
        if demo.weights().get("ds-flash@2") == 5000:
            return second
    raise AssertionError(demo.rollout().why)


def test_a_second_release_in_flight_is_refused_unless_it_supersedes() -> None:
    demo = Demo()
    second = _at_half(demo)
    with pytest.raises(ConflictError) as refused:
        demo.release(block=64)
    assert refused.value.code == "rollout-in-flight" and "--supersede" in refused.value.detail
    assert _findings()["rollout-in-flight"] == "error"
    assert _findings(supersede=True)["rollout-superseded"] == "warn"
    third = _release(demo, How(supersede=True), block=64)
    second.refresh_from_db()
    assert second.state == Rollout.State.SUPERSEDED and "release 3" in second.why
    assert Rollout.objects.exclude(state__in=Rollout.ENDED).count() == 1
    weights: list[dict[str, int]] = []
    for _ in range(60):
        demo.tick(9.0, requests=400)
        weights.append(demo.weights())
        assert sum(weights[-1].values()) == 10_000
        third.refresh_from_db()
        assert Rollout.objects.exclude(state__in=Rollout.ENDED).count() <= 1
        if third.state in Rollout.ENDED:
            break
    assert third.state == Rollout.State.SUCCEEDED, third.why
    assert str(demo.stage().release) == "ds-flash@3"
    assert not any("ds-flash@2" in seen and "ds-flash@3" in seen for seen in weights)  # never three releases beside each other
    assert {"ds-flash@1": 10_000} in weights
    assert demo.kinds().count("rollout.superseded") == 1


def test_a_rollback_while_the_superseded_one_is_left_ends_on_the_stable_release() -> None:
    demo = Demo()
    _at_half(demo)
    third = _release(demo, How(supersede=True), block=64)
    rollouts.rollback(stage=STAGE, actor="eve", via="ui")
    demo.settle()
    third.refresh_from_db()
    assert third.state == Rollout.State.ROLLED_BACK and demo.weights() == {"ds-flash@1": 10_000}
    assert not demo.units(3) and not demo.units(2)
    assert len(demo.units(1)) == 2 and str(demo.stage().release) == "ds-flash@1"


def test_a_rollback_beats_superseding() -> None:
    demo = Demo()
    second = _at_half(demo)
    demo.live = False  # the way back stays under way
    rollouts.rollback(stage=STAGE, actor="eve", via="ui")
    with pytest.raises(ConflictError) as refused:
        _release(demo, How(supersede=True), block=64)
    assert refused.value.code == "rolling-back"
    second.refresh_from_db()
    assert second.state != Rollout.State.SUPERSEDED


def test_superseding_a_first_release_that_never_serves() -> None:
    demo = Demo()
    demo.live = False  # no router: it is never probed
    first = demo.release()
    demo.tick(3.0)
    demo.tick(3.0)
    _release(demo, How(supersede=True), block=32)
    demo.live = True
    demo.settle()
    first.refresh_from_db()
    assert first.state == Rollout.State.SUPERSEDED
    assert str(demo.stage().release) == "ds-flash@2" and demo.weights() == {"ds-flash@2": 10_000}


# ---- freeze windows ----


def _freeze(demo: Demo, **hours: float) -> FreezeWindow:
    """On from an hour ago, for three hours, by the demo's clock and by the real one."""
    begins = demo.fleets.now - timedelta(hours=1)
    return FreezeWindow.objects.create(
        id="fw-1", zone="UTC", reason="holidays", begins_at=begins, ends_at=begins + timedelta(hours=3), created_by="ada"
    )


def test_a_release_into_a_freeze_is_refused_and_the_dry_run_says_so() -> None:
    demo = Demo()
    demo.first()
    _freeze(demo)
    api = make_api()
    refused = api.post("/api/v1/releases", {"yaml": release_yaml(block=32)}, content_type="application/json")
    assert refused.status_code == 409 and refused.json()["code"] == "frozen"
    assert "holidays" in refused.json()["detail"] and "--break-glass" in refused.json()["detail"]
    assert _findings()["frozen"] == "error" and _findings(break_glass="a leak")["frozen"] == "warn"
    asked = {"yaml": release_yaml(block=32), "break_glass": "a leak of memory in release 1"}
    made = api.post("/api/v1/releases", asked, content_type="application/json")
    assert made.status_code == 201
    told = [event for event in events_view(stage=STAGE, limit=20) if event.kind == "rollout.break-glass"]
    assert len(told) == 1 and told[0].level == "bad" and "a leak of memory" in told[0].sentence and told[0].actor == "ada"
    assert demo.through(until={"succeeded"}).to_release.number == 2
    assert stage_view(stage=STAGE).frozen.startswith("frozen until ")


def test_breaking_the_glass_takes_a_role(settings: Any) -> None:
    demo = Demo()
    demo.first()
    _freeze(demo)
    settings.DEFAULT_ROLE = "deployer"
    asked = {"yaml": release_yaml(block=32), "break_glass": "because"}
    refused = make_api("eve").post("/api/v1/releases", asked, content_type="application/json")
    assert refused.status_code == 403 and "approver" in refused.json()["detail"]


def test_a_freeze_in_mid_rollout_holds_it_and_the_way_back_stays_open() -> None:
    demo = Demo()
    second = _at_half(demo)
    window = _freeze(demo)
    for _ in range(4):
        demo.tick(9.0, requests=400)
    second.refresh_from_db()
    assert (second.state, second.reason) == ("held", "frozen") and "holidays" in second.why
    assert demo.weights()["ds-flash@2"] == 5000
    api = make_api()
    refused = api.post(f"{ROLLOUT}/promote", {}, content_type="application/json")
    assert refused.status_code == 409 and refused.json()["code"] == "frozen" and "until" in refused.json()["detail"]
    assert api.post(f"{ROLLOUT}/promote", {"break_glass": "half is worse"}, content_type="application/json").status_code == 200
    demo.tick(9.0, requests=400)
    second.refresh_from_db()
    assert second.state != "held" and window.pk
    rollouts.rollback(stage=STAGE, actor="eve", via="ui")
    assert demo.through(until={"rolled-back"}).pk == second.pk


def test_what_a_freeze_held_goes_on_when_it_is_over() -> None:
    demo = Demo()
    second = _at_half(demo)
    window = _freeze(demo)
    for _ in range(3):
        demo.tick(9.0, requests=400)
    window.delete()
    assert demo.through(until={"succeeded"}).pk == second.pk
    assert {"rollout.held", "rollout.resumed"} <= set(demo.kinds())


# ---- the hold after a rollback ----


def test_automation_does_not_deploy_again_what_was_taken_back_until_a_person_lifts_it() -> None:
    demo = Demo()
    _at_half(demo)
    rollouts.rollback(stage=STAGE, actor="eve", via="ui")
    demo.through(until={"rolled-back"})
    api, asked = make_api(), {"yaml": release_yaml(block=32), "automated": True}
    refused = api.post("/api/v1/releases", asked, content_type="application/json")
    assert refused.status_code == 409 and refused.json()["code"] == "release-held"
    assert "denv release resume ds-flash@2" in refused.json()["detail"] and "went back from it" in refused.json()["detail"]
    url = "/api/v1/models/ds-flash/releases/2/resume"
    for _ in range(2):
        lifted = api.post(url, {"reason": "the router was to blame"}, content_type="application/json")
        assert lifted.status_code == 200 and lifted.json()["held"] == ""
    assert [event.kind for event in events_view(limit=50)].count("release.resumed") == 1
    assert api.post("/api/v1/releases", asked, content_type="application/json").status_code == 201
