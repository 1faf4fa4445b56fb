"""Rollouts over REST: what a person may tell them, how they refuse, and the one click back without any worker."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from django.db.models import F
from django.test import Client

from denvweb.cli.client import Access
from denvweb.cli.client import Client as ApiClient
from denvweb.core.errors import ConflictError
from releases.domain.views import RolloutView
from releases.models import RollbackRequest, Rollout
from tests.integration.rollouts_world import Demo, make_api
from tests.integration.test_access_table import over_django

BASE = "/api/v1/stages/ds-flash/prod-us"

pytestmark = pytest.mark.django_db


def post(api: Client, path: str, body: dict[str, Any] | None = None, *, if_match: str = "", key: str = "") -> tuple[int, dict[str, Any]]:
    headers = {name: value for name, value in (("If-Match", if_match), ("Idempotency-Key", key)) if value}
    response = api.post(f"{BASE}/{path}", body or {}, content_type="application/json", headers=headers)
    return response.status_code, response.json()


def get(api: Client, path: str) -> tuple[int, dict[str, Any]]:
    response = api.get(f"{BASE}{path}")
    return response.status_code, response.json()


def test_an_approval_names_the_generation_that_was_seen() -> None:
    demo, api = Demo(), make_api()
    demo.first()
    demo.release(block=32, approve="manual")
    demo.settle()
    status, body = post(api, "rollout/promote", {"generation": 1})
    assert (status, body["code"]) == (409, "stale-generation")
    demo.through(until={Rollout.State.HELD})
    status, view = get(api, "/rollout")
    assert status == 200 and (view["state"], view["reason"]) == ("held", "approval") and "approve" in view["why"]
    assert view["verdicts"] and [step["state"] for step in view["plan"]["steps"]][:2] == ["done", "now"]
    status, body = post(api, "rollout/promote", {"full": True})
    assert (status, body["code"]) == (400, "reason-needed")
    status, body = post(api, "rollout/promote", {"generation": view["generation"]})
    assert status == 200
    demo.settle()
    assert demo.weights()["ds-flash@2"] == 5000


def tag_of(api: Client) -> str:
    """What the stage's rollout is called, as it is now."""
    return api.get(f"{BASE}/rollout").headers["ETag"]


