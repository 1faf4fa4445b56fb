"""Lists over REST: what filters leave, and pages that hold everything once."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from denvweb.auth import token_create
from denvweb.cli.main import cli
from denvweb.models import Grant
from fleets.services import node_cordon
from releases.models import Model, Rollout, Stage
from tests.integration.rollouts_world import STAGE, Demo

pytestmark = pytest.mark.django_db


def _client(name: str) -> Client:
    user, _ = User.objects.get_or_create(username=name)
    return Client(headers={"authorization": f"Bearer {token_create(user=user)}"})


def _pages(api: Client, path: str, cursor: str, limit: int, **filters: Any) -> list[dict[str, Any]]:
    """Everything of a list, a few at a time."""
    rows: list[dict[str, Any]] = []
    place: dict[str, str] = {}
    while True:
        answer = api.get(f"/api/v1/{path}", {**filters, **place, "limit": limit})
        assert answer.status_code == 200, answer.json()
        body = answer.json()
        assert len(body["results"]) <= limit
        rows += body["results"]
        if body["next"] is None:
            return rows
        place = {cursor: body["next"]}


@pytest.fixture
def denv(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command against this very process; what it prints, read as JSON with `--json`."""
    api = _client("ada")
    real = httpx.Client

    def over_django(request: httpx.Request) -> httpx.Response:
        answer = api.generic(request.method, request.url.raw_path.decode())
        return httpx.Response(answer.status_code, content=answer.content)

    monkeypatch.setattr("denvweb.cli.client.httpx.Client", lambda **options: real(transport=httpx.MockTransport(over_django), **options))
    monkeypatch.setattr("denvweb.cli.client._MOST_PER_PAGE", 2)
    monkeypatch.setenv("DENV_URL", "http://denv.test")
    monkeypatch.setenv("DENV_TOKEN", "tok-1.x")

    def run(*words: str) -> Any:
        done = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout) if "--json" in words else done.stdout

    return run


def _refused(api: Client, path: str, **query: Any) -> list[str]:
    answer = api.get(f"/api/v1/{path}", query)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), answer.json()
    return sorted(answer.json()["fields"])


def test_rollouts_releases_stages_and_events_are_filtered_and_paged(settings: Any, denv: Callable[..., Any]) -> None:
    demo, api = Demo(), _client("ada")
    demo.first()
    demo.release(block=32)
    demo.through(until={"succeeded"})
    demo.release(block=64)
    now = timezone.now()

    every = _pages(api, "rollouts", "before", 1)
    assert [row["to_release"] for row in every] == [3, 2, 1]
    assert [row["to_release"] for row in _pages(api, "rollouts", "before", 2, state="succeeded", stage=STAGE)] == [2, 1]
    assert [row["to_release"] for row in _pages(api, "rollouts", "before", 2, state="active", model="ds-flash")] == [3]
    Rollout.objects.filter(pk=every[2]["id"]).update(created_at=now - timedelta(days=2))
    old = {"until": (now - timedelta(days=1)).isoformat()}
    assert [row["to_release"] for row in _pages(api, "rollouts", "before", 5, **old)] == [1]
    assert [row["to_release"] for row in _pages(api, "rollouts", "before", 5, since=old["until"])] == [3, 2]
    assert _pages(api, "rollouts", "before", 5, stage="ds-flash/other") == _pages(api, "rollouts", "before", 5, kind="rollback") == []
    assert _refused(api, "rollouts", state="gone", since="lately", limit=0) == ["limit", "since", "state"]
    assert _refused(api, "rollouts", before="r-nobody") == ["before"]

    releases = "models/ds-flash/releases"
    assert [row["number"] for row in _pages(api, releases, "before", 2)] == [3, 2, 1]
    assert [row["number"] for row in _pages(api, releases, "before", 2, stage="prod-us", by="ada", held="false")] == [3, 2, 1]
    for nothing in ({"stage": "staging"}, {"by": "eve"}, {"held": "true"}, {"until": "2026-01-01"}):
        assert _pages(api, releases, "before", 3, **nothing) == [], nothing
    assert _refused(api, releases, held="perhaps", before="x") == ["before", "held"]

    other = Model.objects.create(name="other")
    for position in range(3):
        Stage.objects.create(
            model=other, name=f"s{position}", position=position, settings={**demo.stage().settings, "name": f"s{position}"}
        )
    keys = [STAGE, "other/s0", "other/s1", "other/s2"]
    assert [row["stage"] for row in _pages(api, "stages", "after", 1)] == keys
    assert [row["stage"] for row in _pages(api, "stages", "after", 2, model="other", fleet="gb200-use1")] == keys[1:]
    assert [row["stage"] for row in _pages(api, "stages", "after", 2, state="steady")] == keys[:1]
    assert [row["stage"] for row in _pages(api, "stages", "after", 2, state="empty", fleet="h200")] == []
    assert _refused(api, "stages", state="fine", after="x") == ["state"] and _refused(api, "stages", after="x") == ["after"]

    events = _pages(api, "events", "before", 5, kind="rollout.", stage=STAGE)
    assert events and all(row["kind"].startswith("rollout.") for row in events)
    assert [row["seq"] for row in events] == sorted({row["seq"] for row in events}, reverse=True)
    whole = _pages(api, "events", "before", 50)
    assert _pages(api, "events", "before", 2, actor="ada", via="cli") == [row for row in whole if row["actor"] == "ada"] != []
    assert _pages(api, f"stages/{STAGE}/events", "before", 7, text="CANARY") == [
        row for row in whole if row["stage"] == STAGE and "canary" in row["sentence"].lower()
    ]
    assert _pages(api, "events", "before", 5, until=old["until"]) == _pages(api, "events", "before", 5, level="bad") == []
    assert _refused(api, "events", level="loud", since="0001-01-01T00:00:00+14:00") == ["level", "since"]

    assert [row["id"] for row in denv("rollouts", "--stage", STAGE, "--json")] == [row["id"] for row in every]
    assert [row["to_release"] for row in denv("rollouts", "--since", "1d", "--limit", "1", "--json")] == [3]
    assert "1 -> 2" in denv("rollouts", "--state", "succeeded") and denv("rollouts", "--kind", "rollback") == "No rollout fits.\n"
    assert [row["number"] for row in denv("releases", "ds-flash", "--stage", "prod-us", "--not-held", "--json")] == [3, 2, 1]
    assert [row["stage"] for row in denv("stages", "--json")] == keys
    assert denv("stages", "--model", "other", "--state", "steady") == "No stage fits.\n"
    assert [row["seq"] for row in denv("events", "--limit", "500", "--json")] == [row["seq"] for row in whole]
    assert f"{STAGE}: " in denv("events", "--kind", "rollout.", "--until", timezone.now().isoformat(), "--limit", "3")

    settings.DEFAULT_ROLE = "none"
    eve = _client("eve")
    assert _pages(eve, "rollouts", "before", 5) == _pages(eve, "stages", "after", 5) == []
    Grant.objects.create(user=User.objects.get(username="eve"), model="other", role="viewer", created_by="ada")
    assert [row["stage"] for row in _pages(eve, "stages", "after", 2)] == keys[1:] and _pages(eve, "rollouts", "before", 5) == []


