"""A spec file as a form: its values by path, and the text with one of them changed and everything else as it was.

The text stays the truth: comments, order and spacing are the author's, and a form can only change what is written there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from releases.domain.source import Items, Mapping, Node, Place, Scalar, read

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./@%+-]*(:(//)?[A-Za-z0-9_./@%+-]+)*")
_MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Field:
    """One value that is written in the file. `path` is `release.topology.prefill.gpus` or `stages.prod.fleets[0]`."""

    path: str
    value: str


def fields_of(text: str) -> tuple[Field, ...]:
    """All values on one line, in the order written; none of a text that is no mapping."""
    tree = read(text)
    if not isinstance(tree, Mapping):
        return ()
    lines = text.splitlines()
    return tuple(Field(path, scalar.text) for path, scalar in _scalars(tree, "") if _raw(lines, scalar) is not None)


def with_value(text: str, path: str, value: str) -> str:
    """The text with another value at a path; as it was when nothing on one line is written there, or the value is no single line."""
    tree = read(text)
    if not isinstance(tree, Mapping) or not value.isprintable() or len(value) > _MOST_CHARACTERS:
        return text
    scalar = next((found for at, found in _scalars(tree, "") if at == path), None)
    lines = text.splitlines(keepends=True)
    raw = _raw(lines, scalar) if scalar is not None else None
    if scalar is None or raw is None:
        return text
    index, at = scalar.place.line - 1, scalar.place.column - 1
    written = value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    lines[index] = lines[index][:at] + written + lines[index][at + len(raw) :]
    return "".join(lines)


def _scalars(node: Node, path: str) -> Iterator[tuple[str, Scalar]]:
    if isinstance(node, Scalar):
        yield path, node
    elif isinstance(node, Items):
        for index, item in enumerate(node.items):
            yield from _scalars(item, f"{path}[{index}]")
    else:
        for entry in node.entries:
            yield from _scalars(entry.value, f"{path}.{entry.key}" if path else entry.key)


def _raw(lines: list[str], scalar: Scalar) -> str | None:
    """How the value is written, quotes included; None when that is not on one line, or in a way that is not worth a form."""
    rest = _from(lines, scalar.place)
    if scalar.text and rest.startswith(scalar.text) and rest[0] not in "'\"|>&!":
        return scalar.text
    for quoted in (json.dumps(scalar.text, ensure_ascii=False), "'" + scalar.text.replace("'", "''") + "'"):
        if rest.startswith(quoted):
            return quoted
    return None


def _from(lines: list[str], place: Place) -> str:
    return lines[place.line - 1][place.column - 1 :] if place.line <= len(lines) else ""
