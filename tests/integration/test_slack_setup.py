"""Setting Slack up: over REST, where secrets only go in, and by the manifest."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from denvweb.auth import token_create
from denvweb.core.errors import UnavailableError
from frontend.models import SlackApp
from frontend.slack.app import slack_config

pytestmark = pytest.mark.django_db

SETUP = {"team": "T0123456789", "bot_token": "xoxb-1-a", "signing_secret": "5ec2e7"}


def put(api: Client, body: dict[str, str]) -> int:
    return int(api.put("/api/v1/slack", body, content_type="application/json").status_code)


def test_secrets_go_in_encrypted_and_do_not_come_out(settings: Any) -> None:
    api = Client(headers={"authorization": f"Bearer {token_create(user=User.objects.create_superuser('root'))}"})
    assert api.get("/api/v1/slack").json()["team"] == ""
    assert put(api, SETUP) == 204
    shown = api.get("/api/v1/slack")
    assert shown.json() == {"team": "T0123456789", "bot_token_set": True, "signing_secret_set": True, "app_token_set": False}
    row = SlackApp.objects.get()
    assert "xoxb" not in row.bot_token and "5ec2e7" not in row.signing_secret
    assert put(api, {"team": "T0123456789", "app_token": "xapp-1"}) == 204
    config = slack_config()
    assert (config.bot_token, config.signing_secret, config.app_token) == ("xoxb-1-a", "5ec2e7", "xapp-1")
    assert put(api, SETUP | {"bot_token": "xoxp-of-a-person"}) == 400
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "a new key of the installation"
    assert slack_config().bot_token == "xoxb-1-a", "the old key still reads"
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(UnavailableError, match="DENV_SECRET_KEY has changed"):
        slack_config()


def test_only_administrators_set_it_up() -> None:
    api = Client(headers={"authorization": f"Bearer {token_create(user=User.objects.create_user('ann'))}"})
    assert put(api, SETUP) == 403 and api.get("/api/v1/slack").status_code == 403


@pytest.mark.parametrize("socket_mode", [False, True])
def test_the_manifest_names_what_exists(client: Client, socket_mode: bool) -> None:
    out = io.StringIO()
    call_command("slack_manifest", url="https://denv.example.com/", socket_mode=socket_mode, stdout=out)
    made = json.loads(out.getvalue())
    command, interactivity = made["features"]["slash_commands"][0], made["settings"]["interactivity"]
    assert made["settings"]["socket_mode_enabled"] is socket_mode
    assert ("url" in command, "request_url" in interactivity) == (not socket_mode, not socket_mode)
    for url in filter(None, (command.get("url"), interactivity.get("request_url"))):
        assert url.startswith("https://denv.example.com/slack/")
        path = url.removeprefix("https://denv.example.com")
        assert client.post(path, "a=b", content_type="application/x-www-form-urlencoded").content.startswith(b"Slack is not set up")
