"""API keys of a stage's clients over REST and by command: made, listed, taken back, and in the routers' table at once."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from denvweb.core.ids import parse_credential, secret_matches
from denvweb.models import Grant
from fleets.domain.allowance import Allowance
from fleets.selectors import router_table
from metrics.selectors import events_view
from tests.integration.fleets_world import STAGE, World

pytestmark = pytest.mark.django_db
PATH = f"/api/v1/stages/{STAGE}"


def _login(client: Client, role: str = "admin") -> None:
    user = User.objects.create_user("ada")
    Grant.objects.create(user=user, model="ds-flash", role=role)
    client.force_login(user)


def _post(client: Client, path: str, body: object, **headers: str) -> Any:
    return client.post(f"{PATH}/{path}", body, content_type="application/json", headers=headers)


def test_a_key_is_shown_once_and_in_the_table_at_once(client: Client) -> None:
    World(domains=1, nodes=1).route({})
    _login(client)
    before = router_table(stage=STAGE)
    assert not before.keys_required
    made = _post(client, "keys", {"client": "acme", "allowance": {"requests_per_min": 60, "tokens_per_min": 100_000}})
    assert made.status_code == 201
    credential = parse_credential(made.json()["text"])
    assert credential is not None
    after = router_table(stage=STAGE)
    (key,) = after.keys
    assert after.generation > before.generation and after.keys_required
    assert secret_matches(credential.secret, key.secret_hash) and key.allowance == Allowance(60, 100_000)
    listed = client.get(f"{PATH}/keys").json()
    assert listed["required"] and [row["client"] for row in listed["results"]] == ["acme"] and "secret" not in str(listed)
    assert client.delete(f"{PATH}/keys/{credential.id}").status_code == 204
    assert router_table(stage=STAGE).keys == () and router_table(stage=STAGE).keys_required  # nobody gets in by its going
    assert client.delete(f"{PATH}/keys/{credential.id}").json()["code"] == "key-unknown"
    assert _post(client, "keys-required", {"required": False}).json() == {"stage": STAGE, "required": False, "results": []}
    kinds = [event.kind for event in events_view(stage=STAGE) if event.kind.startswith("api-key.")]
    assert kinds == ["api-key.open", "api-key.revoked", "api-key.created"]


def test_what_cannot_be_used_is_refused(client: Client) -> None:
    World(domains=1, nodes=1).route({})
    _login(client)
    assert _post(client, "keys", {"client": " "}).json()["code"] == "bad-client-name"
    refused = _post(client, "keys", {"client": "acme", "allowance": {"at_once": -1}}).json()
    assert refused["code"] == "bad-allowance" and list(refused["fields"]) == ["allowance.at_once"]
    assert client.post("/api/v1/stages/ds-flash/none/keys", {"client": "a"}, content_type="application/json").status_code == 404


@pytest.mark.parametrize("role", ["viewer", "operator", "deployer", "approver"])
def test_keys_take_an_administrator_of_the_model(client: Client, settings: Any, role: str) -> None:
    settings.DEFAULT_ROLE = "viewer"
    World(domains=1, nodes=1).route({})
    _login(client, role)
    for answer in (client.get(f"{PATH}/keys"), _post(client, "keys", {"client": "a"}), client.delete(f"{PATH}/keys/key-x")):
        assert (answer.status_code, answer.json()["code"]) == (403, "role-missing")


def test_the_page_does_what_the_command_does(client: Client) -> None:
    World(domains=1, nodes=1).route({})
    _login(client)
    page = f"/stages/{STAGE}/keys"
    assert "Nobody has a key." in client.get(page).content.decode()
    made = client.post(
        f"{page}/create", {"client": "acme", "requests_per_min": "6,000", "tokens_per_min": "", "at_once": "8", "days": "30"}
    )
    assert (made.status_code, made["Location"]) == (302, page)
    text = client.get(page).content.decode()
    shown = re.search(r'id="once">(key-[^<]+)<', text)
    assert shown is not None and "API key key-" in text and "6,000" in text and "no limit" in text
    (key,) = router_table(stage=STAGE).keys
    credential = parse_credential(shown[1])
    assert credential is not None and credential.id == key.id and secret_matches(credential.secret, key.secret_hash)
    assert key.allowance == Allowance(6000, 0, 8) and key.expires_at is not None
    assert abs(key.expires_at - time.time() - 30 * 86_400) < 600
    assert shown[1] not in client.get(page).content.decode() + client.get("/settings").content.decode(), "once"
    client.post(f"{page}/require", {"required": "0"})
    assert not router_table(stage=STAGE).keys_required
    client.post(f"{page}/revoke", {"id": key.id})
    assert router_table(stage=STAGE).keys == ()
    assert [(event.kind, event.actor, event.via) for event in events_view(stage=STAGE) if event.kind.startswith("api-key.")] == [
        (kind, "ada", "ui") for kind in ("api-key.revoked", "api-key.open", "api-key.created")
    ]


@pytest.mark.parametrize("field", [{"at_once": "-1"}, {"at_once": "many"}, {"at_once": "9" * 30}, {"client": " "}, {"client": "x" * 81}])
def test_a_form_that_cannot_be_meant_makes_no_key(client: Client, field: dict[str, str]) -> None:
    World(domains=1, nodes=1).route({})
    _login(client)
    page = client.post(f"/stages/{STAGE}/keys/create", {"client": "acme"} | field, follow=True).content
    assert b"Refused: " in page and router_table(stage=STAGE).keys == () and events_view(limit=1)[0].kind == "change.refused"


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("operator", 403), ("deployer", 403), ("approver", 403), ("none", 404)])
def test_the_page_takes_an_administrator_of_the_model(client: Client, settings: Any, role: str, status: int) -> None:
    settings.DEFAULT_ROLE = "none"
    World(domains=1, nodes=1).route({})
    _login(client, role)
    assert client.get(f"/stages/{STAGE}/keys").status_code == status
    for action in ("create", "revoke", "require"):
        assert client.post(f"/stages/{STAGE}/keys/{action}", {"client": "acme", "required": "1"}).status_code == status
    assert [event.kind for event in events_view(limit=3)] == ["change.refused"] * 3 and router_table(stage=STAGE).keys == ()
