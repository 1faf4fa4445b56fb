"""The short form of `make test-contract`: every operation gets what it cannot want, and answers as its document says, never with 5xx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from drf_spectacular.generators import SchemaGenerator

from denvweb.auth import token_create
from tests.integration.rollouts_world import Demo

pytestmark = pytest.mark.django_db

ASYNC = ("/api/v1/stream", "/api/v1/stages/{model}/{name}/logs")  # they have tests of their own
THERE = {"model": "ds-flash", "policy_model": "ds-flash", "number": "1", "id": "1"}
NAMES = {"/nodes/": "gb200-use1-d01-n01", "/fleets/": "gb200-use1", "/stages/": "prod-us"}
NOWHERE = "no/such €"
BODIES = (b"", b"[]", b"null", b'"x"', b"{}", b'{"surprise": 1}')
WORDS = ("", "-1", "€", "x" * 600)


def _requests(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Addresses and bodies, all but a few of them wrong in one way."""
    name = next((name for part, name in NAMES.items() if part in path), "x")
    there = path.format(**THERE, name=name)
    nowhere = path.format(**dict.fromkeys((*THERE, "name"), quote(NOWHERE, safe="")))
    if method in ("get", "delete"):
        yield nowhere, b""
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "query":
                yield from ((f"{there}?{parameter['name']}={quote(word)}", b"") for word in WORDS)
        return
    yield nowhere, b"{}"
    yield from ((there, body) for body in BODIES)
    reference = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
    for field in schemas.get(reference.rpartition("/")[2], {}).get("properties", {}):
        yield from ((there, b'{"%s": %s}' % (field.encode(), value)) for value in (b"null", b"-7", b'{"a": [[]]}'))


def test_nonsense_is_answered_as_the_document_says_and_never_with_5xx(settings: Any) -> None:
    settings.API_REQUESTS_PER_S = 1e6  # or most of it would be answered with 429
    Demo().first()
    root = User.objects.create_superuser("root")
    api = Client(headers={"authorization": f"Bearer {token_create(user=root)}"}, raise_request_exception=False)
    document = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]  # the generator is untyped
    seen: Counter[int] = Counter()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path in ASYNC:
                continue
            for address, body in _requests(path, method, operation, document["components"]["schemas"]):
                with transaction.atomic():
                    answer = api.generic(method.upper(), address, body, content_type="application/json")
                    transaction.set_rollback(True)
                told = (method, address[:200], body, answer.status_code, answer.content[:300])
                assert str(answer.status_code) in operation["responses"] and answer.status_code < 500, told
                if answer.status_code >= 400:
                    assert set(answer.json()) == {"code", "detail", "fields", "request_id"}, told
                    assert answer.json()["detail"] and answer.json()["request_id"], told
                seen[answer.status_code] += 1
    assert {200, 400, 404, 409} <= seen.keys() and 429 not in seen, seen
