"""Roles by model: what one sees, what is offered, and giving and taking them. The table of roles is in test_access_table.py."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from denvweb.access import Role, access_approve
from denvweb.auth import token_create
from denvweb.core.errors import ForbiddenError
from denvweb.models import Grant, ModelPolicy
from metrics.models import Event
from metrics.services import event_append
from releases.models import Rollout
from releases.services.dry_runs import dry_run_run
from tests.integration.rollouts_world import STAGE, Demo, release_yaml

pytestmark = pytest.mark.django_db

API = f"/api/v1/stages/{STAGE}"
UI = f"/stages/{STAGE}"


@pytest.fixture(autouse=True)
def nobody_may_anything_by_default(settings: Any) -> None:
    settings.DEFAULT_ROLE = "none"


@pytest.fixture
def demo() -> Demo:
    demo = Demo()
    demo.first()
    return demo


def person(role: Role, *, model: str = "ds-flash", name: str = "ann") -> User:
    user = User.objects.create_user(name)
    Grant.objects.create(user=user, model=model, role=role)
    return user


def client_of(user: User, face: str) -> Client:
    if face == "api":
        return Client(headers={"authorization": f"Bearer {token_create(user=user)}"})
    client = Client()
    client.force_login(user)
    return client


def test_what_one_may_not_see_is_not_in_any_list(demo: Demo) -> None:
    event_append(kind="test.kind", sentence="of another model", stage="other/prod")
    stranger, friend = client_of(person(Role.ADMIN, model="other"), "ui"), client_of(person(Role.VIEWER, name="bea"), "ui")
    for path in ("/api/v1/stages", "/api/v1/events", "/api/v1/fleets", "/api/v1/fleets/gb200-use1", "/", "/events", "/releases", "/fleets"):
        assert b"ds-flash" not in stranger.get(path).content, path
        assert b"ds-flash" in friend.get(path).content, path
    for path in (f"{API}/metrics", f"{API}/series?names=requests", f"{API}/events", f"{API}/preflight", f"{API}/rollout"):
        assert (stranger.get(path).status_code, friend.get(path).status_code) == (404, 200), path
    rollout = Rollout.objects.get().pk
    planned = call(friend, "post", "dry-runs", {"yaml": release_yaml(block=64)})[1]["id"]
    dry_run_run(id=planned)
    for path in (
        f"/api/v1/rollouts/{rollout}",
        "/api/v1/models/ds-flash/releases",
        "/api/v1/models/ds-flash/releases/1",
        f"/api/v1/dry-runs/{planned}",
        f"/releases/dry-runs/{planned}",
    ):
        assert (stranger.get(path).status_code, friend.get(path).status_code) == (404, 200), path


def test_what_strangers_hold_of_a_fleet_is_in_use_and_nameless(demo: Demo) -> None:
    """Two domains of 8 GPUs hold a unit each, the third is free."""
    eve = person(Role.ADMIN, model="other")
    domains = client_of(eve, "api").get("/api/v1/fleets/gb200-use1").json()["domains"]
    assert [domain["free"] for domain in domains] == [0, 0, 8]
    used = [cell for domain in domains for node in domain["nodes"] for cell in node["cells"] if cell["state"] == "used"]
    assert len(used) == 16 and {cell["role"] for cell in used} == {"prefill", "decode"}
    assert {(cell["stage"], cell["unit"], cell["slot"], cell["release"]) for cell in used} == {("", "", 0, "")}
    page = client_of(eve, "ui").get("/fleets").content.decode()
    assert page.count("8 GPUs in use by models that are not yours to see</p>") == 2 and page.count(">free</p>") == 1


def test_a_rollout_that_waits_takes_an_approver(demo: Demo) -> None:
    demo.release(block=32, approve="manual")
    demo.through(until={Rollout.State.HELD})
    deployer, approver = person(Role.DEPLOYER, name="dan"), person(Role.APPROVER, name="eve")
    assert call(client_of(deployer, "api"), "post", f"stages/{STAGE}/rollout/promote", {})[0] == 403
    assert call(client_of(approver, "api"), "post", f"stages/{STAGE}/rollout/promote", {"full": True, "reason": "x"})[0] == 403
    assert call(client_of(approver, "api"), "post", f"stages/{STAGE}/rollout/promote", {})[0] == 200


@pytest.mark.parametrize("reason", ["manual", "nodes-unreachable", ""])
def test_nobody_gets_past_an_approval_while_the_rollout_is_held_for_something_else(demo: Demo, reason: str) -> None:
    """By a pause that is let go at once, by nodes that fall silent, or before anybody was asked to approve."""
    demo.release(block=32, approve="manual")
    demo.through(until={Rollout.State.HELD})
    deployer, approver = client_of(person(Role.DEPLOYER, name="dan"), "api"), client_of(person(Role.APPROVER, name="eve"), "api")
    if reason == "manual":
        for command in ("pause", "resume"):
            assert call(deployer, "post", f"stages/{STAGE}/rollout/{command}", {})[0] == 200
    else:
        rollout = demo.rollout()
        Rollout.objects.filter(pk=rollout.pk).update(reason=reason, data=rollout.data | {"reason": reason})
    assert demo.rollout().reason == reason
    assert call(deployer, "post", f"stages/{STAGE}/rollout/promote", {})[0] == 403
    assert not demo.rollout().data["approved"]
    assert call(approver, "post", f"stages/{STAGE}/rollout/promote", {})[0] == 200
    assert demo.rollout().data["approved"]


def test_two_people_where_the_policy_wants_two() -> None:
    ann = person(Role.APPROVER)
    access_approve(ann, STAGE, started_by="ann")
    ModelPolicy.objects.create(model="ds-flash", approver_differs=True)
    access_approve(ann, STAGE, started_by="bob")
    with pytest.raises(ForbiddenError, match="Somebody else"):
        access_approve(ann, STAGE, started_by="ann")


def test_a_page_offers_what_one_may_do(demo: Demo) -> None:
    demo.release(block=32)
    demo.settle()
    for role, sees in {Role.VIEWER: (False, False), Role.OPERATOR: (True, True), Role.DEPLOYER: (True, False)}.items():
        page = client_of(person(role, name=f"the-{role}"), "ui").get(UI).content
        assert (f"{UI}/rollout/pause".encode() in page, f"{UI}/rollback".encode() in page) == sees, role


def test_roles_add_up_and_a_superuser_has_them_all() -> None:
    user = person(Role.OPERATOR)
    Grant.objects.create(user=user, model="*", role=Role.APPROVER)
    client = client_of(User.objects.create_superuser("root"), "api")
    assert client.get("/api/v1/stages").status_code == 200
    assert client_of(user, "api").get("/api/v1/stages").status_code == 200


def call(client: Client, method: str, path: str, body: object = None) -> tuple[int, Any]:
    response = getattr(client, method)(f"/api/v1/{path}", body, content_type="application/json")
    return response.status_code, response.json() if response.content else None


def test_roles_are_given_and_taken_over_rest_by_who_administers_the_model() -> None:
    ann, bea = client_of(person(Role.ADMIN), "api"), client_of(person(Role.VIEWER, name="bea"), "api")
    wish = {"user": "bea", "model": "ds-flash", "role": "operator"}
    assert call(bea, "post", "grants", wish)[0] == 403
    status, made = call(ann, "post", "grants", wish)
    assert (status, made["role"], made["created_by"]) == (201, "operator", "ann")
    assert call(ann, "post", "grants", wish)[1]["id"] == made["id"]
    assert call(ann, "post", "grants", wish | {"model": "*"})[0] == 403
    assert call(ann, "post", "grants", wish | {"model": "other"})[0] == 404
    assert call(ann, "post", "grants", wish | {"user": "nobody"})[0] == 404
    assert call(ann, "post", "grants", wish | {"role": "king"})[0] == 400
    assert call(bea, "get", "me")[1]["roles"] == {"*": ["none"], "ds-flash": ["operator", "viewer"]}
    assert [row["user"] for row in call(ann, "get", "grants")[1]["results"]] == ["ann", "bea", "bea"]
    assert call(bea, "get", "grants")[1]["results"] == []
    assert call(bea, "delete", f"grants/{made['id']}")[0] == 403
    assert call(ann, "delete", f"grants/{made['id']}")[0] == 204
    kinds = list(Event.objects.exclude(kind="change.refused").order_by("seq").values_list("kind", flat=True))
    assert kinds == ["role.given", "role.taken"]


def test_the_policy_over_rest() -> None:
    ann, bea = client_of(person(Role.ADMIN), "api"), client_of(person(Role.VIEWER, name="bea"), "api")
    assert call(bea, "get", "policies/ds-flash")[1] == {"model": "ds-flash", "approver_differs": False}
    assert call(bea, "put", "policies/ds-flash", {"approver_differs": True})[0] == 403
    assert call(ann, "put", "policies/ds-flash", {"approver_differs": True})[0] == 200
    assert call(bea, "get", "policies/ds-flash")[1]["approver_differs"] is True
