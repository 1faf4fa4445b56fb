"""Freeze windows over REST and the command: who may set them, what they say, and what they keep from going forward."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from denvweb.models import Grant
from metrics.selectors import events_view
from releases.models import FreezeWindow
from tests.integration.rollouts_world import Demo, make_api

pytestmark = pytest.mark.django_db
URL = "/api/v1/freeze-windows"
NIGHTS = {"zone": "Europe/Berlin", "reason": "nobody is awake", "days": ["mon", "tue"], "start": "18:00", "end": "08:00"}


def _grant(user: str, model: str, role: str) -> None:
    Grant.objects.create(user=User.objects.get_or_create(username=user)[0], model=model, role=role, created_by="test")


def test_a_window_is_set_listed_and_removed() -> None:
    api = make_api()
    _grant("ada", "*", "admin")
    made = api.post(URL, NIGHTS, content_type="application/json")
    assert made.status_code == 201, made.content
    view = made.json()
    assert view["sentence"] == "every stage, mon, tue 18:00-08:00 (Europe/Berlin)" and view["created_by"] == "ada"
    assert [row["id"] for row in api.get(URL).json()["results"]] == [view["id"]]
    assert api.delete(f"{URL}/{view['id']}").status_code == 204
    assert api.delete(f"{URL}/{view['id']}").status_code == 404
    kinds = [event.kind for event in events_view(limit=5)]
    assert kinds.count("freeze.created") == kinds.count("freeze.deleted") == 1


def test_what_is_wrong_is_named_by_field() -> None:
    api = make_api()
    _grant("ada", "*", "admin")
    refused = api.post(URL, {**NIGHTS, "zone": "Berlin"}, content_type="application/json")
    assert refused.status_code == 400 and refused.json()["code"] == "freeze-invalid" and "zone" in refused.json()["fields"]
    assert api.post(URL, {**NIGHTS, "model": "nothing"}, content_type="application/json").status_code == 404


def test_only_administrators_of_the_model_set_one(settings: Any) -> None:
    settings.DEFAULT_ROLE = "viewer"
    Demo().release()
    _grant("bob", "ds-flash", "admin")
    bob = make_api("bob")
    assert bob.post(URL, NIGHTS, content_type="application/json").json()["code"] == "role-missing"
    assert bob.post(URL, {**NIGHTS, "model": "ds-flash"}, content_type="application/json").status_code == 201
    eve = make_api("eve")
    assert eve.post(URL, {**NIGHTS, "model": "ds-flash"}, content_type="application/json").status_code == 403
    assert eve.delete(f"{URL}/{FreezeWindow.objects.get().pk}").status_code == 403
