"""plotly.js as the installed `plotly` package carries it: nothing is copied, and its address changes with its version."""

from __future__ import annotations

import gzip
import re
from functools import cache
from importlib import metadata, resources

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase

_FOREVER = "public, max-age=31536000, immutable"


@cache
def plotly_version() -> str:
    """The version of the package, which is a part of the script's address."""
    return metadata.version("plotly")


@cache
def _plotly() -> bytes:
    # Compressed once a process: 1.4 MB kept instead of 4.8 MB sent each time.
    return gzip.compress(resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes(), compresslevel=6, mtime=0)


def plotly_js(request: HttpRequest, version: str) -> HttpResponseBase:
    """The script, compressed where the browser can read that."""
    etag = f'"plotly-{plotly_version()}"'
    if request.headers.get("If-None-Match") == etag:
        response: HttpResponse = HttpResponseNotModified()
    elif re.search(r"\bgzip\b", request.headers.get("Accept-Encoding", "")):
        response = HttpResponse(_plotly(), content_type="text/javascript; charset=utf-8", headers={"Content-Encoding": "gzip"})
    else:
        response = HttpResponse(gzip.decompress(_plotly()), content_type="text/javascript; charset=utf-8")
    response.headers["ETag"], response.headers["Vary"] = etag, "Accept-Encoding"
    # An address of another version is answered, but not for ever.
    response.headers["Cache-Control"] = _FOREVER if version == plotly_version() else "no-cache"
    return response
