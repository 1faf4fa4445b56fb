"""Static files from the packages that own them, in pieces and off the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseFileResponse, WhiteNoiseMiddleware

from denvweb.middleware import GetResponse


class StaticFileResponse(WhiteNoiseFileResponse):  # type: ignore[misc]  # WhiteNoise has no types
    """A file that both kinds of server can read piece by piece: as it comes, Django would read all of it before it sent any."""

    block_size = 64 * 1024

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = sync_to_async(partial(next, iter(self.streaming_content), b""), thread_sensitive=False)
        while piece := await read():
            yield piece


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]  # WhiteNoise has no types
    """WhiteNoise that lets all other requests of an event loop through as they are, without a thread for each."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        super().__init__(get_response)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        found = self.find_file(request.path_info) if self.autorefresh else self.files.get(request.path_info)
        if found is None:
            passed: HttpResponseBase | Awaitable[HttpResponseBase] = self.get_response(request)
            return passed
        return sync_to_async(self.serve)(found, request) if iscoroutinefunction(self.get_response) else self.serve(found, request)

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponseBase:
        """The file, a part of it, or that the browser has it already."""
        found = static_file.get_response(request.method, request.META)
        response = StaticFileResponse(found.file or (), status=int(found.status))
        del response.headers["Content-Type"]  # WhiteNoise has its own, where there is a body
        for name, value in found.headers:
            response.headers[name] = value
        return response
