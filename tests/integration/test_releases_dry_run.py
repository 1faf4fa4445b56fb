"""Dry runs over the API: queued, computed by a task, read back; files that are no spec are answered at once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from denvweb.auth import token_create
from releases.models import DryRun
from releases.services.dry_runs import dry_run_create, dry_run_run, dry_runs_sweep
from releases.tasks import run_dry_run
from tests.domain.releases_world import DS_FLASH
from tests.integration.releases_fleets import make_demo_fleets

pytestmark = pytest.mark.django_db
EXAMPLES = Path(settings.BASE_DIR) / "examples"


@pytest.fixture
def api(client: Client) -> Client:
    client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {token_create(user=User.objects.create_user('ada'))}"
    return client


def dry_run(api: Client, yaml: str, **more: str) -> dict[str, Any]:
    """Ask, let the task run, and read what came of it."""
    response = api.post("/api/v1/dry-runs", {"yaml": yaml, **more}, content_type="application/json")
    assert response.status_code == 202, response.content
    run_dry_run(response.json()["id"])
    return dict(api.get(f"/api/v1/dry-runs/{response.json()['id']}").json())


def test_the_example_that_does_not_fit(api: Client) -> None:
    make_demo_fleets()
    view = dry_run(api, (EXAMPLES / "ds-flash-on-h200.yaml").read_text())
    lines = [f"{finding['severity']}  {finding['subject']}: {finding['sentence']}" for finding in view["findings"]]
    assert lines[0] == "error  stage prod-us: fleet h200-use1 domain is 8 GPUs; serving unit needs 72 (same-domain)"
    assert (view["state"], view["error_count"], view["plans"]) == ("done", 1, [])


@pytest.mark.parametrize("name", ["ds-flash", "ds-flash-next", "ds-flash-slow-decode", "llama-70b-aggregated"])
def test_the_examples_that_fit(api: Client, name: str) -> None:
    make_demo_fleets()
    view = dry_run(api, (EXAMPLES / f"{name}.yaml").read_text())
    assert view["error_count"] == view["warning_count"] == 0
    assert len(view["plans"]) == 1


def test_the_plan_fills_two_domains(api: Client) -> None:
    make_demo_fleets()
    view = dry_run(api, DS_FLASH)
    assert [finding["sentence"] for finding in view["findings"]] == [
        "unit 1 on gb200-use1/d01, unit 2 on gb200-use1/d02 (72 of 72 GPUs each, same-domain)"
    ]
    assert (view["release"], view["recipe"]) == ("ds-flash@1", "deepseek-v4.1-flash/deepinfer@3")
    assert view["plans"][0]["stage"] == "ds-flash/prod-us"


def test_the_progress_is_there_while_it_runs(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    make_demo_fleets()
    seen: list[tuple[str, float, str]] = []

    def look(*topics: str) -> None:
        row = DryRun.objects.get()
        seen.append((row.state, row.progress, row.progress_text))

    monkeypatch.setattr("releases.services.dry_runs.poke", look)
    dry_run(api, DS_FLASH)
    assert [text for _, _, text in seen] == [
        "reading the file",
        "looking at recipes and fleets",
        "placing and planning stage prod-us",
        "0 errors, 0 warnings",
    ]
    assert [progress for _, progress, _ in seen] == sorted(progress for _, progress, _ in seen)


@pytest.mark.parametrize("yaml", ["", "garbage", "a: 1\na: 2", "a: &a [1]\nb: *a", "x" * 10_000_000, "release:\nstages:"])
def test_no_spec_is_answered_at_once(api: Client, yaml: str) -> None:
    response = api.post("/api/v1/dry-runs", {"yaml": yaml}, content_type="application/json")
    view = response.json()
    assert (response.status_code, view["state"]) == (202, "done")
    assert view["error_count"] == len(view["file_errors"]) >= 1
    assert all(line.startswith("denv.yaml:") for line in view["file_errors"])


def test_a_stage_can_be_named(api: Client) -> None:
    make_demo_fleets()
    view = dry_run(api, DS_FLASH, stage="prod-eu")
    assert [finding["code"] for finding in view["findings"]] == ["stage-unknown"]


def test_bodies_that_do_not_fit_are_refused(api: Client) -> None:
    for body in ({}, {"yaml": 3}, [1], {"yaml": "x", "stage": None}):
        response = api.post("/api/v1/dry-runs", body, content_type="application/json")
        assert (response.status_code, response.json()["code"]) == (400, "bad-message")
    assert api.get("/api/v1/dry-runs/dry-nothing").status_code == 404


def test_it_needs_a_login(client: Client) -> None:
    assert client.post("/api/v1/dry-runs", {"yaml": "x"}, content_type="application/json").status_code == 401


def test_running_it_twice_changes_nothing() -> None:
    make_demo_fleets()
    row = dry_run_create(yaml=DS_FLASH, actor="ada")
    dry_run_run(id=row.pk)
    first = DryRun.objects.get(pk=row.pk).result
    dry_run_run(id=row.pk)
    dry_run_run(id="dry-gone")
    assert DryRun.objects.get(pk=row.pk).result == first


def test_beat_finds_what_a_lost_wake_left() -> None:
    make_demo_fleets()
    fresh, queued, running, old = (dry_run_create(yaml=DS_FLASH, actor="ada") for _ in range(4))
    now = timezone.now()
    DryRun.objects.filter(pk=queued.pk).update(created_at=now - timedelta(seconds=4))
    DryRun.objects.filter(pk=running.pk).update(created_at=now - timedelta(seconds=61), state=DryRun.State.RUNNING)
    DryRun.objects.filter(pk=old.pk).update(created_at=now - timedelta(days=2))
    assert dry_runs_sweep() == 2
    states = dict(DryRun.objects.values_list("pk", "state"))
    assert states == {fresh.pk: "queued", queued.pk: "done", running.pk: "done"}
