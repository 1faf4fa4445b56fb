"""/healthz and /readyz on the real servers."""

from __future__ import annotations

import pytest
from django.test import Client


def test_healthz_answers(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


@pytest.mark.django_db
def test_readyz_names_each_part(client: Client) -> None:
    response = client.get("/readyz")
    assert response.status_code == 200
    assert response.json()["checks"] == {"database": "ok", "redis": "ok"}
