"""Settings, access, the journal's filters and nodes, by their forms on the real services: who did what is in the journal."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from denvweb.auth import token_check
from denvweb.models import ApiToken, Grant, ModelPolicy
from fleets.domain.protocol import GpuReport
from fleets.selectors import node_standing
from metrics.selectors import channels_view, events_view
from metrics.services import event_append
from releases.selectors.freezes import freeze_windows_view
from tests.integration.releases_fleets import make_demo_fleets
from tests.integration.rollouts_world import Demo

NODE = "gb200-use1-d01-n01"


@pytest.fixture
def root(db: None) -> Client:
    return signed_in(User.objects.create_superuser("root"))


@pytest.fixture
def viewer(db: None, settings: object) -> Client:
    settings.DEFAULT_ROLE = "viewer"  # type: ignore[attr-defined]  # pytest-django's settings are untyped
    return signed_in(User.objects.create_user("eve"))


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def said(client: Client, path: str, **fields: object) -> str:
    """Post a form, follow it; what the next page says about it."""
    text = client.post(path, fields, follow=True).content.decode()
    return "".join(re.findall(r'<div class="messages" role="status">(.*?)</div>', text, re.DOTALL))


def last_kind() -> str:
    return events_view(limit=1)[0].kind


def test_a_token_is_shown_once_and_revoked(root: Client) -> None:
    page = root.post("/settings/token-make", {"name": "ci", "days": "90"}, follow=True).content.decode()
    text = re.search(r'id="once">([^<]+)<', page)
    assert text is not None
    token = token_check(text[1], ApiToken.Scope.API)
    assert token is not None
    assert token.expires_at is not None
    again = root.get("/settings").content.decode()
    assert text[1] not in again
    assert token.pk in again
    assert "The token is revoked." in said(root, "/settings/token-revoke", id=token.pk)
    assert token_check(text[1], ApiToken.Scope.API) is None
    assert [event.kind for event in events_view(limit=2)] == ["token.revoked", "token.created"]


def test_another_browser_is_signed_out(db: None) -> None:
    user = User.objects.create_user("ada", password="a long password")
    here, there = signed_in(user), Client(headers={"user-agent": "Phone/1.0"})
    there.post("/login", {"username": "ada", "password": "a long password"})
    page = here.get("/settings").content.decode()
    assert "Phone/1.0" in page
    ids = re.findall(r'action="/settings/session-end".*?name="id" value="(\w+)"', page, re.DOTALL)
    assert len(ids) == 1  # not the one that looks
    assert "signed out" in said(here, "/settings/session-end", id=ids[0])
    assert there.get("/").status_code == 302
    assert here.get("/").status_code == 200
    other = signed_in(User.objects.create_user("mallory"))
    mine = re.findall(r'id="ses-(\w+)"', here.get("/settings").content.decode())
    assert other.post("/settings/session-end", {"id": mine[0]}).status_code == 404


def test_notices_are_for_administrators_and_a_key_is_shown_once(root: Client, viewer: Client) -> None:
    assert "Where notices go" not in viewer.get("/settings").content.decode()
    assert "Only an administrator" in said(viewer, "/settings/channel-make", kind="webhook", name="x", address="https://hooks.example/x")
    assert events_view(limit=1)[0].kind == "change.refused"
    page = root.post("/settings/channel-make", {"kind": "webhook", "name": "ops", "address": "https://hooks.example/x"}, follow=True)
    assert "whsec_" in page.content.decode()
    assert "whsec_" not in root.get("/settings").content.decode()
    assert "Refused" in said(root, "/settings/channel-make", kind="webhook", name="bad", address="http://hooks.example")
    channel = channels_view()[0]
    said(root, "/settings/channel-switch", id=channel.id, enabled="0")
    assert not channels_view()[0].enabled
    said(root, "/settings/channel-delete", id=channel.id)
    assert channels_view() == ()


def test_a_freeze_window_is_set_and_removed(root: Client, viewer: Client) -> None:
    weekly = {"zone": "Europe/Berlin", "reason": "weekend", "days": ["sat", "sun"], "start": "00:00", "end": "23:59"}
    assert "takes the role admin" in said(viewer, "/settings/freeze-make", **weekly)
    assert "Refused: This is no freeze window" in said(root, "/settings/freeze-make", zone="Nowhere", reason="x")
    assert "is set" in said(root, "/settings/freeze-make", **weekly)
    window = freeze_windows_view()[0]
    assert (window.days, window.zone) == (("sat", "sun"), "Europe/Berlin")
    assert "weekend" in viewer.get("/settings").content.decode()
    said(root, "/settings/freeze-delete", id=window.id)
    assert freeze_windows_view() == ()
    once = {"zone": "UTC", "reason": "launch", "begins_at": "2030-01-01T08:00", "ends_at": "2030-01-02T08:00"}
    assert "is set" in said(root, "/settings/freeze-make", **once)


def test_roles_are_given_and_taken_by_who_may(root: Client, viewer: Client) -> None:
    said(viewer, "/access/give", user="eve", model="*", role="admin")
    assert not Grant.objects.exists()
    assert events_view(limit=1)[0].kind == "change.refused"
    assert "eve is operator of * now." in said(root, "/access/give", user="eve", model="*", role="operator")
    assert "There is nobody named nobody" in said(root, "/access/give", user="nobody", model="*", role="viewer")
    page = viewer.get("/access").content.decode()
    assert "operator, viewer" in page
    said(root, "/access/policy", model="*", approver_differs="on")
    assert ModelPolicy.objects.get().approver_differs
    said(root, "/access/take", id=str(Grant.objects.get().pk))
    assert not Grant.objects.exists()
    assert last_kind() == "role.taken"


def test_the_journal_is_searched_and_its_chain_checked(root: Client, viewer: Client) -> None:
    event_append(kind="rollout.started", sentence="ada started release 8", actor="ada", via="cli", stage="ds-flash/prod-us")
    event_append(kind="change.refused", sentence="bob may not promote", actor="bob", via="slack", level="warn", stage="ds-flash/prod-us")
    for query, there, absent in (
        ("kind=change.refused", "bob may not promote", "ada started"),
        ("via=cli", "ada started", "bob may not"),
        ("actor=bob", "bob may not", "ada started"),
        ("text=STARTED", "ada started", "bob may not"),
        ("text=%25", "No event fits", "ada started"),
        ("kind=nonsense&via=nothing", "ada started", "No event fits"),
    ):
        page = root.get(f"/events?{query}").content.decode()
        assert there in page, query
        assert absent not in page, query
    assert "Check the chain" not in viewer.get("/events").content.decode()
    assert viewer.post("/events/verify").status_code == 403


@pytest.mark.django_db(transaction=True)
def test_a_whole_chain_is_said_to_be_whole() -> None:
    root = signed_in(User.objects.create_superuser("root"))
    event_append(kind="rollout.started", sentence="ada started release 8", actor="ada", via="cli")
    assert "The journal is whole: 1 links hold." in said(root, "/events/verify")
    assert "not whole" in said(root, "/events/verify", head="0" * 64)


def test_a_node_is_drained_with_its_plan_in_view(root: Client, viewer: Client) -> None:
    demo = Demo()
    demo.first()
    page = root.get(f"/fleets/nodes/{NODE}").content.decode()
    assert "What a drain would do" in page
    assert "ds-flash/prod-us" in page
    demo.fleets.agents[NODE].gpus = (GpuReport(0, healthy=False, detail="Xid 79"), *(GpuReport(index) for index in range(1, 8)))
    demo.fleets.sync()
    assert "GPU 0 is broken: Xid 79" in root.get(f"/fleets/nodes/{NODE}").content.decode()
    assert f"{NODE} takes nothing new" in said(root, f"/fleets/nodes/{NODE}/cordon", reason="fan is loud")
    assert node_standing(node=NODE).reason == "fan is loud"
    assert "is being drained" in said(root, f"/fleets/nodes/{NODE}/drain")
    assert node_standing(node=NODE).draining
    assert "takes new ranks again" in said(root, f"/fleets/nodes/{NODE}/uncordon")
    assert events_view(limit=1)[0].actor == "root"
    refused = viewer.get(f"/fleets/nodes/{NODE}").content.decode()
    assert "take the role operator" in refused
    assert "Refused" in said(viewer, f"/fleets/nodes/{NODE}/drain")
    assert not node_standing(node=NODE).cordoned
    assert root.get("/fleets/nodes/nowhere").status_code == 404


def test_recipes_say_what_they_hold(root: Client) -> None:
    make_demo_fleets()
    page = root.get("/recipes").content.decode()
    assert "deepseek-v4.1-flash/deepinfer@3" in page
    assert "a token" in page


def test_access_of_many_models_is_found_by_name_and_not_all_at_once(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.pages.access.stage_keys", lambda: [f"model-{n:03d}/prod" for n in range(200)])
    first = root.get("/access").content.decode()
    assert first.count('id="ac-m-model-') == 25 and "Show 175 more models" in first and len(first) < 70_000
    one = root.get("/access?model=-142").content.decode()
    assert one.count('id="ac-m-') == 1 and 'id="ac-m-model-142"' in one
    assert root.get("/access?all=yes").content.decode().count('id="ac-m-model-') == 200
    assert "No model that you may see has" in root.get("/access?model=none").content.decode()
