"""Keeps secrets out of what leaves the node: values that engines were given, and texts that look like tokens. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "[hidden]"
_SHORTEST = 6  # a shorter value would hide half of the words of a log
_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16})"
    r"|(?i:(?<=bearer )[A-Za-z0-9._~+/-]{12,}=*)"
    r"|(?i:(?<=password=)[^\s&'\"]+|(?<=api_key=)[^\s&'\"]+|(?<=token=)[^\s&'\"]{12,})"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
)


def redact(text: str, values: Iterable[str] = ()) -> str:
    """The text with every one of `values`, and whatever looks like a token, replaced by `[hidden]`."""
    for value in sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return _TOKENS.sub(HIDDEN, text)
