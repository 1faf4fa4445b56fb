"""What the OpenAPI document says of every operation: how to authenticate, the one error body, and keys for sending twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drf_spectacular.authentication import SessionScheme
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema

from denvweb.api import schema_of

_READS = {
    "400": "A parameter is wrong.",
    "401": "Not logged in.",
    "403": "Not allowed.",
    "404": "No such thing, or not yours to see.",
    "429": "Too many requests; `Retry-After` says when.",
    "503": "Something that denv needs does not answer; send it again, with the same Idempotency-Key.",
}
_WRITES = _READS | {
    "400": "The body is wrong.",
    "409": "The present state does not allow it.",
    "413": "The body is too large.",
    "415": "The body must be JSON.",
    "422": "The Idempotency-Key came with another request before.",
}
_PRECONDITIONS = {"412": "What `If-Match` names is no longer so."}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "maxLength": 200, "pattern": "^[!-~]*$"},
    "description": "Sent twice with the same key, the request is done once, and answered the same both times (for two days).",
}


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """Every error: `code` for programs, `detail` for people, `fields` by path where the input is wrong."""

    code: str
    detail: str
    fields: dict[str, list[str]]
    request_id: str


class DenvSchema(AutoSchema):
    """Adds what all operations share, so that no view has to repeat it."""

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """The operation, its errors and, on a POST, the key."""
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        error = self.resolve_serializer(schema_of(ErrorBody), "response").ref
        errors = _READS if self.method == "GET" else _WRITES
        if any(parameter["name"] == "If-Match" for parameter in operation.get("parameters", ())):
            errors = errors | _PRECONDITIONS
        for status, description in errors.items():
            body = {"description": description, "content": {"application/json": {"schema": error}}}
            operation["responses"].setdefault(status, body)
        if self.method == "POST":
            operation.setdefault("parameters", []).append(_KEY)
        return operation


class ApiTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # the base registers its heirs, untyped
    """Names bearer tokens to OpenAPI."""

    target_class = "denvweb.auth.ApiTokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """A bearer token."""
        return {"type": "http", "scheme": "bearer", "description": "`denv token`, or Settings in the dashboard."}


class SessionCookieScheme(SessionScheme):  # type: ignore[no-untyped-call]  # likewise
    """Names the dashboard's session to OpenAPI."""

    target_class = "denvweb.auth.ProvenSessionAuthentication"


def stream_add(result: dict[str, Any], generator: object, request: object, public: bool) -> dict[str, Any]:
    """`/stream` is a plain asynchronous view, which the generator does not see."""
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    number = {"type": "string", "pattern": "^[0-9]{1,18}$"}
    result["paths"]["/api/v1/stream"] = {
        "get": {
            "operationId": "stream",
            "description": "The journal as server-sent events, each with an Event as its data, from the number given, else from now on.",
            "parameters": [
                {"name": "Last-Event-ID", "in": "header", "schema": number},
                {"name": "after", "in": "query", "schema": number, "description": "The same, for a first connection."},
                {"name": "stage", "in": "query", "schema": {"type": "string"}, "description": "Events of one stage only."},
            ],
            "tags": ["stream"],
            "security": [{"token": []}, {"cookieAuth": []}],
            "responses": {
                "200": {
                    "description": "Events, for as long as the client stays.",
                    "content": {"text/event-stream": {"schema": {"type": "string"}}},
                },
                "400": {"description": "The number is wrong.", "content": error},
                "401": {"description": "Not logged in.", "content": error},
                "429": {"description": _READS["429"], "content": error},
            },
        }
    }
    result["paths"]["/api/v1/stages/{model}/{name}/logs"] = {"get": _logs(error)}
    return result


def _logs(error: dict[str, Any]) -> dict[str, Any]:
    """Likewise for the logs of a pool."""
    number = {"type": "string", "pattern": "^[0-9]{1,6}$"}
    wanted = [
        ("pool", {"type": "string", "enum": ["prefill", "decode", "aggregated"]}, "Whose logs."),
        ("replica", number, "Of each unit, counted from 1; all when left out."),
        ("rank", number, "Counted from 0, which leads; all when left out."),
        ("since", {"type": "string"}, "Lines of this time, as in `10m`."),
        ("tail", number, "Or so many of the last lines of each, 200 when left out."),
        ("follow", {"type": "string", "enum": ["0", "1"]}, "1: go on as lines are written."),
    ]
    path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in ("model", "name")]
    query = [{"name": name, "in": "query", "schema": form, "description": text, "required": name == "pool"} for name, form, text in wanted]
    return {
        "operationId": "stage_logs",
        "description": "What the engines of a pool write, as server-sent events: `log` with lines, `note` with a sentence, `end`.",
        "parameters": path + query,
        "tags": ["stages"],
        "security": [{"token": []}, {"cookieAuth": []}],
        "responses": {
            "200": {"description": "Lines.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            "400": {"description": "A parameter is wrong.", "content": error},
            "401": {"description": "Not logged in.", "content": error},
            "404": {"description": "No such stage, pool or replica.", "content": error},
            "429": {"description": _READS["429"], "content": error},
        },
    }
