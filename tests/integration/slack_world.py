"""A Slack that runs as a process of its own, set up in denv, and what people do there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from django.contrib.auth.models import User

from denvweb.models import Grant
from frontend import delivery
from frontend.models import SlackUser
from frontend.slack.app import slack_app_set
from frontend.slack.replies import replies_send
from metrics.models import Event
from metrics.services import channel_create
from releases.models import Rollout
from tests.integration.rollouts_world import Demo
from tests.integration.slack_fake import CHANNEL, SECRET, TEAM, TOKEN
from tests.integration.slack_fake_socket import APP_TOKEN

ANN, EVE = "U0000000ANN", "U0000000EVE"


@dataclass
class Slack:
    """The other process, and what a person does there."""

    url: str

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.post(self.url + path, json=body, timeout=20).json()
        return answer

    def command(self, text: str, user: str = ANN) -> str:
        """What whoever typed it reads."""
        answer = self.post("/_command", {"text": text, "user": user})
        assert answer["status"] == 200 and answer["took_s"] < 3, answer
        return str(json.loads(answer["body"])["text"])

    def click(self, verb: str, user: str = ANN, **more: Any) -> dict[str, Any]:
        return self.post("/_click", {"ts": self.messages()[-1]["ts"], "action_id": f"denv:{verb}", "user": user, **more})

    def messages(self) -> list[dict[str, Any]]:
        return list(httpx.get(self.url).json()["messages"])

    def replies(self) -> list[dict[str, Any]]:
        replies_send()
        return list(httpx.get(self.url).json()["replies"])

    def buttons(self, index: int = -1) -> list[str]:
        blocks = self.messages()[index]["blocks"]
        return [element["action_id"] for block in blocks if block["type"] == "actions" for element in block["elements"]]


@contextmanager
def started(settings: Any, denv: str, *, socket_mode: bool = False) -> Iterator[Slack]:
    """The process, with denv's settings leading to it: it calls denv at that address, or waits to be called."""
    argv = [sys.executable, "-m", "tests.integration.slack_fake", "--denv", denv, *(["--socket"] if socket_mode else [])]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        url = process.stdout.readline().strip()
        settings.SLACK_API_URL, settings.SLACK_HOOKS_URL, settings.PUBLIC_URL = f"{url}/api/", url, denv
        secrets = {"signing_secret": "", "app_token": APP_TOKEN} if socket_mode else {"signing_secret": SECRET}
        slack_app_set(team=TEAM, bot_token=TOKEN, actor="root", via="api", **secrets)
        channel_create(kind="slack", name="on-call", address=CHANNEL, actor="root", via="api")
        yield Slack(url)
        process.stdin.close()


def person(role: str = "admin", slack_user: str = ANN, name: str = "ann") -> User:
    user = User.objects.create_user(name)
    Grant.objects.create(user=user, model="ds-flash", role=role)
    SlackUser.objects.create(team=TEAM, user=slack_user, account=user)
    return user


def refusals() -> list[str]:
    return [event.evidence["code"] for event in Event.objects.filter(kind="change.refused", via="slack").order_by("seq")]


def held(slack: Slack) -> Demo:
    """A canary that waits for an approval, with its notice in Slack."""
    demo = Demo()
    demo.first()
    delivery.deliver()
    demo.release(block=32, approve="manual")
    demo.through(until={Rollout.State.HELD})
    delivery.deliver()
    return demo
