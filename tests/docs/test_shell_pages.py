"""What the pages about curl and CI say to type is typed here: commands, workflows, and each in the order of the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from django.contrib.auth.models import User
from django.urls import Resolver404, resolve
from pytest_django.live_server_helper import LiveServer

from denvweb.auth import token_create
from denvweb.cli.main import cli
from frontend.models import SlackApp
from metrics.models import Channel, Event
from releases.models import Release
from tests.docs.blocks import DOCS, blocks
from tests.docs.shell import Shell
from tests.integration.rollouts_world import Demo

GITHUB, GITLAB, BY_CURL = (yaml.safe_load(text) for text in blocks("howto/ci.md", "yaml"))
LOG_IN = blocks("howto/curl.md", "sh")[0]
API_CALL = re.compile(r'curl (?:[^|\n]|\\\n)*?"\$DENV_URL(/api/v1/[^"?]+)')


def steps(workflow: dict[str, Any], job: str) -> str:
    """The commands of a GitHub job."""
    return "\n".join(step["run"] for step in workflow["jobs"][job]["steps"] if "run" in step)


def script(pipeline: dict[str, Any], job: str) -> str:
    """The commands of a GitLab job."""
    return "\n".join(pipeline[job]["script"])


@pytest.fixture
def shell(live_server: LiveServer, tmp_path: Path) -> Shell:
    """A stage in service, and an administrator's token."""
    demo = Demo()
    demo.first()
    return Shell(tmp_path, demo, live_server.url, token_create(user=User.objects.create_superuser("ann")))


@pytest.mark.django_db(transaction=True)
def test_the_page_about_curl_from_top_to_bottom(shell: Shell) -> None:
    shell.write(block=32, approve="manual")
    said = shell.run("\n".join(blocks("howto/curl.md", "sh")))
    assert shell.token not in said
    assert '"username": "ann"' in said and "ds-flash/prod-us steady: release 1 serves on 2 units" in said
    assert [release.number for release in Release.objects.order_by("number")] == [1, 2], "the same key twice is one release"
    assert shell.demo.rollout().kind == "rollback"
    assert [event.actor for event in Event.objects.filter(via="api", sentence__contains="TTFT doubled")] == ["ann"]
    assert (shell.folder / "denv.curlrc").stat().st_mode & 0o077 == 0

    secrets = {"BOT_TOKEN": "xoxb-1-a", "SIGNING_SECRET": "5ec2e7", "APP_TOKEN": ""}
    shell.run("\n".join(text for text in blocks("howto/slack.md", "sh") if "curl" in text), secrets)
    assert SlackApp.objects.get().team == "T0123456789" and Channel.objects.get().address == "C0123456789"


@pytest.mark.django_db(transaction=True)
def test_the_workflows_plan_release_and_go_back(shell: Shell) -> None:
    shell.write(limit="2%")
    ci = {"CI": "true", "GITHUB_SHA": "0f3c2a", "CI_COMMIT_SHA": "0f3c2a"}
    assert '"error_count": 0' in shell.run(steps(BY_CURL, "plan"), ci)
    assert "0 errors" in shell.run(steps(GITHUB, "plan"), ci)
    assert script(GITLAB, "plan") == steps(GITHUB, "plan")
    assert not Release.objects.filter(number=2).exists()

    assert "release 2 serves all" in shell.run(steps(BY_CURL, "release"), ci)
    assert Release.objects.get(number=2).note == "0f3c2a"
    shell.write(limit="3%")
    assert script(GITLAB, "release").replace("CI_COMMIT_SHA", "GITHUB_SHA") == steps(GITHUB, "release")
    shell.run(steps(GITHUB, "release"), ci, free=True)
    assert Release.objects.get(number=3).note == "0f3c2a" and shell.demo.rollout().state == "succeeded"
    assert "rolled-back" in shell.run(script(GITLAB, "roll back"), ci, free=True)


def test_each_denv_command_of_the_workflows_is_one() -> None:
    texts = [steps(GITHUB, job) for job in GITHUB["jobs"]]
    texts += [script(GITLAB, job) for job in GITLAB if "script" in GITLAB[job]]
    lines = [line for text in texts for line in text.splitlines()]
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "denv"
        parsed(cli, words[1:])


def parsed(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    """Read a command line as the command would, and do nothing; click's error when it is none."""
    context = command.make_context(command.name or "denv", list(words), parent=parent)
    if not isinstance(command, click.Group) or not (rest := [word for word in words if not word.startswith("-")]):
        return
    found = command.get_command(context, rest[0])
    if found is not None:
        parsed(found, words[words.index(rest[0]) + 1 :], context)
    else:
        assert command.invoke_without_command, f"there is no command {rest[0]}"


def test_each_call_of_the_api_in_the_docs_leads_somewhere() -> None:
    calls = [(page, path) for page in sorted(DOCS.rglob("*.md")) for path in API_CALL.findall(page.read_text(encoding="utf-8"))]
    assert len(calls) > 15
    for page, path in calls:
        try:
            resolve(re.sub(r"\$\w+", "r-1", path))
        except Resolver404:
            pytest.fail(f"{page.name}: {path} is no path of the API")


def test_the_workflows_are_what_github_and_gitlab_read() -> None:
    for workflow in (GITHUB, BY_CURL):
        assert {"pull_request", "push"} <= set(workflow[True])  # YAML 1.1 reads the key `on` so
        assert set(workflow["jobs"]) == {"plan", "release"}
        for job in workflow["jobs"].values():
            assert job["runs-on"] and all(("uses" in step) != ("run" in step) for step in job["steps"])
    assert all("script" in GITLAB[name] and "rules" in GITLAB[name] for name in set(GITLAB) - {"variables", "default"})
