"""Role by action by face: every cell is tried against the same state, and undone. What is refused is in the journal, and changes nothing.

Each face is the real one: the REST API by token, the pages by session, the `denv` command over the API, Slack by signed requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.db import transaction
from django.test import Client

from denvweb.access import ALLOWED, Action, Role
from denvweb.auth import token_create
from denvweb.cli import main
from denvweb.core.errors import ForbiddenError, NotFoundError
from denvweb.models import Grant
from frontend.models import SlackUser
from frontend.slack.app import slack_app_set
from metrics.models import Event
from releases.models import Rollout
from tests.integration.rollouts_world import STAGE, Demo, release_yaml
from tests.integration.slack_fake import SECRET, TEAM, TOKEN
from tests.integration.slack_signed import say

pytestmark = pytest.mark.django_db

API, UI = f"/api/v1/stages/{STAGE}", f"/stages/{STAGE}"
NEXT = release_yaml(block=64, units="{ min: 2, max: 3 }")
ADD_FREEZE = ("freeze", "add", "--on", "ds-flash", "--from", "2030-01-01", "--to", "2030-01-02", "--zone", "UTC", "--reason", "x")
GRANT = {"user": "somebody", "model": "ds-flash", "role": "viewer"}


@dataclass(frozen=True, slots=True)
class Row:
    """One action, as each face asks for it; a face that does not offer it has no word for it."""

    api: tuple[str, dict[str, Any]]
    cli: tuple[str, ...]
    ui: tuple[str, dict[str, Any]] | None = None
    slack: str = ""
    needs: frozenset[Action] = frozenset()  # beside the action itself


TABLE: Mapping[Action, Row] = {
    Action.SEE: Row((API, {}), ("rollout", "show", STAGE), (UI, {}), "status"),
    Action.PAUSE: Row((f"{API}/rollout/pause", {}), ("rollout", "pause", STAGE), (f"{UI}/rollout/pause", {}), "pause"),
    Action.ROLL_BACK: Row((f"{API}/rollback", {}), ("rollback", STAGE, "--yes", "--no-wait"), (f"{UI}/rollback", {}), "rollback"),
    Action.SCALE: Row((f"{API}/scale", {"units": 3}), ("scale", STAGE, "--units", "3")),
    Action.START: Row(
        ("/api/v1/releases", {"yaml": NEXT}), ("release", "-f", "FILE"), ("/releases/new", {"action": "release", "yaml": NEXT})
    ),
    Action.PROMOTE: Row((f"{API}/rollout/promote", {}), ("rollout", "promote", STAGE), (f"{UI}/rollout/promote", {}), "promote"),
    Action.APPROVE: Row((f"{API}/rollout/promote", {}), ("rollout", "promote", STAGE), (f"{UI}/rollout/promote", {}), "approve"),
    Action.BREAK_GLASS: Row(
        ("/api/v1/releases", {"yaml": NEXT, "break_glass": "an outage"}),
        ("release", "-f", "FILE", "--break-glass", "an outage"),
        needs=frozenset({Action.START}),
    ),
    Action.ADMIN: Row(("/api/v1/grants", GRANT), ADD_FREEZE, ("/access/give", GRANT)),
}


@dataclass(frozen=True, slots=True)
class Faces:
    """One person, at each of the four."""

    name: str
    token: str
    slack_user: str
    api: Client
    ui: Client

    def ask(self, face: str, action: Action, *, file: Path, env: pytest.MonkeyPatch) -> bool:
        """Whether the face took it, by its own answer."""
        row = TABLE[action]
        if face == "slack":
            return not say(f"{row.slack} {STAGE}", self.slack_user).startswith("Not done")
        if face == "cli":
            env.setenv("DENV_TOKEN", self.token)
            error = CliRunner().invoke(main.cli, [str(file) if word == "FILE" else word for word in row.cli]).exception
            assert error is None or isinstance(error, ForbiddenError | NotFoundError), (self.name, action, error)
            return error is None
        path, body = row.api if face == "api" else row.ui or ("", {})
        client = self.api if face == "api" else self.ui
        if action is Action.SEE:
            return client.get(path).status_code == 200
        if face == "api":
            return client.post(path, body, content_type="application/json").status_code in {200, 201, 202}
        answer = client.post(path, body)
        return answer.status_code == 302 and [message.extra_tags for message in get_messages(answer.wsgi_request)][-1:] == ["ok"]


def person(role: Role, number: int) -> Faces:
    user = User.objects.create_user(f"the-{role}")
    Grant.objects.create(user=user, model="ds-flash", role=role)
    slack_user, token, ui = f"U00000000{number:02d}", token_create(user=user), Client()
    SlackUser.objects.create(team=TEAM, user=slack_user, account=user)
    ui.force_login(user)
    return Faces(user.username, token, slack_user, Client(headers={"authorization": f"Bearer {token}"}), ui)


def over_django(request: httpx.Request) -> httpx.Response:
    """The command's requests go to the application in this very process, so that both see one transaction."""
    kind = request.headers.get("content-type", "application/octet-stream")
    found = Client().generic(request.method, str(request.url.raw_path, "ascii"), request.content, kind, headers=dict(request.headers))
    return httpx.Response(found.status_code, content=found.content, headers=dict(found.headers))


