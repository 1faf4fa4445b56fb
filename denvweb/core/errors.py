"""The one error tree. Each face (HTTP, command, OpenAI bodies) maps it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class DenvError(Exception):
    """Something that a person or a program can act on.

    `code` is stable and machine-readable, `detail` is a sentence that says what is wrong and what to do,
    `fields` maps a dotted path to its problems.
    """

    code = "error"
    http_status = 400
    exit_status = 1
    request_id = ""  # of the request that it came back from, where one did

    def __init__(self, detail: str, *, code: str | None = None, fields: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if code is not None:
            self.code = code
        self.fields: dict[str, list[str]] = {path: list(problems) for path, problems in (fields or {}).items()}


class InvalidError(DenvError):
    """The input itself is wrong."""

    code = "invalid"
    http_status = 400
    exit_status = 2


class NobodyError(DenvError):
    """No token and no session, or one that is not good for this."""

    code = "not-authenticated"
    http_status = 401


class TooLargeError(InvalidError):
    """More than is read of a body."""

    code = "too-large"
    http_status = 413


class MethodError(DenvError):
    """The address has no such method."""

    code = "method-not-allowed"
    http_status = 405

    def __init__(self, only: str) -> None:
        super().__init__(f"Only {only} is possible here.")
        self.only = only


class TooOftenError(DenvError):
    """More requests than one caller may send."""

    code = "throttled"
    http_status = 429

    def __init__(self, wait_s: int) -> None:
        super().__init__(f"This was asked too often; come back in {wait_s} s.")
        self.wait_s = wait_s


class NotFoundError(DenvError):
    """No such thing, or not for this person to see."""

    code = "not-found"
    http_status = 404


class ConflictError(DenvError):
    """The input is fine, but the present state does not allow it."""

    code = "conflict"
    http_status = 409


class ForbiddenError(DenvError):
    """Seen, but not allowed."""

    code = "forbidden"
    http_status = 403


class UnavailableError(DenvError):
    """Something that denv needs does not answer."""

    code = "unavailable"
    http_status = 503
    exit_status = 3


class BrokenError(DenvError):
    """A bug of denv's; its log has the reason."""

    code = "internal"
    http_status = 500
