"""What denv refuses, as one list: who is not who they say, comes from elsewhere, twice or late, or sends denv where it must not go.

Two lists are long enough for files of their own: what a role may not do (test_access_table.py), and what an OpenID Connect
provider must prove (test_oidc.py). A webhook's redirect, drip and false certificate are with the TLS server of test_outbox_webhooks.py.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.test import Client

from denvweb import throttle
from denvweb.asgi import application
from denvweb.auth import token_create
from denvweb.models import ApiToken
from frontend import webhooks
from frontend.models import SlackReply, SlackUser
from frontend.sending import DeliveryError
from frontend.slack.app import slack_app_set
from frontend.slack.blocks import Button
from frontend.webhooks import refusal_of, resolve
from metrics.models import Event
from releases.models import RollbackRequest, Rollout
from tests.integration.fleets_world import World
from tests.integration.rollouts_world import STAGE, Demo
from tests.integration.slack_fake import SECRET, TEAM, TOKEN
from tests.integration.slack_signed import command_body, post, press, say, signed

pytestmark = pytest.mark.django_db
Communicator: Any = ApplicationCommunicator  # asgiref does not type it


@pytest.fixture(autouse=True)
def nobody_has_tried_yet() -> None:
    throttle._buckets.clear()


# ---- by password ----


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


# ---- by token ----


def test_a_token_in_an_address_opens_nothing(client: Client) -> None:
    token = token_create(user=User.objects.create_superuser("root"))
    for name in ("token", "access_token", "Authorization"):
        assert client.get(f"/api/v1/me?{name}={token}").status_code == 401
        assert client.get(f"/api/v1/stream?{name}={token}").status_code == 401


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


# ---- from elsewhere ----


def test_another_site_can_change_nothing_with_somebodys_session() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    for path in ("/api/v1/tokens", "/api/v1/releases", "/api/v1/channels", "/api/v1/stages/a/b/rollback"):
        response = client.post(path, {}, content_type="application/json", headers={"origin": "https://evil.example"})
        assert (response.status_code, response.json()["code"]) == (403, "forbidden"), path
    assert client.post("/stages/a/b/rollback", {}, headers={"origin": "https://evil.example"}).status_code == 403
    assert not ApiToken.objects.exists()


@pytest.mark.parametrize("origin", ["https://evil.example", "http://testserver", "null"])
def test_no_page_opens_a_socket_whoever_is_signed_in_there_and_whatever_it_knows(origin: str) -> None:
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    session = root.cookies["sessionid"].value
    credential = next(iter(World(domains=1, nodes=1).agents.values())).credential
    for header in (b"", f"Bearer {credential}".encode(), f"Bearer {token_create(user=User.objects.get())}".encode()):
        assert opens(origin=origin, cookie=f"sessionid={session}", authorization=header.decode()) == "websocket.close"
    assert opens(cookie=f"sessionid={session}") == "websocket.close", "a session is nothing here, from any site"


def opens(**headers: str) -> str:
    """What the agents' socket says to its opening."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items() if value]
    scope = {"type": "websocket", "path": "/agent/v1/poke", "headers": raw, "query_string": b"", "subprotocols": []}

    async def ask() -> str:
        peer = Communicator(application, scope)
        await peer.send_input({"type": "websocket.connect"})
        return str((await peer.receive_output(10))["type"])

    return async_to_sync(ask)()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1, evil.example"])
def test_another_name_for_this_host_is_not_answered(client: Client, settings: Any, host: str) -> None:
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    assert client.get("/login", headers={"host": host}).status_code == 400


def test_a_form_for_what_is_not_there_is_in_the_journal_however_it_is_named() -> None:
    client = Client()
    client.force_login(User.objects.create_user("ann"))
    for stage, written in (("no/such", "no/such"), (f"{'x' * 200}/y", "")):
        assert client.post(f"/stages/{stage}/rollback").status_code == 404
        event = Event.objects.latest("seq")
        assert (event.kind, event.actor, event.via, event.stage) == ("change.refused", "ann", "ui", written)
    assert client.get("/stages/no/such").status_code == 404 and Event.objects.count() == 2


