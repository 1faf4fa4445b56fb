"""What people do to nodes over REST: tokens to join with, cordons."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from denvweb.models import Grant
from fleets.domain.protocol import JoinRequest
from fleets.models import Fleet
from fleets.selectors import fleet_maps, fleet_views
from fleets.services import nodes_join
from metrics.selectors import events_view
from tests.integration.fleets_world import World

pytestmark = pytest.mark.django_db


def _login(client: Client, *, admin: bool = False) -> None:
    make = User.objects.create_superuser if admin else User.objects.create_user
    client.force_login(make("ada" if admin else "eve"))


def _post(client: Client, path: str, body: object = None) -> Any:
    return client.post(f"/api/v1/{path}", body or {}, content_type="application/json")


def test_an_administrators_join_token_joins_nodes_to_its_fleet(client: Client) -> None:
    world = World(domains=1, nodes=1)
    _login(client, admin=True)
    answer = _post(client, "join-tokens", {"fleet": "gb200-use1"})
    assert answer.status_code == 201
    assert set(answer.json()) == {"token", "fleet", "expires_at"} and answer.json()["fleet"] == "gb200-use1"
    nodes_join(request=JoinRequest(answer.json()["token"], (world.agents["gb200-use1-d01-n01"].facts,)))
    (made,) = [event for event in events_view(fleet="gb200-use1") if (event.kind, event.actor) == ("join-token.created", "ada")]
    assert made.via == "ui"
    assert answer.json()["token"].partition(".")[2] not in made.sentence  # its secret is said once


def test_others_get_no_join_token_and_a_bad_fleet_name_is_refused(client: Client) -> None:
    assert _post(client, "join-tokens", {"fleet": "f"}).status_code in (401, 403)
    _login(client)
    refused = _post(client, "join-tokens", {"fleet": "f"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    _login(client, admin=True)
    for name in ("", "Bad Name", "-x", "a" * 64):
        bad = _post(client, "join-tokens", {"fleet": name})
        assert (bad.status_code, bad.json()["code"]) == (400, "bad-fleet-name")


def test_nodes_take_the_role_for_every_model(client: Client, settings: Any) -> None:
    World(domains=1, nodes=1)
    settings.DEFAULT_ROLE = "none"
    _login(client)
    path = "nodes/gb200-use1-d01-n01"
    for answer in (_post(client, f"{path}/cordon"), _post(client, f"{path}/drain"), client.get(f"/api/v1/{path}/drain-plan")):
        assert (answer.status_code, answer.json()["code"]) == (403, "role-missing")
    Grant.objects.create(user=User.objects.get(username="eve"), model="ds-flash", role="operator")
    assert _post(client, f"{path}/cordon").status_code == 403, "one model's role is not enough"
    Grant.objects.create(user=User.objects.get(username="eve"), model="*", role="operator")
    assert _post(client, f"{path}/cordon").status_code == 200


def test_a_cordoned_node_keeps_what_it_runs_and_takes_nothing_new(client: Client) -> None:
    world = World(domains=1, nodes=2)
    _login(client)
    name = "gb200-use1-d01-n01"
    answer = _post(client, f"nodes/{name}/cordon", {"reason": "fan replaced"}).json()
    assert (answer["cordoned"], answer["draining"], answer["reason"], answer["used"]) == (True, False, "fan replaced", 0)
    assert fleet_views()[0].domains[0].free == 4
    assert fleet_maps()[0].domains[0].nodes[0].cordon_reason == "fan replaced"
    _post(client, f"nodes/{name}/cordon", {"reason": "fan replaced"})  # once more: nothing new to say
    assert _post(client, f"nodes/{name}/uncordon").json()["cordoned"] is False
    assert fleet_views()[0].domains[0].free == 8
    said = [(event.kind, event.actor, event.sentence) for event in events_view(fleet=world.fleet) if "cordon" in event.kind]
    assert said == [
        ("node.uncordoned", "eve", f"node {name} takes new ranks again"),
        ("node.cordoned", "eve", f"node {name} is cordoned: it takes nothing new (fan replaced)"),
    ]
    missing = _post(client, "nodes/nowhere/cordon")
    assert (missing.status_code, missing.json()["code"]) == (404, "node-unknown")


def test_a_drain_that_is_sent_again_with_its_key_is_done_once(client: Client) -> None:
    world = World(domains=1, nodes=2)
    _login(client)
    path, headers = "/api/v1/nodes/gb200-use1-d01-n01", {"Idempotency-Key": "k1"}
    first = client.post(f"{path}/drain", {}, content_type="application/json", headers=headers).json()
    _post(client, "nodes/gb200-use1-d01-n01/uncordon")
    again = client.post(f"{path}/drain", {}, content_type="application/json", headers=headers).json()
    assert again == first
    assert not fleet_maps()[0].domains[0].nodes[0].draining
    assert [event.kind for event in events_view(fleet=world.fleet)].count("node.draining") == 1


def test_a_fleet_is_thawed_with_a_reason_by_who_may(client: Client) -> None:
    World(domains=1, nodes=4)
    Fleet.objects.update(frozen="fleet gb200-use1: 2 of 4 nodes went silent at once")
    _login(client)
    assert _post(client, "fleets/gb200-use1/thaw", {}).json()["fields"] == {"reason": ["is missing"]}
    assert _post(client, "fleets/nowhere/thaw", {"reason": "x"}).json()["code"] == "fleet-unknown"
    assert _post(client, "fleets/gb200-use1/thaw", {"reason": "a rack lost power"}).json()["frozen"] == ""
    assert _post(client, "fleets/gb200-use1/thaw", {"reason": "again"}).status_code == 409
    (told,) = [event for event in events_view(fleet="gb200-use1") if event.kind == "fleet.thawed"]
    assert (told.actor, told.via) == ("eve", "ui")
