"""Ways in that must stay shut: guessing passwords, tokens in addresses, requests from other sites, tokens that were taken back."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from denvweb import throttle
from denvweb.auth import token_create
from denvweb.models import ApiToken
from metrics.models import Event

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nobody_has_tried_yet() -> None:
    throttle._buckets.clear()


def log_in(client: Client, name: str, password: str) -> int:
    return int(client.post("/login", {"username": name, "password": password}).status_code)


def test_passwords_cannot_be_guessed_by_the_dozen(client: Client) -> None:
    User.objects.create_user("ann", password="a long password")
    User.objects.create_user("bea", password="a long password")
    assert [log_in(client, "ann", f"guess {i}") for i in range(10)] == [200] * 10
    response = client.post("/login", {"username": "ann", "password": "a long password"})
    assert response.status_code == 429 and 1 <= int(response.headers["Retry-After"]) <= 10
    assert b"This was tried too often. Wait" in response.content
    assert log_in(client, "bea", "a long password") == 302, "it is the name's limit"
    failed = Event.objects.filter(kind="change.refused")
    assert failed.count() == 10 and {row.actor for row in failed} == {"ann"} and "guess" not in failed[0].sentence


def test_the_administration_has_no_door_of_its_own(client: Client) -> None:
    assert client.get("/admin/", follow=True).redirect_chain[-1][0] == "/login?next=/admin/"
    User.objects.create_superuser("root", password="a long password")
    assert client.post("/admin/login/", {"username": "root", "password": "a long password"}).status_code == 302
    assert "sessionid" not in client.cookies
    client.force_login(User.objects.create_user("ann"))
    assert client.get("/admin/", follow=True).status_code == 403


def test_a_token_in_an_address_opens_nothing(client: Client) -> None:
    token = token_create(user=User.objects.create_superuser("root"))
    for name in ("token", "access_token", "Authorization"):
        assert client.get(f"/api/v1/me?{name}={token}").status_code == 401
        assert client.get(f"/api/v1/stream?{name}={token}").status_code == 401


def test_another_site_can_change_nothing_with_somebodys_session() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    for path in ("/api/v1/tokens", "/api/v1/releases", "/api/v1/channels", "/api/v1/stages/a/b/rollback"):
        response = client.post(path, {}, content_type="application/json", headers={"origin": "https://evil.example"})
        assert (response.status_code, response.json()["code"]) == (403, "forbidden"), path
    assert client.post("/stages/a/b/rollback", {}, headers={"origin": "https://evil.example"}).status_code == 403
    assert not ApiToken.objects.exists()


def test_a_form_for_what_is_not_there_is_in_the_journal_however_it_is_named() -> None:
    client = Client()
    client.force_login(User.objects.create_user("ann"))
    for stage, written in (("no/such", "no/such"), (f"{'x' * 200}/y", "")):
        assert client.post(f"/stages/{stage}/rollback").status_code == 404
        event = Event.objects.latest("seq")
        assert (event.kind, event.actor, event.via, event.stage) == ("change.refused", "ann", "ui", written)
    assert client.get("/stages/no/such").status_code == 404 and Event.objects.count() == 2


def test_tokens_are_listed_without_their_secret_and_can_be_taken_back() -> None:
    user = User.objects.create_user("ann")
    text, other = token_create(user=user, label="mine"), token_create(user=User.objects.create_user("eve"))
    client = Client(headers={"authorization": f"Bearer {text}"})
    listed = client.get("/api/v1/tokens").json()["results"]
    assert [row["name"] for row in listed] == ["mine"] and text.partition(".")[2] not in str(listed)
    assert client.delete(f"/api/v1/tokens/{other.partition('.')[0]}").status_code == 404, "somebody else's"
    assert client.delete(f"/api/v1/tokens/{listed[0]['id']}").status_code == 204
    assert client.get("/api/v1/me").status_code == 401
    assert Event.objects.filter(kind="token.revoked", actor="ann").exists()


def test_an_administrator_takes_back_anybodys_token() -> None:
    root = Client(headers={"authorization": f"Bearer {token_create(user=User.objects.create_superuser('root'))}"})
    lost = token_create(user=User.objects.create_user("ann"), label="lost laptop")
    assert {row["user"] for row in root.get("/api/v1/tokens").json()["results"]} == {"root", "ann"}
    assert root.delete(f"/api/v1/tokens/{lost.partition('.')[0]}").status_code == 204
    assert Client(headers={"authorization": f"Bearer {lost}"}).get("/api/v1/me").status_code == 401
