"""Errors that reach no view, or that no view caught: the one error body for programs, a page for people."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.views import csrf, defaults

from denvweb.api import refusal
from denvweb.core.errors import BrokenError, DenvError, ForbiddenError, InvalidError, NotFoundError, TooLargeError

_PROGRAMS = ("/api/", "/agent/", "/router/")


def _answer(request: HttpRequest, error: DenvError, page: Callable[[], HttpResponse]) -> HttpResponse:
    return refusal(error) if request.path.startswith(_PROGRAMS) else page()


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """What cannot be understood at all, such as a host that denv does not go by; and bodies that are not read to their end."""
    error = InvalidError("This request was not understood; nothing was changed.", code="bad-request")
    if isinstance(exception, RequestDataTooBig):
        error = TooLargeError(f"A body may have {settings.DATA_UPLOAD_MAX_MEMORY_SIZE:,} bytes, no more; nothing was changed.")
    return _answer(request, error, lambda: defaults.bad_request(request, exception))


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """What the person may not do."""
    error = ForbiddenError("You may not do this.")
    return _answer(request, error, lambda: defaults.permission_denied(request, exception))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """A form, or a script of a page, that is not ours or is too old."""
    error = ForbiddenError(
        "The CSRF token is missing or too old; nothing was changed. Send the page's own, or use a bearer token.", code="csrf-failed"
    )
    return _answer(request, error, lambda: csrf.csrf_failure(request, reason))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Addresses that lead nowhere."""
    error = NotFoundError(f"There is no {request.path[:200]} here.")
    return _answer(request, error, lambda: defaults.page_not_found(request, exception))


def server_error(request: HttpRequest) -> HttpResponse:
    """Whatever else: the log has it under the request's id."""
    error = BrokenError("Something broke in denv. What runs goes on serving; the log has the reason under the request's id.")
    return _answer(request, error, lambda: defaults.server_error(request))
