"""What the API views of all apps share: error bodies, and the page of a long list."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, JsonResponse
from rest_framework import exceptions, pagination, serializers
from rest_framework.parsers import JSONParser
from rest_framework.response import Response
from rest_framework_dataclasses.serializers import DataclassSerializer

from denvweb.core.errors import DenvError, MethodError, TooOftenError, UnavailableError
from denvweb.logs import request_id

log = logging.getLogger(__name__)


def error_body(error: DenvError) -> dict[str, Any]:
    """`{code, detail, fields, request_id}`: the one shape of every error."""
    return {"code": error.code, "detail": error.detail, "fields": error.fields, "request_id": request_id.get()}


def error_headers(error: DenvError) -> dict[str, str]:
    """What belongs beside the body (RFC 9110, sections 11.6.1 and 15.5.6)."""
    if isinstance(error, MethodError):
        return {"Allow": error.only}
    if isinstance(error, TooOftenError):
        return {"Retry-After": str(error.wait_s)}
    return {"WWW-Authenticate": "Bearer"} if error.http_status == 401 else {}


def refusal(error: DenvError) -> JsonResponse:
    """The answer of a view that does without the framework."""
    return JsonResponse(error_body(error), status=error.http_status, headers=error_headers(error))


def _from_framework(error: Exception) -> DenvError | None:
    if isinstance(error, DenvError):
        return error
    if isinstance(error, OperationalError | InterfaceError):
        return UnavailableError("The database does not answer. Send it again, with the same Idempotency-Key: it is done once.")
    if isinstance(error, Http404):
        return DenvError(str(error) or "There is no such thing.", code="not-found")
    if isinstance(error, PermissionDenied):
        return DenvError(str(error) or "You may not do this.", code="forbidden")
    if isinstance(error, exceptions.ValidationError):
        detail = error.detail if isinstance(error.detail, dict) else {"": error.detail}
        return DenvError("Some fields are wrong.", code="invalid", fields={key: [str(x) for x in value] for key, value in detail.items()})
    if isinstance(error, exceptions.APIException):
        codes = {"not_authenticated": "not-authenticated", "authentication_failed": "not-authenticated", "permission_denied": "forbidden"}
        return DenvError(str(error.detail), code=codes.get(str(error.default_code), str(error.default_code).replace("_", "-")))
    return None


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Map the one error tree, and the framework's own, to the one body."""
    mapped = _from_framework(error)
    if mapped is None:
        return None
    if mapped is not error and mapped.http_status == 503:
        log.warning("%s", error)
    status = mapped.http_status
    if isinstance(error, Http404):
        status = 404
    elif isinstance(error, PermissionDenied):
        status = 403
    elif isinstance(error, exceptions.APIException):
        status = error.status_code
    headers = {"Retry-After": "1"} if status == 503 else {}
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(int(wait))
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    return Response(error_body(mapped), status=status, headers=headers)


@cache
def schema_of(view: type) -> type[DataclassSerializer[Any]]:
    """A serializer that describes a view dataclass to OpenAPI; the body itself is `wire.to_plain(view)`."""
    return type(f"{view.__name__}Serializer", (DataclassSerializer,), {"Meta": type("Meta", (), {"dataclass": view})})


_DEEPEST = 64  # values within values, as in a body; far under what Python can follow


class CleanJSONParser(JSONParser):
    """JSON whose texts PostgreSQL can keep: no NUL and no half of a surrogate pair, which JSON itself allows. Nor too deep to be read."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        """The value, or a ParseError that says what is wrong."""
        try:
            value = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise _too_deep() from None
        if not _is_clean(value, _DEEPEST):
            raise exceptions.ParseError("JSON parse error - a text holds a NUL, or half of a character.")
        return value


def _too_deep() -> exceptions.ParseError:
    return exceptions.ParseError(f"JSON parse error - lists and objects may be {_DEEPEST} within each other, no more.")


def _is_clean(value: object, deeper: int) -> bool:
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
    if not isinstance(value, dict | list):
        return True
    if not deeper:
        raise _too_deep()
    inside = (*value, *value.values()) if isinstance(value, dict) else value
    return all(_is_clean(item, deeper - 1) for item in inside)


class StrictSerializer(serializers.Serializer[Any]):
    """A body whose texts are texts and whose flags are flags: `0` is not taken for false, nor a number for a name."""

    def to_internal_value(self, data: Any) -> Any:
        """The fields, or a ValidationError by field."""
        problems = {name: [f"must be {_WORDS[kind]}"] for name, kind in self._kinds() if not _fits(data, name, kind)}
        if problems:
            raise exceptions.ValidationError(problems)
        return super().to_internal_value(data)

    def _kinds(self) -> list[tuple[str, type]]:
        texts = [(name, str) for name, field in self.fields.items() if isinstance(field, serializers.CharField | serializers.ChoiceField)]
        return texts + [(name, bool) for name, field in self.fields.items() if isinstance(field, serializers.BooleanField)]


_WORDS = {str: "a text", bool: "true or false"}


def _fits(data: Any, name: str, kind: type) -> bool:
    return not isinstance(data, dict) or name not in data or isinstance(data[name], kind)


class NewestFirst(pagination.CursorPagination):
    """Cursor pages that stay right while rows are added."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500
    ordering = "-id"
