"""A typed client of the REST API: what every command but the programs is made of."""

from __future__ import annotations

import json
import os
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

_ERRORS: dict[int, type[DenvError]] = {
    400: InvalidError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
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
    try:
        saved = json.loads(access_file().read_text(encoding="utf-8"))
    except FileNotFoundError:
        saved = {}
    return Access(url=saved.get("url", ""), token=saved.get("token", ""))


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
    return Access(url=url.rstrip("/"), token=token)


class Client:
    """Calls the API; every error comes out as a DenvError with the server's own sentence."""

    def __init__(self, access: Access | None = None) -> None:
        self.access = access or find_access()
        self._http = httpx.Client(
            base_url=self.access.url,
            timeout=_TIMEOUT_S,
            trust_env=False,  # a proxy of the shell is for other hosts than one's own control plane
            headers={"Authorization": f"Bearer {self.access.token}", "User-Agent": f"denv/{version('denv')}"},
        )

    def get(self, path: str, into: type[T], **params: object) -> T:
        """GET /api/v1/`path`."""
        return self._decode(self._send("GET", path, params=_given(params)), into)

    def get_list(self, path: str, item: type[T], **params: object) -> list[T]:
        """The `results` of a list."""
        body = self._decode(self._send("GET", path, params=_given(params)), dict[str, Any])
        return [wire.from_plain(row, item) for row in body["results"]]

    def get_pages(self, path: str, item: type[T], *, cursor: str, most: int, **params: object) -> list[T]:
        """Up to `most` rows of a list that comes in pages; `cursor` names what takes a page's `next`."""
        rows: list[T] = []
        place: dict[str, object] = {}
        while True:
            asked = {**params, **place, "limit": min(most - len(rows), _MOST_PER_PAGE)}
            body = self._decode(self._send("GET", path, params=_given(asked)), dict[str, Any])
            rows += [wire.from_plain(row, item) for row in body["results"]]
            if body["next"] is None or len(rows) >= most:
                return rows
            place = {cursor: body["next"]}

    def post(self, path: str, into: type[T], body: Mapping[str, object] | None = None) -> T:
        """POST /api/v1/`path`; sent once more with the same key when the connection broke, and done once."""
        headers = {"Idempotency-Key": random_id("idem", 20)}
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
                    raise _error_of(response)
                for line in response.iter_lines():
                    key, _, value = line.partition(": ")
                    if key == "event":
                        name = value
                    elif key == "data":
                        yield name, value
        except httpx.TransportError as error:
            raise UnavailableError(f"the control plane at {self.access.url} went away ({error})", code="no-answer") from error

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
        raise _error_of(response)

    def _decode(self, response: httpx.Response, into: type[T]) -> T:
        return wire.decode(response.content, into)


def _given(values: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != ""}


def _error_of(response: httpx.Response) -> DenvError:
    kind = _ERRORS.get(response.status_code, UnavailableError if response.status_code >= 500 else DenvError)
    try:
        body = msgspec.json.decode(response.content)
        return kind(str(body["detail"]), code=str(body["code"]), fields=body.get("fields"))
    except (msgspec.MsgspecError, KeyError, TypeError):
        return kind(f"{response.request.method} {response.request.url.path} answered {response.status_code}")