def test_short_lists_have_pages_too_which_stay_right_when_rows_go(denv: Callable[..., Any]) -> None:
    Demo(domains=1)
    root = User.objects.create_superuser("root")
    api = Client(headers={"authorization": f"Bearer {token_create(user=root, label='mine')}"})
    for number in range(3):
        token_create(user=root, label=f"t{number}")
        for name in ("ann", "bea"):
            user, _ = User.objects.get_or_create(username=name)
            Grant.objects.get_or_create(user=user, model=f"m{number}", role="viewer", created_by="root")
        window = {"zone": "UTC", "reason": f"w{number}", "begins_at": "2030-01-01T00:00:00Z", "ends_at": "2030-01-02T00:00:00Z"}
        assert api.post("/api/v1/freeze-windows", window, content_type="application/json").status_code == 201
    assert [row["name"] for row in _pages(api, "tokens", "before", 1)] == ["t2", "t1", "t0", "mine", ""]  # the command's own came first
    grants = _pages(api, "grants", "after", 4)
    assert [(row["model"], row["user"]) for row in grants] == [(f"m{number}", name) for number in range(3) for name in ("ann", "bea")]
    assert [row["reason"] for row in _pages(api, "freeze-windows", "after", 2)] == ["w0", "w1", "w2"]
    assert [row["reason"] for row in denv("freeze", "list", "--json")] == ["w0", "w1", "w2"]
    assert (
        [row["fleet"] for row in _pages(api, "fleets", "after", 1)] == [row["fleet"] for row in denv("fleets", "--json")] == ["gb200-use1"]
    )
    for path in ("channels", "secrets", "sessions", "identities", "slack/links"):
        assert _pages(api, path, "before" if path == "sessions" else "after", 1) == [], path

    first = api.get("/api/v1/tokens", {"limit": 1}).json()
    assert api.delete(f"/api/v1/tokens/{first['results'][0]['id']}").status_code == 204
    rest = api.get("/api/v1/tokens", {"limit": 2, "before": first["next"]}).json()
    assert [row["name"] for row in rest["results"]] == ["t1", "t0"], "the row that the cursor names is gone, and nothing is left out"
    assert _refused(api, "tokens", limit=0) == _refused(api, "fleets", limit=501) == ["limit"]


def test_one_node_is_what_the_list_says_of_it() -> None:
    Demo(domains=1)
    api = _client("ada")
    (row,) = _pages(api, "nodes", "after", 2)
    assert api.get(f"/api/v1/nodes/{row['node']}").json() == row
    assert api.get("/api/v1/nodes/nobody").status_code == 404


def test_nodes_are_filtered_and_paged(denv: Callable[..., Any]) -> None:
    demo, api = Demo(domains=4), _client("ada")
    demo.first(units=1)
    names = [f"gb200-use1-d0{number}-n01" for number in range(1, 5)]
    node_cordon(node=names[2], cordoned=True, actor="ada", via="cli", reason="fan replaced")
    rows = _pages(api, "nodes", "after", 3)
    assert [row["node"] for row in rows] == names
    assert sorted(row["used"] for row in rows) == [0, 0, 0, 8] and all(row["used"] + row["free"] == row["gpus"] for row in rows)
    assert rows[0]["state"] == "ready" and rows[0]["last_report_at"]
    assert [(row["node"], row["reason"]) for row in _pages(api, "nodes", "after", 1, cordoned="true")] == [(names[2], "fan replaced")]
    assert [row["node"] for row in _pages(api, "nodes", "after", 1, cordoned="false", state="ready", fleet="gb200-use1")] == [
        name for name in names if name != names[2]
    ]
    assert _pages(api, "nodes", "after", 1, state="lost") == _pages(api, "nodes", "after", 1, fleet="h200") == []
    assert _refused(api, "nodes", state="tired", cordoned="maybe") == ["cordoned", "state"]
    assert [row["node"] for row in denv("nodes", "--json")] == names
    assert f"{names[2]}  ready cordoned (fan replaced)   8/8" in denv("nodes", "--cordoned")
    assert denv("nodes", "--state", "lost") == "No node fits.\n"
