"""Slack over HTTP, against a Slack that is a process of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from denvweb.auth import token_create
from denvweb.models import Grant
from frontend import delivery
from frontend.models import SlackReply, SlackUser
from frontend.slack import people
from frontend.slack.people import Caller, account_of, link_url
from frontend.slack.signature import is_slack, signature_of
from metrics.models import Event, Outbox
from metrics.services import event_append
from releases.models import RollbackRequest, Rollout
from releases.reconcile import reconcile
from tests.docs.slack_samples import notice_of
from tests.integration.rollouts_world import STAGE, Demo, make_api
from tests.integration.slack_fake import SECRET, TEAM
from tests.integration.slack_world import ANN, EVE, Slack, held, person, refusals, started

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_signature_is_that_of_slacks_documentation() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
        b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
        b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert signature_of(SECRET, "1531420618", body) == signature
    assert is_slack(SECRET, timestamp="1531420618", signature=signature, body=body, now_s=1531420618 + 299)
    assert not is_slack(SECRET, timestamp="1531420618", signature=signature, body=body, now_s=1531420618 + 301)
    assert not is_slack(SECRET, timestamp="1531420618", signature=signature, body=body + b"x", now_s=1531420618)


@pytest.fixture
def slack(live_server: Any, settings: Any) -> Iterator[Slack]:
    """Slack set up, with a channel for notices."""
    settings.DEFAULT_ROLE = "viewer"
    with started(settings, live_server.url) as here:
        yield here


# ---- who is calling ----


def test_without_an_app_there_is_nothing_to_call(client: Client) -> None:
    assert client.post("/slack/command", "text=status", content_type="application/x-www-form-urlencoded").status_code == 404


def test_a_stranger_is_told_how_to_become_known(slack: Slack, client: Client) -> None:
    told = slack.command("rollback ds-flash/prod-us")
    assert "I do not know who you are here" in told and refusals() == ["slack-unlinked"]
    ann = User.objects.create_user("ann")
    url = told.rsplit(maxsplit=1)[-1]
    path = url.partition("/slack")[1] + url.partition("/slack")[2]
    assert client.get(path).status_code == 302, "log in first"
    client.force_login(ann)
    page = client.get(path)
    assert ANN in page.content.decode() and account_of(Caller(TEAM, ANN)) is None, "looking links nobody"
    token = path.partition("t=")[2]
    assert client.post("/slack/link", {"t": token}).status_code == 302
    assert account_of(Caller(TEAM, ANN)) == ann
    client.force_login(User.objects.create_user("eve"))
    client.post("/slack/link", {"t": token})
    assert account_of(Caller(TEAM, ANN)) == ann, "a link is good once"
    assert slack.command("status") == "There are no stages yet."
    assert slack.command("unlink").startswith("Forgotten") and account_of(Caller(TEAM, ANN)) is None


def test_one_unlinks_ones_own_account_over_the_api(slack: Slack) -> None:
    for name, user in (("ann", ANN), ("eve", EVE)):
        SlackUser.objects.create(team=TEAM, user=user, account=User.objects.create_user(name))
    api = Client(headers={"authorization": f"Bearer {token_create(user=User.objects.get(username='ann'))}"})
    assert [row["id"] for row in api.get("/api/v1/slack/links").json()["results"]] == [f"{TEAM}.{ANN}"]
    assert api.delete(f"/api/v1/slack/links/{TEAM}.{EVE}").status_code == 404
    assert api.delete(f"/api/v1/slack/links/{TEAM}.{ANN}").status_code == 204
    assert list(SlackUser.objects.values_list("user", flat=True)) == [EVE]
    assert Event.objects.latest("seq").via == "api"


def test_a_link_is_good_for_ten_minutes_and_only_as_it_was_given(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.force_login(User.objects.create_user("ann"))
    token = link_url(Caller(TEAM, ANN)).partition("t=")[2]
    client.post("/slack/link", {"t": token + "x"})
    monkeypatch.setattr(people, "LINK_GOOD_FOR_S", -1)
    client.post("/slack/link", {"t": token})
    assert not SlackUser.objects.exists()


def test_an_account_that_was_closed_may_nothing(slack: Slack) -> None:
    person()
    User.objects.update(is_active=False)
    assert "I do not know who you are" in slack.command("status")


# ---- commands ----


def test_commands_do_what_they_say(slack: Slack) -> None:
    demo = Demo()
    demo.first()
    person()
    assert slack.command("status").startswith(f"{STAGE}: ")
    assert slack.command(f"status {STAGE}").startswith(f"{STAGE}: ")
    assert "No rollout of" in slack.command(f"pause {STAGE}")
    assert slack.command(f"rolback {STAGE}").endswith("Did you mean `rollback`?")
    demo.release(block=32, approve="manual")
    demo.settle()
    assert slack.command(f"pause {STAGE} for lunch") == f"ann paused {STAGE}: for lunch"
    assert slack.command(f"resume `{STAGE}`") == f"ann resumed {STAGE}"
    assert "Nothing of" in slack.command(f"approve {STAGE}")
    demo.through(until={Rollout.State.HELD})
    assert slack.command(f"approve {STAGE} looks good") == f"ann approved {STAGE}: looks good"
    assert slack.command(f"rollback {STAGE} too slow") == f"ann asked to roll back {STAGE}: too slow"
    wish = RollbackRequest.objects.get()
    assert (wish.requested_by, wish.via, wish.reason) == ("ann", "slack", "too slow")
    event = Event.objects.get(kind="rollback.requested")
    assert (event.actor, event.via, event.proof) == ("ann", "slack", f"slack {TEAM}/{ANN}")


@pytest.mark.parametrize("text", ["", "help", "rollback", "rollback everything", "dance ds-flash/prod-us", "status no/such", "\x00"])
def test_other_words_are_answered_and_do_nothing(slack: Slack, text: str) -> None:
    person()
    assert slack.command(text)
    assert not RollbackRequest.objects.exists()


def test_who_may_not_see_a_model_learns_nothing_of_it(slack: Slack, settings: Any) -> None:
    settings.DEFAULT_ROLE = "none"
    Demo().first()
    user = person("none")
    assert slack.command(f"rollback {STAGE}") == f"Not done: There is no stage {STAGE}."
    assert slack.command("status") == "There are no stages yet."
    assert user.username == "ann" and refusals() == ["not-found"]


# ---- notices and their buttons ----


def skeleton(message: dict[str, Any]) -> list[Any]:
    """A message without its words."""
    blocks = message["blocks"]
    return [
        (block["type"], [(part["type"], part.get("action_id"), sorted(part)) for part in block.get("elements", [])]) for block in blocks
    ]


def test_a_rollout_has_one_thread_and_its_buttons_are_good_once(slack: Slack) -> None:
    demo = held(slack)
    person()
    rollout = demo.rollout().pk
    mine = [message for message in slack.messages() if f"rollout {rollout}" in json.dumps(message["blocks"])]
    assert len(mine) >= 2 and "thread_ts" not in mine[0]
    assert {message["thread_ts"] for message in mine[1:]} == {mine[0]["ts"]}
    assert all(f"/rollouts/{rollout}|its page>" in json.dumps(message["blocks"]) for message in mine)
    assert slack.buttons() == ["denv:approve", "denv:rollback"]
    assert skeleton(slack.messages()[-1]) == skeleton(notice_of("rollout-held-approval")), "what the docs show is what is sent"
    assert not Outbox.objects.exclude(state="sent").exists()

    shown = slack.messages()[-1]["blocks"]
    assert slack.click("approve")["status"] == 200
    assert demo.rollout().reason != "approval"
    assert slack.replies()[-1]["replace_original"] is True
    assert slack.buttons() == [] and f"ann approved {STAGE}" in json.dumps(slack.messages()[-1]["blocks"])
    assert slack.click("approve")["body"] == "there is no such button any more"
    slack.click("rollback", blocks=shown)  # from a client that has not drawn the message anew
    assert "This button was used before" in slack.replies()[-1]["text"] and not RollbackRequest.objects.exists()


def test_buttons_that_are_refused(slack: Slack) -> None:
    demo = held(slack)
    person()
    first = slack.messages()[-1]
    # by who presses them
    person("viewer", EVE, "eve")
    slack.click("rollback", user=EVE)
    assert "You may not roll back" in slack.replies()[-1]["text"]
    slack.click("rollback", user="U0STRANGER")
    assert "I do not know who you are" in slack.replies()[-1]["text"]
    assert refusals() == ["role-missing", "slack-unlinked"] and not RollbackRequest.objects.exists()

    # by where the answer would go
    for url in (
        "http://169.254.169.254/latest",
        "https://hooks.slack.com.evil.example/x",
        slack.url.replace("://", "://x@") + "/hooks/1",
        "",
    ):
        slack.click("rollback", user="U0STRANGER", response_url=url or "about:blank")
    assert not SlackReply.objects.exists()

    # by how the rollout stands
    make_api("bob")
    Grant.objects.create(user=User.objects.get(username="bob"), model="*", role="admin")
    make_api("bob").post(f"/api/v1/stages/{STAGE}/rollout/pause", {}, content_type="application/json")
    slack.click("approve")
    said = slack.replies()[-1]
    assert said["response_type"] == "ephemeral" and "Not done" in said["text"] and f"Now: {STAGE} held" in said["text"]
    assert slack.buttons() == ["denv:approve", "denv:rollback"], "a refused button can be used by somebody else"
    assert demo.rollout().state == Rollout.State.HELD
    slack.click("rollback")  # of the same old message: whatever became of the rollout, it goes back
    assert RollbackRequest.objects.get().via == "slack"
    assert slack.replies()[-1]["replace_original"] and slack.buttons() == []

    # by its end
    demo.settle()
    asked = RollbackRequest.objects.count()
    slack.post("/_click", {"ts": first["ts"], "blocks": first["blocks"], "action_id": "denv:rollback", "user": ANN})
    assert "used before" in slack.replies()[-1]["text"] or "has ended" in slack.replies()[-1]["text"]
    assert RollbackRequest.objects.count() == asked


def test_slack_that_is_down_or_busy_delays_no_rollback(slack: Slack) -> None:
    demo = held(slack)
    person()
    slack.post("/_errors", {"errors": [{"error": "ratelimited", "status": 429, "headers": {"Retry-After": "30"}}]})
    slack.click("rollback")
    demo.settle()
    assert demo.rollout().state == Rollout.State.ROLLED_BACK
    before = len(slack.messages())
    delivery.deliver()
    row = Outbox.objects.filter(state="pending").order_by("event").first()
    assert row is not None and row.error == "Slack answered ratelimited" and len(slack.messages()) == before
    assert (row.next_at - row.event.at).total_seconds() > 25
    Outbox.objects.filter(state="pending").update(next_at=row.event.at)
    delivery.deliver()
    assert len(slack.messages()) > before and not Outbox.objects.filter(state="pending").exists()


def test_what_slack_will_never_take_is_given_up(slack: Slack) -> None:
    slack.post("/_errors", {"errors": [{"error": "is_archived"}]})
    event_append(kind="fleet.frozen", sentence="fleet a: 3 nodes are silent", level="bad", fleet="a")
    delivery.deliver()
    assert Outbox.objects.get().state == "dead" and Event.objects.filter(kind="notice.dead").exists()


def test_texts_of_others_mention_nobody_and_fit(slack: Slack) -> None:
    event_append(kind="fleet.frozen", sentence="<!channel> *x* <https://evil.example|y> " + "z" * 5000, fleet="a")
    delivery.deliver()
    text = slack.messages()[-1]["blocks"][0]["text"]
    assert text["type"] == "plain_text" and text["text"].endswith("…")


def test_slack_the_dashboard_and_an_alarm_at_once_make_one_rollback_and_one_notice(
    slack: Slack, live_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is first by a hair: one way back, a row for each of the three, and people are told once."""
    demo = held(slack)
    person()
    page = Client()
    page.force_login(User.objects.create_superuser("bob"))
    cookies = {"sessionid": page.cookies["sessionid"].value, "csrftoken": "c" * 32}
    monkeypatch.setattr("releases.services.drive.timezone", SimpleNamespace(now=lambda: demo.fleets.now))  # one clock for all three
    demo.slow = "ds-flash@2"
    demo.router(requests=400)  # the figures are there; nobody has looked at them yet
    before = Event.objects.latest("seq").seq
    answers: list[object] = []

    def click() -> None:
        answer = slack.click("rollback")
        answers.append((answer["status"], answer["took_s"] < 3))

    def form() -> None:
        url = f"{live_server.url}/stages/{STAGE}/rollback"
        answers.append(httpx.post(url, data={}, cookies=cookies, headers={"X-CSRFToken": "c" * 32}, timeout=20).status_code)

    def alarm() -> None:
        answers.append(reconcile(demo.fleets.now).failures)

    asks = {"slack": click, "ui": form, "alarm": alarm}
    barrier = threading.Barrier(len(asks))

    def ask(who: str) -> None:
        try:
            barrier.wait(20)
            asks[who]()
        finally:
            connection.close()

    threads = [threading.Thread(target=ask, args=(who,)) for who in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == ["(200, True)", "0", "302"]
    demo.settle()
    delivery.deliver()
    assert RollbackRequest.objects.count() == 1 and demo.rollout().state == Rollout.State.ROLLED_BACK
    since = list(Event.objects.filter(seq__gt=before).order_by("seq"))
    rows = [(row.via, row.actor) for row in since if row.kind == "rollback.requested" or row.evidence.get("alarm") == "ttft-p99"]
    assert sorted(rows) == [("alarm", "system"), ("slack", "ann"), ("ui", "bob")], [row.sentence for row in since]
    assert [row.kind for row in since].count("rollout.rolling-back") == 1
    told = [message["text"] for message in slack.messages() if "is taken back to" in message["text"]]
    assert len(told) == 1, told
