"""The command's column of the table of roles: the real commands against the real application, and what is refused is in the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from django.test import Client

from denvweb.access import ALLOWED, Action, Role
from denvweb.auth import token_create
from denvweb.cli import main
from denvweb.core.errors import DenvError, ForbiddenError, NotFoundError, UnavailableError
from tests.integration.rollouts_world import STAGE, Demo, release_yaml
from tests.integration.test_access_roles import judge, person

pytestmark = pytest.mark.django_db
COMMANDS: dict[Action, tuple[str, ...]] = {
    Action.SEE: ("rollout", "show", STAGE),
    Action.START: ("release", "-f", "FILE"),
    Action.PROMOTE: ("rollout", "promote", STAGE),
    Action.PAUSE: ("rollout", "pause", STAGE),
    Action.SCALE: ("scale", STAGE, "--units", "2"),
    Action.ROLL_BACK: ("rollback", STAGE, "--yes", "--no-wait"),
}


def answer(request: httpx.Request) -> httpx.Response:
    """Django's answer to a request of the command."""
    kind = request.headers.get("content-type", "application/octet-stream")
    found = Client().generic(request.method, str(request.url.raw_path, "ascii"), request.content, kind, headers=dict(request.headers))
    return httpx.Response(found.status_code, content=found.content, headers=dict(found.headers))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """The client's requests go to the application in this very process, so that both see one database transaction."""
    settings.DEFAULT_ROLE, settings.ALLOWED_HOSTS = "none", ["*"]
    real = httpx.Client
    monkeypatch.setattr("denvweb.cli.client.httpx.Client", lambda **options: real(transport=httpx.MockTransport(answer), **options))
    monkeypatch.setenv("DENV_URL", "http://denv.test")


def status_of(words: tuple[str, ...], file: Path) -> int:
    """What the command was answered with, as a status: its own errors name it."""
    error = CliRunner().invoke(main.cli, [str(file) if word == "FILE" else word for word in words]).exception
    if isinstance(error, ForbiddenError):
        return 403
    if isinstance(error, NotFoundError):
        return 404
    assert error is None or isinstance(error, DenvError | SystemExit), (words, error)
    assert not isinstance(error, UnavailableError), (words, error)  # nothing broke
    return 200 if error is None else 409


def test_role_by_action_by_the_command(in_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    demo = Demo()
    demo.first()
    demo.release(block=32)  # something to roll back, or the command says so without asking
    demo.settle()
    file = tmp_path / "denv.yaml"
    file.write_text(release_yaml(block=64))
    for role in sorted(Role, key=lambda role: Action.ROLL_BACK in ALLOWED[role]):  # who may roll back comes last, for then it is gone
        monkeypatch.setenv("DENV_TOKEN", token_create(user=person(role, name=f"the-{role}")))
        for action, words in COMMANDS.items():
            judge(role, action, "cli", status_of(words, file))
