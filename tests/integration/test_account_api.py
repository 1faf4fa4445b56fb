"""/me and /tokens."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from denvweb.auth import token_check, token_create
from denvweb.models import ApiToken

pytestmark = pytest.mark.django_db


def client_of(user: User) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token_create(user=user)}")
    return client


def test_nobody_is_refused_with_the_one_error_body() -> None:
    response = APIClient().get("/api/v1/me")
    assert response.status_code == 401
    assert response.json()["code"] == "not-authenticated"
    assert set(response.json()) == {"code", "detail", "fields", "request_id"}


def test_a_token_acts_for_its_owner() -> None:
    user = User.objects.create_user("ann")
    assert client_of(user).get("/api/v1/me").json() == {"username": "ann", "admin": False, "roles": {"*": ["admin"]}}


def test_a_revoked_token_is_refused() -> None:
    client = client_of(User.objects.create_user("ann"))
    ApiToken.objects.update(revoked_at="2026-01-01T00:00:00Z")
    assert client.get("/api/v1/me").status_code == 401


def test_only_the_hash_of_a_new_token_is_kept() -> None:
    client = client_of(User.objects.create_user("ann"))
    response = client.post("/api/v1/tokens", {"name": "ci"}, format="json")
    text = response.json()["token"]
    assert response.status_code == 201
    assert token_check(text, ApiToken.Scope.API)
    assert not ApiToken.objects.filter(secret_hash__contains=text.partition(".")[2]).exists()


def test_a_routers_token_needs_an_administrator() -> None:
    body = {"scope": "router"}
    assert client_of(User.objects.create_user("ann")).post("/api/v1/tokens", body, format="json").status_code == 403
    assert client_of(User.objects.create_superuser("root")).post("/api/v1/tokens", body, format="json").status_code == 201
