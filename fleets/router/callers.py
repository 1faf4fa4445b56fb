"""Who may ask: API keys of clients, and what each has used of its allowance in this router process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from denvweb.core.ids import parse_credential, secret_matches
from fleets.domain.allowance import Meter
from fleets.domain.protocol import ApiKey

if TYPE_CHECKING:
    from fleets.router.heads import RequestHead


class RefusedError(Exception):
    """A request is not taken, with the status and OpenAI's error fields that say why."""

    def __init__(self, status: int, code: str, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s


class Caller:
    """A key and its meter; both stay while tables come and go."""

    __slots__ = ("key", "meter")

    def __init__(self, key: ApiKey, meter: Meter) -> None:
        self.key = key
        self.meter = meter


class Callers:
    """The keys of the table in force. `share`: this process gets so many parts of each limit, one of `share`."""

    def __init__(self, share: int = 1) -> None:
        self._share = share
        self._callers: dict[str, Caller] = {}
        self.required = False
        self.refused = {"unauthorized": 0, "rate_limited": 0}

    def set(self, keys: tuple[ApiKey, ...], *, required: bool) -> bool:
        """Put a table's keys in force. True if heads that were read before have to be looked at anew."""
        before, was_required = self._callers, self.required
        self._callers = {key.id: self._caller(key, before.get(key.id)) for key in keys}
        self.required = required
        return before.keys() != self._callers.keys() or required != was_required

    def _caller(self, key: ApiKey, held: Caller | None) -> Caller:
        allowance = key.allowance.shared(self._share)
        if held is None:
            return Caller(key, Meter(allowance, time.monotonic()))
        held.key = key
        if held.meter.allowance != allowance:
            held.meter.change(allowance)
        return held

    def check(self, head: RequestHead) -> Caller | None:
        """Who asks; None where no key is asked for. Raises RefusedError (401)."""
        if not self.required:
            return None
        found = head.caller
        if found is None:
            found = head.caller = self._find(head.header(b"authorization").decode("latin-1"))
        if found.key.expires_at is not None and found.key.expires_at <= time.time():
            self.refused["unauthorized"] += 1
            raise RefusedError(401, "invalid_api_key", f"the API key {found.key.id} has expired")
        return found

    def _find(self, authorization: str) -> Caller:
        scheme, _, text = authorization.partition(" ")
        credential = parse_credential(text) if scheme.lower() == "bearer" else None
        caller = self._callers.get(credential.id) if credential else None
        if credential is None or caller is None or not secret_matches(credential.secret, caller.key.secret_hash):
            self.refused["unauthorized"] += 1
            what = "this API key is unknown or was revoked" if text else "this takes an API key: `Authorization: Bearer key-...`"
            raise RefusedError(401, "invalid_api_key", what)
        return caller

    def enter(self, caller: Caller) -> None:
        """Take one of its requests. Raises RefusedError (429)."""
        limit, again_s = caller.meter.enter(time.monotonic())
        if limit:
            self.refused["rate_limited"] += 1
            raise RefusedError(429, "rate_limit_exceeded", f"the API key {caller.key.id} is limited to {limit} here", again_s)