def test_if_match_names_the_rollout_that_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    demo, api = Demo(), make_api()
    demo.first()
    first = tag_of(api)
    demo.release(block=32, approve="manual")
    demo.settle()
    seen = tag_of(api)
    assert seen != first
    assert "ETag" not in api.options(f"{BASE}/rollout").headers  # which is about the address and not about the rollout
    for stale in (first, f"W/{seen}", '"ro-of-nobody.1", "another"'):
        status, body = post(api, "rollout/pause", if_match=stale)
        assert (status, body["code"]) == (412, "stale-generation") and seen in body["detail"]
    for broken in ("ro-abc.12", '"open', '"a" "b"', "*, *"):
        status, body = post(api, "rollout/pause", if_match=broken)
        assert (status, body["code"]) == (400, "if-match-invalid") and "in quotes" in body["detail"]
    headers = {"If-Match": f"{first}, {seen}", "Idempotency-Key": "pause-1"}
    answers = [api.post(f"{BASE}/rollout/pause", {}, content_type="application/json", headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]  # the second is the first one's answer, with its tag
    assert {answer.headers["ETag"] for answer in answers} == {tag_of(api)}
    assert post(api, "rollout/resume", if_match=seen)[0] == 412
    assert post(api, "rollout/resume", {"generation": 1}, if_match=tag_of(api))[0] == 412
    assert post(api, "rollout/resume", if_match="*")[0] == 200
    assert_the_python_client_acts_on_what_it_has_seen(api, monkeypatch)
    assert post(api, "rollback", if_match=first)[0] == 200  # nobody who wants to go back is told to look again


def assert_the_python_client_acts_on_what_it_has_seen(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    real, path = httpx.Client, "stages/ds-flash/prod-us/rollout"
    monkeypatch.setattr("denvweb.cli.client.httpx.Client", lambda **options: real(transport=httpx.MockTransport(over_django), **options))
    client = ApiClient(Access("http://testserver", str(api.defaults["HTTP_AUTHORIZATION"]).removeprefix("Bearer ")))
    view, tag = client.get_tagged(path, RolloutView)
    assert tag == tag_of(api) == f'"{view.id}.{view.generation}"'
    assert client.post(f"{path}/pause", RolloutView, if_match=tag).reason == "manual"
    with pytest.raises(ConflictError) as refused:
        client.post(f"{path}/resume", RolloutView, if_match=tag)
    assert refused.value.code == "stale-generation" and tag_of(api) in refused.value.detail
    assert client.post(f"{path}/resume", RolloutView).active


def test_what_moves_on_between_the_look_and_the_lock_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    demo, api = Demo(), make_api()
    demo.first()
    demo.release(block=32)
    demo.settle()

    def overtaken(user: object, stage: str, *, generation: int | None, full: bool) -> int | None:
        Rollout.objects.filter(stage__model__name="ds-flash").update(generation=F("generation") + 1)
        return generation

    monkeypatch.setattr("releases.services.access.access_promote", overtaken)
    assert post(api, "rollout/promote", if_match=tag_of(api))[0] == 412
    seen = Rollout.objects.get(to_release__number=2).generation
    assert post(api, "rollout/promote", {"generation": seen})[0] == 409


def test_what_cannot_be_done_is_refused_and_pause_resume_abort_do_as_they_say() -> None:
    demo, api = Demo(), make_api()
    demo.first()
    assert post(api, "rollout/pause")[1]["code"] == "not-under-way"
    status, body = post(api, "rollback")
    assert (status, body["code"]) == (409, "nothing-to-roll-back")
    assert post(api, "rollback", {"to": 1})[1]["code"] == "nothing-to-roll-back"
    assert post(api, "rollback", {"to": 99})[0] == 404
    assert post(api, "rollback", {"to": "x"})[0] == 400
    demo.release(block=32)
    demo.settle()
    assert post(api, "rollback", {"to": 99})[1]["code"] == "rollout-in-flight"
    status, view = get(api, "/preflight")
    assert status == 200 and view["possible"] and view["to_release"] == 1 and view["warm_units"] == 2
    assert view["sentence"].startswith("Release 1 is warm on units 1 and 2: all traffic in about 2 s, at full capacity.")
    assert post(api, "rollout/resume")[1]["code"] == "not-paused"
    status, body = post(api, "rollout/pause", {"reason": "lunch"})
    assert status == 200 and (body["state"], body["reason"]) == ("held", "manual") and "lunch" in body["why"]
    assert post(api, "rollout/resume")[0] == 200
    status, body = post(api, "rollout/abort", {"reason": "no"})
    assert status == 200 and RollbackRequest.objects.get().requested_by == "ada"
    demo.settle()
    assert get(api, "/rollout")[1]["state"] == "rolled-back"
    assert demo.weights() == {"ds-flash@1": 10_000} and len(demo.units(1)) == 2 and not demo.units(2)
    assert post(api, "rollout/abort")[1]["code"] == "not-under-way"


def test_nobody_acts_without_logging_in(client: Client) -> None:
    assert client.post(f"{BASE}/rollback", {}, content_type="application/json").status_code == 401
    assert client.get("/api/v1/stages").status_code == 401


@pytest.mark.django_db(transaction=True)
def test_one_click_reaches_the_routers_without_any_worker() -> None:
    demo, api = Demo(), make_api()
    demo.first()
    demo.release(block=32)
    demo.through(until={Rollout.State.SUCCEEDED})
    status, view = get(api, "/preflight")
    assert view["warm_units"] == 1 and view["capacity_ratio"] == 0.5
    assert "at 50% of capacity until 1 more unit is back" in view["sentence"]
    status, body = post(api, "rollback", {"reason": "slow"}, key="k1")
    assert status == 200 and body["kind"] == "rollback"
    assert demo.weights() == {"ds-flash@1": 10_000}, "before any reconciler looked"
    status, again = post(api, "rollback", {"reason": "slow"}, key="k1")
    assert again["id"] == body["id"]
    assert get(api, "/preflight")[1]["blocked_by"] == "rolling-back"
    assert get(api, "")[1]["state"] == "rolling-back"
