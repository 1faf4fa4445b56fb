"""Requests that may be sent twice: the second is answered as the first was, and nothing else happens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from denvweb.core.errors import ConflictError, InvalidError
from releases.models import IdempotencyKey

KEPT = timedelta(days=2)
MOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered: an HTTP status and a JSON body."""

    status: int
    body: Any


def once(*, user: str, key: str, request: bytes, do: Callable[[], Answer]) -> Answer:
    """Run `do` at most once for a user's key, in one transaction; without a key, every time.

    `request` is what must be equal when the key comes again (path and body); ConflictError when it is not. When `do` raises, nothing
    is remembered, so the request may be sent again. Two at once: the second waits for the first.
    """
    if not key:
        return do()
    if len(key) > MOST_CHARACTERS or not key.isprintable():
        raise InvalidError(f"Idempotency-Key must be at most {MOST_CHARACTERS} printable characters.", code="idempotency-key-invalid")
    digest = hashlib.sha256(request).hexdigest()
    return _answered(user, key, digest) or _first(user, key, digest, do)


def _answered(user: str, key: str, digest: str) -> Answer | None:
    row = IdempotencyKey.objects.filter(user=user, key=key, created_at__gt=timezone.now() - KEPT).first()
    if row is None:
        return None
    if row.body_hash != digest:
        raise ConflictError("This Idempotency-Key came with another request before; use a new one.", code="idempotency-key-reused")
    return Answer(row.status, row.response)


def _first(user: str, key: str, digest: str, do: Callable[[], Answer]) -> Answer:
    IdempotencyKey.objects.filter(created_at__lte=timezone.now() - KEPT).delete()
    with transaction.atomic():
        try:
            with transaction.atomic():  # waits here for another request with the key that is still under way
                row = IdempotencyKey.objects.create(user=user, key=key, body_hash=digest, status=0, response=None)
        except IntegrityError:
            answered = _answered(user, key, digest)
            if answered is None:
                raise
            return answered
        answer = do()
        row.status, row.response = answer.status, answer.body
        row.save(update_fields=["status", "response"])
        return answer
