"""Errors that no view made: programs get the one body, people a page, and the log has the rest."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client, RequestFactory, override_settings

from denvweb import uncaught
from denvweb.auth import token_create

pytestmark = pytest.mark.django_db
SHAPE = {"code", "detail", "fields", "request_id"}


@pytest.fixture
def program() -> Client:
    token = token_create(user=User.objects.create_superuser("root"))
    return Client(headers={"authorization": f"Bearer {token}"}, raise_request_exception=False)


@pytest.mark.parametrize("path", ["/api/v1/stream", "/api/v1/stages/a/b/logs?pool=decode", "/api/v1/stages"])
def test_another_method_names_those_that_there_are(program: Client, path: str) -> None:
    answer = program.trace(path)
    assert (answer.status_code, answer.json()["code"]) == (405, "method-not-allowed")
    assert answer.headers["Allow"].startswith("GET")
    assert set(answer.json()) == SHAPE


def test_a_form_of_another_site_is_refused_in_the_words_of_whom_it_came_to() -> None:
    somebody = Client(enforce_csrf_checks=True)
    somebody.force_login(User.objects.create_user("oncall-a"))
    assert somebody.post("/api/v1/stages/a/b/logs").status_code == 405, "what only gives has nothing to guard"
    answer = uncaught.csrf_failure(RequestFactory().post("/api/v1/whatever"))
    assert (answer.status_code, json.loads(answer.content)["code"]) == (403, "csrf-failed")
    assert "The form was too old" in somebody.post("/logout").content.decode()


def test_a_bug_is_a_body_with_the_id_that_the_log_has(program: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("releases.api.rollout_views.rollouts_view", broken)
    answer = program.get("/api/v1/rollouts", headers={"x-request-id": "req-of-mine"})
    assert (answer.status_code, answer.json()["code"], answer.json()["request_id"]) == (500, "internal", "req-of-mine")
    assert set(answer.json()) == SHAPE


def test_a_database_that_does_not_answer_is_a_reason_to_send_again(program: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**_: object) -> None:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr("releases.api.rollout_views.rollouts_view", away)
    answer = program.get("/api/v1/rollouts")
    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "unavailable", "1")


@override_settings(ALLOWED_HOSTS=["denv.example.com"])
def test_a_host_that_denv_does_not_go_by_is_a_body_too(program: Client) -> None:
    answer = program.get("/api/v1/stages", headers={"host": "evil.example.com"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")
