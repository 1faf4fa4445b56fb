"""Reads values out of the tree and collects every mistake on the way, in the user's own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from denvweb.core.units import parse_bytes, parse_duration_s, parse_ratio
from denvweb.core.words import did_you_mean
from releases.domain.source import Entry, Items, Mapping, Node, Place, Scalar, SpecError, key_text

E = TypeVar("E", bound=StrEnum)
V = TypeVar("V")
D = TypeVar("D")

MAX_ERRORS = 100
_WHOLE = re.compile(r"-?\d{1,9}")
_NUMBER = re.compile(r"-?\d{1,9}(\.\d{1,9})?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_TRUTH = {"true": True, "True": True, "false": False, "False": False}


def one_of(words: Sequence[str]) -> str:
    """`one of a, b, c`."""
    return "one of " + ", ".join(words)


def shown(node: Node) -> str:
    """A value as a sentence may quote it."""
    if isinstance(node, Scalar):
        if node.is_null:
            return "nothing"
        return node.text if 0 < len(node.text) <= 60 and node.text.isprintable() else repr(node.text[:60])
    return "a list" if isinstance(node, Items) else "a mapping"


@dataclass(frozen=True, slots=True)
class Wrong:
    """The sentence of a value that will not do; `below` and `place` when it is about a part of it, such as `[1]`."""

    sentence: str
    below: str = ""
    place: Place | None = None


class Section:
    """One mapping of the file while it is read: each `take` returns the value of a key, or the default after a reported mistake.

    Sections share one list of mistakes. `finish` reports the keys that nobody took.
    """

    def __init__(self, errors: list[SpecError], node: Node | None, path: str, at: Place) -> None:
        self.errors = errors
        self.path = path
        self.at = at  # where a missing key is reported: at the section's own key
        self.node = node
        self.is_mapping = isinstance(node, Mapping)
        self._entries: dict[str, Entry] = {entry.key: entry for entry in node.entries} if isinstance(node, Mapping) else {}
        self._known: list[str] = []
        if node is not None and not self.is_mapping:
            what = "is empty" if shown(node) == "nothing" else f"{shown(node)} is not a mapping"
            self.fail(node.place, "", f"{what}; write its keys indented below it, or in braces")

    def fail(self, place: Place, key: str, sentence: str) -> None:
        """Report a mistake of `key`, or of the section itself when the key is empty."""
        self.errors.append(SpecError(place, self.path_of(key), sentence))

    def path_of(self, key: str) -> str:
        """The dotted path of a key."""
        return ".".join(part for part in (self.path, key_text(key) if key else "") if part)

    def entry(self, key: str) -> Entry | None:
        """The key as written; the caller takes care of its value."""
        self._known.append(key)
        return self._entries.get(key)

    def entries(self) -> tuple[Entry, ...]:
        """All keys, for a section whose keys are names that the user chose."""
        return tuple(self._entries.values())

    def has(self, key: str) -> bool:
        """Whether the key is written, with a value or without."""
        return key in self._entries

    def section(self, key: str, missing: str = "") -> Section | None:
        """The section below a key. None without it, and `missing` is the sentence reported then."""
        entry = self.entry(key)
        if entry is None:
            if missing and self.is_mapping:
                self.fail(self.at, key, missing)
            return None
        return Section(self.errors, entry.value, self.path_of(key), entry.place)

    def take(self, key: str, read: Callable[[Node], V | Wrong], default: D, missing: str = "") -> V | D:
        """The value of a key through `read`, which returns Wrong when the value will not do."""
        entry = self.entry(key)
        if entry is None:
            if missing and self.is_mapping:
                self.fail(self.at, key, missing)
            return default
        value = read(entry.value)
        if isinstance(value, Wrong):
            self.fail(value.place or entry.value.place, key + value.below, value.sentence)
            return default
        return value

    def finish(self) -> None:
        """Report every key that is not one of this section."""
        for entry in self._entries.values():
            if entry.key not in self._known:
                hint = did_you_mean(entry.key, self._known) or f"; the keys are {', '.join(self._known)}"
                self.fail(entry.place, entry.key, f"not a key here{hint}")


def _plain(node: Node) -> str | None:
    return node.text.strip() if isinstance(node, Scalar) and not node.is_null else None


def text(what: str) -> Callable[[Node], str | Wrong]:
    """Any text on one line; `what` names it in the sentence."""

    def read(node: Node) -> str | Wrong:
        value = _plain(node)
        return value if value and value.isprintable() and len(value) <= 500 else Wrong(f"{shown(node)} is not {what}")

    return read


def name(what: str) -> Callable[[Node], str | Wrong]:
    """A name as models, stages and fleets have it."""

    def read(node: Node) -> str | Wrong:
        value = _plain(node)
        return value if value is not None and is_name(value) else Wrong(f"{shown(node)} is not {what}; {NAME_RULE}")

    return read


NAME_RULE = "use up to 63 small letters, digits, dashes and dots, with a letter or digit first and last"


def is_name(value: str) -> bool:
    """Whether a model, stage or fleet may be called so."""
    return _NAME.fullmatch(value) is not None


def whole(what: str, least: int, most: int) -> Callable[[Node], int | Wrong]:
    """A whole number in `least..most`."""

    def read(node: Node) -> int | Wrong:
        value = _plain(node)
        number = int(value) if value is not None and _WHOLE.fullmatch(value) else None
        if number is not None and least <= number <= most:
            return number
        bound = f"at most {most:,}" if number is not None and number > most else f"at least {least}"
        cure = f"it must be {bound}" if number is not None else f"write a whole number, at least {least}"
        return Wrong(f"{shown(node)} is not {what}; {cure}")

    return read


def number(what: str, least: float, most: float) -> Callable[[Node], float | Wrong]:
    """A number in `least..most`."""

    def read(node: Node) -> float | Wrong:
        value = _plain(node)
        if value is not None and _NUMBER.fullmatch(value) and least <= float(value) <= most:
            return float(value)
        return Wrong(f"{shown(node)} is not {what}; write a number from {least:g} to {most:g}")

    return read


def duration(node: Node, least_s: float = 0.0, most_s: float = 30 * 86400.0) -> float | Wrong:
    """Seconds of `10m`."""
    value = _plain(node)
    seconds = parse_duration_s(value) if value is not None and len(value) <= 40 else None
    if seconds is None:
        return Wrong(f"{shown(node)} is not a duration; write one such as 30s, 10m or 1h30m")
    if not least_s <= seconds <= most_s:
        return Wrong(f"{shown(node)} is not in range; write {least_s:g}s to {most_s / 86400:g}d")
    return seconds


def ratio(node: Node) -> float | Wrong:
    """0.1 of `10%`; over 0% up to 100%."""
    value = _plain(node)
    share = parse_ratio(value) if value is not None and len(value) <= 40 else None
    if share is None:
        return Wrong(f"{shown(node)} is not a percentage; write one such as 10%")
    return round(share, 6) if 0 < share <= 1 else Wrong(f"{shown(node)} is not a share of the traffic; it must be over 0% and at most 100%")


def size(node: Node) -> int | Wrong:
    """Bytes of `256GiB`."""
    value = _plain(node)
    count = parse_bytes(value) if value is not None and len(value) <= 40 else None
    return count if count is not None else Wrong(f"{shown(node)} is not a size; write one such as 256GiB")


def truth(node: Node) -> bool | Wrong:
    """`true` or `false`."""
    value = _TRUTH.get(_plain(node) or "")
    return value if value is not None else Wrong(f"{shown(node)} is neither true nor false")


def choice(kind: type[E]) -> Callable[[Node], E | Wrong]:
    """A member of an enumeration by its text."""

    def read(node: Node) -> E | Wrong:
        value, words = _plain(node), [member.value for member in kind]
        if value in words:
            return kind(value)
        return Wrong(f"{shown(node)} is not known here{did_you_mean(value or '', words) or '; ' + one_of(words)}")

    return read


def count_range(what: str, most: int) -> Callable[[Node], tuple[int, int] | Wrong]:
    """`2` or `{ min: 1, max: 3 }` as its two ends; `what` names one end, such as `a number of replicas`."""
    read_one = whole(what, 1, most)

    def read(node: Node) -> tuple[int, int] | Wrong:
        if not isinstance(node, Mapping):
            count = read_one(node)
            return count if isinstance(count, Wrong) else (count, count)
        ends = {"min": 0, "max": 0}
        for entry in node.entries:
            if entry.key not in ends:
                return Wrong("not a key here; the keys are min, max", f".{key_text(entry.key)}", entry.place)
            count = read_one(entry.value)
            if isinstance(count, Wrong):
                return Wrong(count.sentence, f".{entry.key}", entry.value.place)
            ends[entry.key] = count
        if not (ends["min"] and ends["max"]):
            return Wrong("a range needs both ends; write `{ min: 1, max: 3 }`")
        if ends["min"] > ends["max"]:
            return Wrong(f"min {ends['min']} is over max {ends['max']}; swap them")
        return ends["min"], ends["max"]

    return read


def several(read_one: Callable[[Node], V | Wrong], example: str) -> Callable[[Node], tuple[V, ...] | Wrong]:
    """A list with at least one value."""

    def read(node: Node) -> tuple[V, ...] | Wrong:
        if not isinstance(node, Items) or not node.items:
            return Wrong(f"{shown(node) if not isinstance(node, Items) else 'an empty list'} will not do; write a list such as {example}")
        values: list[V] = []
        for index, item in enumerate(node.items):
            value = read_one(item)
            if isinstance(value, Wrong):
                return Wrong(value.sentence, f"[{index}]", item.place)
            values.append(value)
        return tuple(values)

    return read
