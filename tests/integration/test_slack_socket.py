"""Socket Mode: the same commands and clicks over a connection that denv opens, against a Slack that is a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from denvweb.core.errors import UnavailableError
from frontend.slack.app import slack_app_set
from frontend.slack.socket import connect
from metrics.models import Event
from releases.models import RollbackRequest
from tests.integration.rollouts_world import STAGE
from tests.integration.slack_fake import TEAM
from tests.integration.slack_world import ANN, Slack, held, person, refusals, started

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def slack(settings: Any) -> Iterator[Slack]:
    """Slack set up for Socket Mode, and denv connected to it."""
    settings.DEFAULT_ROLE = "viewer"
    with started(settings, "https://denv.example.com", socket_mode=True) as here:
        client = connect()
        yield here
        client.auto_reconnect_enabled = False  # type: ignore[attr-defined]  # of all but the base class
    client.close()  # after the other end, or it would wait three seconds for more to read


def test_commands_and_clicks_do_what_they_do_over_http(slack: Slack) -> None:
    demo = held(slack)
    person()
    assert slack.command(f"status {STAGE}").startswith(f"{STAGE}: ")
    assert "I do not know who you are here" in slack.command(f"rollback {STAGE}", "U0STRANGER") and refusals() == ["slack-unlinked"]
    assert slack.buttons() == ["denv:approve", "denv:rollback"]
    assert slack.click("approve")["status"] == 200
    assert demo.rollout().reason != "approval"
    assert slack.replies()[-1]["replace_original"] is True and slack.buttons() == []
    assert slack.command(f"rollback {STAGE} too slow") == f"ann asked to roll back {STAGE}: too slow"
    wish = RollbackRequest.objects.get()
    assert (wish.requested_by, wish.via, wish.reason) == ("ann", "slack", "too slow")


def test_an_envelope_is_done_once_and_only_for_the_own_workspace(slack: Slack) -> None:
    person()
    form = {"team_id": TEAM, "user_id": ANN, "user_name": "ann", "command": "/denv", "text": "rollback no/such"}
    first = slack.post("/_envelope", {"kind": "slash_commands", "payload": form})
    assert json.loads(first["body"])["text"].startswith("Not done: You may not roll back no;")
    again = slack.post("/_envelope", {"kind": "slash_commands", "payload": form, "envelope": first["envelope"], "within_s": 0.5})
    assert again["body"] == "operation_timeout", "it was neither done nor acknowledged a second time"
    other = slack.post("/_envelope", {"kind": "slash_commands", "payload": form | {"team_id": "T0000000002"}})
    assert (other["status"], other["body"]) == (200, "null"), "taken, and of no concern"
    assert [event.actor for event in Event.objects.filter(kind="change.refused")] == ["ann"]


def test_a_connection_that_slack_closes_is_opened_anew(slack: Slack) -> None:
    person()
    assert slack.post("/_refresh", {})["opened"] == 2
    assert slack.command("status") == "There are no stages yet."


def test_without_an_app_token_it_says_so() -> None:
    slack_app_set(team=TEAM, bot_token="xoxb-1", signing_secret="s", actor="root", via="api")
    with pytest.raises(UnavailableError, match="xapp-"):
        connect()