@contextmanager
def undone() -> Iterator[None]:
    """Whatever happens inside has not happened."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture
def everybody(monkeypatch: pytest.MonkeyPatch, settings: Any) -> dict[Role, Faces]:
    """One person of each role, known to every face."""
    settings.DEFAULT_ROLE, settings.ALLOWED_HOSTS = "none", ["*"]
    slack_app_set(team=TEAM, bot_token=TOKEN, signing_secret=SECRET, actor="root", via="api")
    User.objects.create_user("somebody")
    real = httpx.Client
    monkeypatch.setattr("denvweb.cli.client.httpx.Client", lambda **options: real(transport=httpx.MockTransport(over_django), **options))
    monkeypatch.setenv("DENV_URL", "http://denv.test")
    return {role: person(role, number) for number, role in enumerate(Role)}


def states() -> Iterator[tuple[Action, ...]]:
    """A stage as it goes on, and the actions that it has a use for in each state."""
    demo = Demo()
    demo.first(units="{ min: 2, max: 3 }")
    yield (Action.SEE, Action.SCALE, Action.START, Action.BREAK_GLASS, Action.ADMIN)
    demo.release(block=32, approve="manual")
    demo.settle()
    assert demo.rollout().state == Rollout.State.ROLLING
    yield (Action.PAUSE, Action.PROMOTE, Action.ROLL_BACK)
    demo.through(until={Rollout.State.HELD})
    yield (Action.APPROVE,)


def test_every_role_tries_every_action_by_every_face(everybody: dict[Role, Faces], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "denv.yaml"
    file.write_text(NEXT)
    tried = 0
    for action in (action for actions in states() for action in actions):
        row = TABLE[action]
        for face in ("api", "cli", *(["ui"] if row.ui else []), *(["slack"] if row.slack else [])):
            for role, faces in everybody.items():
                before = Event.objects.latest("seq").seq
                with undone():
                    taken = faces.ask(face, action, file=file, env=monkeypatch)
                    judge(role, action, face, taken, list(Event.objects.filter(seq__gt=before).order_by("seq")))
                tried += 1
    assert set(TABLE) == set(Action) and tried == len(Role) * (9 + 9 + 7 + 5)  # by the API and the command all, the others as they offer


def judge(role: Role, action: Action, face: str, taken: bool, events: list[Event]) -> None:
    cell = f"{role} {action} {face}: taken={taken} {[event.sentence for event in events]}"
    may = TABLE[action].needs | {action} <= ALLOWED[role]
    assert taken == may, cell
    if action is Action.SEE:
        assert not events, cell
    elif may:
        assert events and not any(event.kind == "change.refused" for event in events), cell
        assert {(event.actor, event.via) for event in events} >= {(f"the-{role}", face)}, cell
    else:
        code = "role-missing" if Action.SEE in ALLOWED[role] else "not-found"
        found = [(event.kind, event.actor, event.via, event.evidence["code"]) for event in events]
        looked_first = face == "cli" and code == "not-found" and not found  # a command that found nothing to ask about asked for no change
        assert looked_first or found == [("change.refused", f"the-{role}", face, code)], cell


def test_slack_has_no_word_for_the_rest(everybody: dict[Role, Faces]) -> None:
    before = Event.objects.latest("seq").seq
    for verb in (action.value.split()[0] for action, row in TABLE.items() if not row.slack):
        for role, faces in everybody.items():
            assert say(f"{verb} {STAGE}", faces.slack_user).startswith("Not done: Write /denv status"), (role, verb)
    assert Event.objects.latest("seq").seq == before
