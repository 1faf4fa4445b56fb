"""The OpenAPI document: complete, valid, and the same for every operation where operations are alike."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from denvweb import throttle
from denvweb.auth import token_create
from denvweb.models import IdempotencyKey
from releases.domain.spec_schema import spec_schema
from releases.models import DryRun


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """As `manage.py spectacular` writes it; a warning would fail the command."""
    out = io.StringIO()
    call_command("spectacular", validate=True, fail_on_warn=True, stdout=out)
    loaded: dict[str, Any] = yaml.safe_load(out.getvalue())
    return loaded


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, operation) for path, methods in document["paths"].items() for method, operation in methods.items()]


def test_every_operation_says_how_to_log_in_and_how_it_fails(document: dict[str, Any]) -> None:
    for path, _, operation in operations(document):
        assert {"token": []} in operation["security"], path
        assert "401" in operation["responses"], path
    body = document["components"]["schemas"]["ErrorBody"]
    assert set(body["properties"]) == {"code", "detail", "fields", "request_id"}


def test_every_post_takes_an_idempotency_key(document: dict[str, Any]) -> None:
    posts = [(path, operation) for path, method, operation in operations(document) if method == "post"]
    assert len(posts) >= 10
    for path, operation in posts:
        assert "Idempotency-Key" in [parameter["name"] for parameter in operation["parameters"]], path
        assert "422" in operation["responses"], path


def test_editors_read_the_schema_of_spec_files_without_a_token() -> None:
    found = Client().get("/api/v1/schema/denv.yaml")
    assert found.status_code == 200
    assert found.headers["Content-Type"] == "application/schema+json"
    assert found.json() == json.loads(json.dumps(spec_schema()))


def test_the_stream_is_in_it(document: dict[str, Any]) -> None:
    assert "text/event-stream" in document["paths"]["/api/v1/stream"]["get"]["responses"]["200"]["content"]


@pytest.fixture
def api(db: None) -> Client:
    return Client(headers={"authorization": f"Bearer {token_create(user=User.objects.create_user('ada'))}"})


def post(api: Client, path: str, body: object, key: str) -> tuple[int, dict[str, Any]]:
    response = api.post(f"/api/v1/{path}", body, content_type="application/json", headers={"idempotency-key": key})
    return response.status_code, response.json()


def test_a_post_sent_twice_is_done_once(api: Client) -> None:
    first = post(api, "dry-runs", {"yaml": "a: 1"}, "k")
    assert first[0] == 202 and post(api, "dry-runs", {"yaml": "a: 1"}, "k") == first
    status, body = post(api, "dry-runs", {"yaml": "b: 1"}, "k")
    assert (status, body["code"]) == (422, "idempotency-key-reused")
    assert DryRun.objects.count() == 1


def test_an_answer_with_a_secret_is_not_kept(api: Client) -> None:
    status, _ = post(api, "tokens", {"name": "ci"}, "k")
    assert status == 201
    assert IdempotencyKey.objects.get().response is None
    assert post(api, "tokens", {"name": "ci"}, "k")[1]["code"] == "answer-not-kept"


@pytest.mark.parametrize("text", ["nul \x00", "half \ud800"])
def test_text_that_the_database_cannot_keep_is_refused(api: Client, text: str) -> None:
    status, body = post(api, "dry-runs", {"yaml": text}, "k")
    assert (status, body["code"]) == (400, "parse-error")


@pytest.mark.parametrize("depth", [65, 900, 100_000])
def test_a_body_that_is_too_deep_to_be_read_is_refused(api: Client, depth: int) -> None:
    response = api.post("/api/v1/dry-runs", b'{"yaml":' + b"[" * depth + b"]" * depth + b"}", content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (400, "parse-error")
    assert "64 within each other" in response.json()["detail"]


def test_a_body_that_is_too_large_and_a_method_that_is_not_there_are_errors_of_the_one_shape(api: Client, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    response = api.post("/api/v1/dry-runs", {"yaml": "x" * 2000}, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (413, "too-large") and "1,000 bytes" in response.json()["detail"]
    api.handler.enforce_csrf_checks = True
    for path in ("schema/denv.yaml", "stages", "stream", "stages/a/b/logs"):
        response = api.put(f"/api/v1/{path}", {}, content_type="application/json")
        assert (response.status_code, response.json()["code"]) == (405, "method-not-allowed"), path
        assert response.headers["Allow"].startswith("GET"), path


def test_who_asks_too_often_is_told_when_to_come_back(api: Client, settings: Any) -> None:
    settings.API_REQUESTS_PER_S = 0.1
    assert api.get("/api/v1/me").status_code == 200
    response = api.get("/api/v1/me")
    assert response.status_code == 429 and response.json()["code"] == "throttled"
    assert 1 <= int(response.headers["Retry-After"]) <= 10


def test_a_bucket_refills_with_time_and_never_over_its_rim() -> None:
    assert [throttle.take("x", per_s=2, burst=2, now_mono_s=0) for _ in range(3)] == [0, 0, 0.5]
    assert throttle.take("x", per_s=2, burst=2, now_mono_s=0.5) == 0
    assert [throttle.take("x", per_s=2, burst=2, now_mono_s=99) for _ in range(3)] == [0, 0, 0.5]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("stages/a%00b/prod", 404, "not-found"),  # no name has a NUL, so nothing can be there
        ("events?stage=%00", 400, "invalid"),
        ("stages/a/b/events?limit=1&x=%00", 400, "invalid"),
    ],
)
def test_an_address_with_a_nul_names_nothing(api: Client, path: str, status: int, code: str) -> None:
    response = api.get(f"/api/v1/{path}")
    assert (response.status_code, response.json()["code"]) == (status, code)


def test_an_address_that_leads_nowhere_has_the_one_error_body(api: Client, client: Client) -> None:
    assert api.get("/api/v1/grants/x").json()["code"] == "not-found"
    assert client.get("/nowhere").headers["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("body", [{"name": 7}, {"name": None}, {"scope": ["api"]}])
def test_a_body_of_other_types_is_refused(api: Client, body: dict[str, Any]) -> None:
    response = api.post("/api/v1/tokens", body, content_type="application/json")
    assert response.status_code == 400 and response.json()["fields"]
