"""JSON between denv's programs: typed dataclasses in, bytes out, and back with every field checked.

JSON has no infinity: values are finite. Unknown fields are ignored and missing ones take their defaults, so programs of
neighbouring versions understand each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from denvweb.core.errors import InvalidError

T = TypeVar("T")


def encode(value: object) -> bytes:
    """JSON bytes of a dataclass, or of plain data."""
    return msgspec.json.encode(value)


def decode(data: bytes | str, into: type[T]) -> T:
    """Parse JSON into `into`; InvalidError names the field that does not fit."""
    try:
        return msgspec.json.decode(data, type=into)
    except msgspec.MsgspecError as error:
        raise InvalidError(f"the message does not fit {into.__name__}: {error}", code="bad-message") from error


def decoder(into: type[T]) -> Callable[[str], T]:
    """`decode` for one kind of text, for loops over thousands of our own: half the time, and msgspec's own error."""
    return msgspec.json.Decoder(into).decode


def to_plain(value: object) -> Any:
    """Dicts, lists and scalars of a dataclass, fit for a JSON column."""
    return msgspec.to_builtins(value)


def from_plain(data: object, into: type[T]) -> T:
    """The opposite of `to_plain`; InvalidError names the field that does not fit."""
    try:
        return msgspec.convert(data, type=into)
    except msgspec.MsgspecError as error:
        raise InvalidError(f"the value does not fit {into.__name__}: {error}", code="bad-message") from error
