"""Requests that may be sent twice: the second is answered as the first was, and nothing else happens."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from denvweb.core.errors import ConflictError, InvalidError
from denvweb.models import IdempotencyKey

KEPT = timedelta(days=2)
_KEY = re.compile(r"[!-~]{1,200}")

P = ParamSpec("P")
V = TypeVar("V")
Post = Callable[Concatenate[V, Request, P], Response]


class KeyReusedError(ConflictError):
    """The key stands for another request."""

    code = "idempotency-key-reused"
    http_status = 422


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered: an HTTP status and a JSON body."""

    status: int
    body: Any


def once(*, user: str, key: str, request: bytes, do: Callable[[], Answer], keep: bool = True) -> Answer:
    """Run `do` at most once for a user's key, in one transaction; without a key, every time.

    `request` is what must be equal when the key comes again (path and body); KeyReusedError when it is not. When `do` raises, nothing
    is remembered, so the request may be sent again. Two at once: the second waits for the first. An answer that is not to be kept
    (`keep`: it has a secret in it) is refused the second time with ConflictError `answer-not-kept`.
    """
    if not key:
        return do()
    if not _KEY.fullmatch(key):
        raise InvalidError("Idempotency-Key must be at most 200 characters of ASCII without blanks.", code="idempotency-key-invalid")
    digest = hashlib.sha256(request).hexdigest()
    return _answered(user, key, digest) or _first(user, key, digest, do, keep)


def _answered(user: str, key: str, digest: str) -> Answer | None:
    row = IdempotencyKey.objects.filter(user=user, key=key, created_at__gt=timezone.now() - KEPT).first()
    if row is None:
        return None
    if row.body_hash != digest:
        raise KeyReusedError("This Idempotency-Key came with another request before; use a new one.")
    if row.response is None:
        raise ConflictError("This was done before. Its answer held a secret, which is shown once and not kept.", code="answer-not-kept")
    return Answer(row.status, row.response)


def _first(user: str, key: str, digest: str, do: Callable[[], Answer], keep: bool) -> Answer:
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
        row.status, row.response = answer.status, answer.body if keep else None
        row.save(update_fields=["status", "response"])
        return answer


def idempotent(post: Post[V, P]) -> Post[V, P]:
    """Have a POST honour the Idempotency-Key header."""
    return _wrapped(post, keep=True)


def idempotent_secret(post: Post[V, P]) -> Post[V, P]:
    """The same for a POST whose answer holds a secret and must not be stored."""
    return _wrapped(post, keep=False)


def _wrapped(post: Post[V, P], *, keep: bool) -> Post[V, P]:
    @wraps(post)
    def wrapper(view: V, request: Request, /, *args: P.args, **kwargs: P.kwargs) -> Response:
        def do() -> Answer:
            response = post(view, request, *args, **kwargs)
            return Answer(response.status_code, response.data)

        told = f"{request.method} {request.path}\n{json.dumps(request.data, sort_keys=True)}".encode(errors="backslashreplace")
        key = request.headers.get("Idempotency-Key", "")
        answer = once(user=request.user.get_username(), key=key, request=told, do=do, keep=keep)
        return Response(answer.body, status=answer.status)

    return wrapper
