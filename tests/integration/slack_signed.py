"""Requests as Slack signs and sends them, straight into the application: no process, no socket."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlencode

from django.test import Client

from frontend.slack.signature import signature_of
from tests.integration.slack_fake import SECRET, TEAM

FORM = "application/x-www-form-urlencoded"


def signed(body: str, *, at: str = "") -> dict[str, str]:
    """The two headers."""
    stamp = at or str(int(time.time()))
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": signature_of(SECRET, stamp, body.encode())}


def post(path: str, body: str, headers: dict[str, str] | None = None) -> Any:
    """To `/slack/...`; the response."""
    return Client().post(f"/slack/{path}", body, content_type=FORM, headers=signed(body) if headers is None else headers)


def command_body(text: str, user: str, *, team: str = TEAM) -> str:
    """A slash command."""
    return urlencode({"team_id": team, "user_id": user, "text": text, "trigger_id": str(time.monotonic_ns())})


def say(text: str, user: str) -> str:
    """What the author of a slash command reads."""
    answer = post("command", command_body(text, user))
    assert answer.status_code == 200
    return str(answer.json()["text"])


def press(verb: str, value: str, user: str, *, url: str = "https://hooks.slack.com/actions/1") -> int:
    """A click on a button that carries `value`; the status."""
    payload = {
        "type": "block_actions",
        "team": {"id": TEAM},
        "user": {"id": user, "username": "roadrunner"},
        "message": {"blocks": []},
        "response_url": url,
        "trigger_id": str(time.monotonic_ns()),
        "actions": [{"action_id": f"denv:{verb}", "value": value}],
    }
    return int(post("interaction", urlencode({"payload": json.dumps(payload)})).status_code)