# ---- from Slack ----

ANN, EVE = "U0000000ANN", "U0000000EVE"


@pytest.fixture
def workspace() -> User:
    """Slack set up, and somebody there who may do everything here."""
    slack_app_set(team=TEAM, bot_token=TOKEN, signing_secret=SECRET, actor="root", via="api")
    ann = User.objects.create_user("ann")
    SlackUser.objects.create(team=TEAM, user=ANN, account=ann)
    return ann


def refusals() -> list[tuple[str, str]]:
    return [(event.evidence["code"], event.actor) for event in Event.objects.filter(kind="change.refused").order_by("seq")]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Slack-Signature": "v0=" + "0" * 64},
        {"X-Slack-Signature": "ö"},
        {"X-Slack-Signature": ""},
        {"X-Slack-Request-Timestamp": "yesterday"},
        {"X-Slack-Request-Timestamp": ""},
        {"X-Slack-Request-Timestamp": "1e9"},
        {"X-Slack-Request-Timestamp": "-1"},
        {"X-Slack-Request-Timestamp": "٣"},
        {"X-Slack-Request-Timestamp": "9" * 400},
        {"X-Slack-Request-Timestamp": "1531420618"},
    ],
)
def test_what_slack_has_not_signed_just_now(workspace: User, headers: dict[str, str]) -> None:
    body = command_body("status", ANN)
    right = signed(body)
    told = {name: value.encode().decode("latin-1") for name, value in (right | headers).items()}
    assert post("command", body, told).status_code == 401
    assert post("command", body + "&text=rollback", right).status_code == 401, "another body"
    assert post("command", body, right).status_code == 200


def test_what_slack_signed_long_ago_and_what_it_signed_twice(workspace: User) -> None:
    body = command_body(f"rollback {STAGE}", ANN)
    assert post("command", body, signed(body, at="1531420618")).status_code == 401, "the right signature of another year"
    right = signed(body)
    assert [post("command", body, right).status_code for _ in range(3)] == [200, 401, 401]
    assert refusals() == [("not-found", "ann")], "it was asked for once"


def test_what_another_workspace_signed_and_what_is_no_request(workspace: User) -> None:
    assert post("command", command_body("status", ANN, team="T0000000002")).status_code == 401
    assert [post("interaction", body).status_code for body in ("payload=[]", "payload={", "payload=1")] == [401, 400, 401]
    assert post("command", "text=" + "x" * 300_000).status_code == 413


def test_a_slack_user_whom_nobody_here_knows(workspace: User) -> None:
    assert "I do not know who you are here" in say(f"rollback {STAGE}", EVE)
    workspace.is_active = False
    workspace.save()
    assert "I do not know who you are here" in say(f"rollback {STAGE}", ANN)
    assert refusals() == [("slack-unlinked", f"Slack user {user}") for user in (EVE, ANN)] and not RollbackRequest.objects.exists()


def test_a_button_that_is_stale_used_or_not_ours(workspace: User, settings: Any) -> None:
    demo = Demo()
    demo.first()
    demo.release(block=32, approve="manual")
    demo.through(until={Rollout.State.HELD})
    rollout = demo.rollout()
    fresh = Button(rollout.pk, rollout.generation, "b-1")
    stale = Button(rollout.pk, rollout.generation - 1, "b-2")
    assert press("approve", stale.value(), ANN) == 200
    assert "Not done" in told() and f"Now: {STAGE} held (generation {rollout.generation})" in told()
    for verb, value in (("approve", "rubbish"), ("dance", fresh.value()), ("approve", '{"rollout": 1}')):
        press(verb, value, ANN)
        assert told() == "Not done: this button is none of this version's."
    assert demo.rollout().generation == rollout.generation
    press("approve", fresh.value(), ANN)
    assert told() == f"ann approved {STAGE}"
    press("rollback", fresh.value(), ANN)  # of the same message
    assert "This button was used before" in told() and not RollbackRequest.objects.exists()
    assert [code for code, _ in refusals()] == ["stale-generation", "used"]
    settings.DEFAULT_ROLE = "none"
    SlackUser.objects.create(team=TEAM, user=EVE, account=User.objects.create_user("eve"))
    press("rollback", fresh.value(), EVE)
    assert told() == "Not done: This button was used before.", "who may not see the stage is not told how it stands"


