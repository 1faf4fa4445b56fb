"""A typed client of the REST API: what every command but the programs is made of."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from denvweb import env
from denvweb.core import wire
from denvweb.core.errors import ConflictError, DenvError, ForbiddenError, InvalidError, NotFoundError, UnavailableError
from denvweb.core.ids import random_id

T = TypeVar("T")


class MissingError(NotFoundError):
    """No such thing, and what was asked for."""

    path = ""
    params: Mapping[str, object] = {}


_ERRORS: dict[int, type[DenvError]] = {
    400: InvalidError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: MissingError,
    409: ConflictError,
    412: ConflictError,
    422: InvalidError,
}
_TIMEOUT_S = 30.0
_MOST_PER_PAGE = 500  # that the API gives at once
_STREAM_TIMEOUT_S = httpx.Timeout(_TIMEOUT_S, read=30.0)  # a stream says that it lives every few seconds


@dataclass(frozen=True, slots=True)
class Access:
    """Where the control plane is, and the token for it."""

    url: str
    token: str


def access_file() -> Path:
    """What `denv up` and `denv login` write."""
    return env.home() / "credentials" / "cli.json"


def saved_access() -> Access:
    """What that file holds; empty texts when there is none."""
    path = access_file()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Access)
    except FileNotFoundError:
        return Access(url="", token="")
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidError(f"{path} cannot be read ({error}); `denv login URL` writes it anew", code="bad-credentials-file") from error


def checked_url(text: str) -> str:
    """The address of a control plane as it was typed; `host:8080` is taken as http."""
    url = text.strip()
    url = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidError(f"`{text}` is no address of a control plane; write one such as https://denv.example.com", code="bad-url")
    return url


def find_access() -> Access:
    """DENV_URL and DENV_TOKEN, else the file that `denv up` or `denv login` wrote."""
    url, token = os.environ.get("DENV_URL", ""), os.environ.get("DENV_TOKEN", "")
    if not (url and token):
        saved = saved_access()
        url, token = url or saved.url, token or saved.token
    if not url or not token:
        raise UnavailableError(
            f"no control plane is known here (looked in DENV_URL, DENV_TOKEN and {access_file()}). "
            "Start one with `denv up`, or name one with `denv login URL`.",
            code="no-access",
        )
    return Access(url=checked_url(url), token=token)


class Client:
    """Calls the API; every error comes out as a DenvError with the server's own sentence."""

    def __init__(self, access: Access | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.access = access or find_access()
        self._http = httpx.Client(
            base_url=self.access.url,
            timeout=timeout_s,
            trust_env=False,  # a proxy of the shell is for other hosts than one's own control plane
            headers={"Authorization": f"Bearer {self.access.token}", "User-Agent": f"denv/{version('denv')}"},
        )

    def get(self, path: str, into: type[T], **params: object) -> T:
        """GET /api/v1/`path`."""
        return self._decode(self._send("GET", path, params=_given(params)), into)

    def get_tagged(self, path: str, into: type[T], **params: object) -> tuple[T, str]:
        """The same with its `ETag`, for `if_match` of a post: that is refused when what was looked at has moved on."""
        response = self._send("GET", path, params=_given(params))
        return self._decode(response, into), str(response.headers.get("ETag", ""))

    def get_list(self, path: str, item: type[T], **params: object) -> list[T]:
        """The `results` of a list."""
        return self._rows(self._decode(self._send("GET", path, params=_given(params)), dict[str, Any]), item)

    def get_pages(self, path: str, item: type[T], *, cursor: str, most: int, **params: object) -> list[T]:
        """Up to `most` rows of a list that comes in pages; `cursor` names what takes a page's `next`."""
        rows: list[T] = []
        place: dict[str, object] = {}
        while True:
            asked = {**params, **place, "limit": min(most - len(rows), _MOST_PER_PAGE)}
            body = self._decode(self._send("GET", path, params=_given(asked)), dict[str, Any])
            rows += self._rows(body, item)
            if body["next"] is None or len(rows) >= most:
                return rows
            place = {cursor: body["next"]}

    def get_all(self, path: str, item: type[T], **params: object) -> list[T]:
        """All rows of a list that is in the order of names."""
        return self.get_pages(path, item, cursor="after", most=sys.maxsize, **params)

    def post(self, path: str, into: type[T], body: Mapping[str, object] | None = None, *, if_match: str = "") -> T:
        """POST /api/v1/`path`; sent once more with the same key when the connection broke, and done once.

        With `if_match`, an ETag of `get_tagged`, it is ConflictError `stale-generation` when that is no longer so.
        """
        headers = _given({"Idempotency-Key": random_id("idem", 20), "If-Match": if_match})
        try:
            return self._decode(self._send("POST", path, json=_given(body or {}), headers=headers), into)
        except UnavailableError:
            return self._decode(self._send("POST", path, json=_given(body or {}), headers=headers), into)

    def events(self, path: str, **params: object) -> Iterator[tuple[str, str]]:
        """Server-sent events of GET /api/v1/`path`: name and data of each, until the server ends or the caller stops."""
        name = ""
        try:
            with self._http.stream("GET", f"/api/v1/{path}", params=_given(params), timeout=_STREAM_TIMEOUT_S) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response, path, params)
                for line in response.iter_lines():
                    key, _, value = line.partition(": ")
                    if key == "event":
                        name = value
                    elif key == "data":
                        yield name, value
        except httpx.TransportError as error:
            raise UnavailableError(f"the control plane at {self.access.url} went away ({error})", code="no-answer") from error

    def _rows(self, body: dict[str, Any], item: type[T]) -> list[T]:
        try:
            return [wire.from_plain(row, item) for row in body["results"]]
        except (InvalidError, KeyError) as error:
            raise _not_understood(self.access.url, error) from error

    def delete(self, path: str) -> None:
        """DELETE /api/v1/`path`."""
        self._send("DELETE", path)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self._http.request(method, f"/api/v1/{path.lstrip('/')}", **options)
        except httpx.TransportError as error:
            raise UnavailableError(
                f"the control plane at {self.access.url} does not answer ({error}). Is `denv up` running?", code="no-answer"
            ) from error
        if response.is_success:
            return response
        raise _refusal(response, path, {**options.get("params", {}), **options.get("json", {})})

    def _decode(self, response: httpx.Response, into: type[T]) -> T:
        try:
            return wire.decode(response.content, into)
        except InvalidError as error:
            raise _not_understood(self.access.url, error) from error


def _given(values: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != ""}


def _refusal(response: httpx.Response, path: str, params: Mapping[str, object]) -> DenvError:
    """The server's error, which knows what was asked for where there is no such thing."""
    refusal = _error_of(response)
    if isinstance(refusal, MissingError):
        refusal.path, refusal.params = path, params
    return refusal


def _error_of(response: httpx.Response) -> DenvError:
    kind = _ERRORS.get(response.status_code, UnavailableError if response.status_code >= 500 else DenvError)
    try:
        body = msgspec.json.decode(response.content)
        error = kind(str(body["detail"]), code=str(body["code"]), fields=body.get("fields"))
        error.request_id = str(body.get("request_id", ""))
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        moved = f"; it has moved to {response.headers['location']}" if response.has_redirect_location else ""
        asked = f"{response.request.method} {response.request.url}"
        error = UnavailableError(f"{asked} answered {response.status_code}{moved}. Is it a control plane of denv?", code="not-understood")
    return error


def _not_understood(url: str, error: Exception) -> DenvError:
    """It answered, but not as a control plane of this version does."""
    detail = f"what {url} answers is not understood by denv {version('denv')} ({error}). Is it a control plane of the same version?"
    return UnavailableError(detail, code="not-understood")
