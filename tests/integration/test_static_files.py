"""Static files on an event loop: in pieces, without a warning, whole or in part."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from denvweb.static_files import StaticFileResponse, StaticFilesMiddleware

SCRIPT = "/static/frontend/charts.js"


@pytest.fixture(scope="module")
def script() -> bytes:
    return Path(str(finders.find("frontend/charts.js"))).read_bytes()


async def _pieces(headers: dict[str, str]) -> tuple[StaticFileResponse, list[bytes]]:
    async def nowhere(request: HttpRequest) -> HttpResponse:
        raise AssertionError(request.path)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response = await StaticFilesMiddleware(nowhere)(RequestFactory().get(SCRIPT, headers=headers))  # type: ignore[misc]  # on a loop
        pieces = [piece async for piece in response]
    response.close()
    return response, pieces


async def test_a_file_is_read_in_pieces(script: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StaticFileResponse, "block_size", 4096)
    response, pieces = await _pieces({})
    assert b"".join(pieces) == script
    assert max(map(len, pieces)) == 4096 and len(pieces) > 2
    assert response.headers["Content-Type"].startswith("text/javascript")
    assert response.headers["Content-Length"] == str(len(script))


async def test_a_part_of_it_and_nothing_of_it(script: bytes) -> None:
    response, pieces = await _pieces({"range": "bytes=10-99"})
    assert response.status_code == 206
    assert b"".join(pieces) == script[10:100]
    response, pieces = await _pieces({"if-modified-since": response.headers["Last-Modified"]})
    assert (response.status_code, pieces) == (304, [])


def test_without_a_loop_it_is_the_same_and_all_else_goes_on(db: None, script: bytes) -> None:
    passed = HttpResponse("elsewhere")
    middleware = StaticFilesMiddleware(lambda request: passed)
    response = middleware(RequestFactory().get(SCRIPT))
    assert isinstance(response, StaticFileResponse)
    assert b"".join(response) == script
    response.close()
    assert middleware(RequestFactory().get("/")) is passed