def told() -> str:
    """What the last click is answered with."""
    return str(SlackReply.objects.latest("pk").payload["text"])


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "https://hooks.slack.com.evil.example/x",
        "https://x@hooks.slack.com/1",
        "http://hooks.slack.com/1",
        "//hooks.slack.com",
        "",
    ],
)
def test_an_answer_that_would_go_elsewhere(workspace: User, url: str) -> None:
    assert press("rollback", Button("ro-1", 1, "b-1").value(), EVE, url=url) == 200
    assert not SlackReply.objects.exists()


# ---- a webhook that leads where it must not ----


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255",
        "168.63.129.16", "100.100.100.200", "198.18.0.1", "240.0.0.1",
        "::1", "::", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1",
        # IPv4 in the clothes of IPv6: mapped, compatible, translated, NAT64, 6to4, Teredo
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::7f00:1", "::ffff:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b:1::1",
        "2002:7f00:1::", "2001:0:7f00:1::",
    ],
)  # fmt: skip
def test_addresses_that_are_not_of_the_internet(address: str) -> None:
    assert refusal_of(ipaddress.ip_address(address), allow_private=False)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "169.254.1.1", "fd00:ec2::254", "fd20:ce::254", "168.63.129.16", "192.0.0.192", "fe80::1",
        "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "0.0.0.0",
    ],
)  # fmt: skip
def test_where_clouds_keep_credentials_even_if_ones_own_network_is_allowed(address: str) -> None:
    assert refusal_of(ipaddress.ip_address(address), allow_private=True)


@pytest.mark.parametrize(
    ("address", "private"), [("1.1.1.1", False), ("2606:4700::1111", False), ("10.0.0.1", True), ("127.0.0.1", True), ("fec0::1", True)]
)
def test_others_may_be_called(address: str, private: bool) -> None:
    assert refusal_of(ipaddress.ip_address(address), allow_private=private) == ""


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "::ffff:7f00:1"])
def test_a_name_is_judged_by_its_address(host: str) -> None:
    with pytest.raises(DeliveryError, match="not in the public internet"):
        resolve(host, 443, allow_private=False)


def answers(monkeypatch: pytest.MonkeyPatch, *turns: tuple[str, ...]) -> list[str]:
    """A name server that says something else each time; who was asked for."""
    asked: list[str] = []

    def look_up(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in turns[min(len(asked), len(turns)) - 1]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


def test_a_name_of_one_good_and_one_bad_address(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, ("1.1.1.1", "127.0.0.1"))
    with pytest.raises(DeliveryError) as caught:
        resolve("rebind.example", 443, allow_private=False)
    assert caught.value.hopeless


def test_a_name_that_changes_between_the_look_and_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: looked up once, and the call goes to the very address that was looked at."""
    asked, called = answers(monkeypatch, ("1.1.1.1",), ("169.254.169.254",)), []

    def connect(address: tuple[str, int], *_: object, **__: object) -> socket.socket:
        called.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    address = resolve("rebind.example", 443, allow_private=False)
    with pytest.raises(DeliveryError, match="did not answer"):
        webhooks._post("rebind.example", 443, address, "/", b"", {})
    assert (asked, called) == (["rebind.example"], [("1.1.1.1", 443)])


@pytest.mark.parametrize(
    "address", ["http://hooks.example.com/x", "https://", "ftp://hooks.example.com", "https://user:secret@hooks.example.com/x"]
)
def test_a_webhook_that_is_no_https_address(address: str) -> None:
    api = Client(headers={"authorization": f"Bearer {token_create(user=User.objects.create_superuser('root'))}"})
    body = {"kind": "webhook", "name": "x", "address": address}
    assert api.post("/api/v1/channels", body, content_type="application/json").status_code == 400
