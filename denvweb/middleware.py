"""What every response gets: a request id and a content security policy without inline script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve

from denvweb.core.ids import random_id
from denvweb.logs import proof, request_id

# The hash is that of the empty string: Plotly adds an empty <style> element and fills it through the CSSOM.
_EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {_EMPTY_STYLE}; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

GetResponse = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


class _BothWays:
    """Middleware for sync and async views alike, so that async views stay on the event loop."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        self.before(request)
        response = self.get_response(request)
        if isinstance(response, HttpResponseBase):
            self.after(request, response)
            return response
        return self._later(request, response)

    async def _later(self, request: HttpRequest, pending: Awaitable[HttpResponseBase]) -> HttpResponseBase:
        response = await pending
        self.after(request, response)
        return response

    def before(self, request: HttpRequest) -> None:
        """Look at the request."""

    def after(self, request: HttpRequest, response: HttpResponseBase) -> None:
        """Add to the response."""


class RequestIdMiddleware(_BothWays):
    """Take the caller's X-Request-Id, or make one; logs and error bodies carry it."""

    def before(self, request: HttpRequest) -> None:
        given = request.headers.get("X-Request-Id", "")
        request_id.set(given if 0 < len(given) <= 64 and given.isprintable() else random_id("req"))
        proof.set("")

    def after(self, request: HttpRequest, response: HttpResponseBase) -> None:
        response.headers["X-Request-Id"] = request_id.get()


class ProgramsMiddleware:
    """Calls of agents and routers go straight to their views.

    They carry their own credential: sessions, CSRF, messages and page headers are nothing to them, and under ASGI each of
    those middlewares costs two thread hops, on calls that come many times a second.
    """

    sync_capable = True
    async_capable = True
    prefixes = ("/agent/", "/router/")

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if not request.path_info.startswith(self.prefixes):
            return self.get_response(request)
        try:
            view, args, kwargs = resolve(request.path_info)
        except Resolver404:
            return self.get_response(request)
        here_async, view_async = iscoroutinefunction(self.get_response), iscoroutinefunction(view)
        if here_async and not view_async:
            view = sync_to_async(view, thread_sensitive=True)
        elif view_async and not here_async:
            view = async_to_sync(view)
        response: HttpResponseBase | Awaitable[HttpResponseBase] = view(request, *args, **kwargs)
        return response


class CleanUrlMiddleware(_BothWays):
    """Addresses with a NUL in them name nothing: PostgreSQL could not even be asked."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        named, asked = "\0" in request.path_info, "%00" in request.META.get("QUERY_STRING", "")
        if not (named or asked):
            return super().__call__(request)
        code, status = ("not-found", 404) if named else ("invalid", 400)
        body = {"code": code, "detail": "An address may hold no NUL.", "fields": {}, "request_id": request_id.get()}
        refused = JsonResponse(body, status=status)
        return self._refuse(refused) if iscoroutinefunction(self.get_response) else refused

    async def _refuse(self, response: HttpResponseBase) -> HttpResponseBase:
        return response


class ContentSecurityPolicyMiddleware(_BothWays):
    """No inline script, style or handler anywhere."""

    def after(self, request: HttpRequest, response: HttpResponseBase) -> None:
        response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
