"""`If-Match`: act only on what was looked at (RFC 9110, sections 8.8.3 and 13.1.1)."""

from __future__ import annotations

import re

from rest_framework.request import Request

from denvweb.core.errors import ConflictError, InvalidError

_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_TAGS = re.compile(rf"{_TAG}(?:[ \t]*,[ \t]*{_TAG})*")
_LONGEST = 2000


class StaleError(ConflictError):
    """What was looked at is no longer so."""

    code = "stale-generation"
    http_status = 412


def etag(*parts: object) -> str:
    """A strong entity tag of words without blanks or quotes: its id and what changes with every decision."""
    return f'"{".".join(map(str, parts))}"'


def if_match(request: Request) -> frozenset[str] | None:
    """The tags that the request is for; None when it is for whatever is there (no header, or `*`).

    A weak tag (`W/"..."`) stays in and equals none of ours, as the standard has it. InvalidError `if-match-invalid` for anything else.
    """
    told = request.headers.get("If-Match", "").strip()
    if told in ("", "*"):
        return None
    if len(told) > _LONGEST or not _TAGS.fullmatch(told):
        raise InvalidError(
            'If-Match must be `*`, or entity tags in quotes as the ETag header of a rollout gives them: "ro-abc.12".',
            code="if-match-invalid",
        )
    return frozenset(re.findall(_TAG, told))
