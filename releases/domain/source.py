"""YAML text as a tree in which every key and value remembers its place.

Built from the parser's events and not by a loader: nothing is constructed, the depth and the number of values are bounded, and
aliases are refused, so no text costs more than its own length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
MAX_VALUES = 20_000

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What YAML 1.2 calls printable (section 5.1); a NUL or an escape byte in a spec means that this is another kind of file.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something is written, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, order=True)
class SpecError:
    """One mistake in a spec file: its place, the dotted path there (empty for the file as a whole), and a sentence with the cure."""

    place: Place
    path: str
    sentence: str

    def text(self, file: str = "denv.yaml") -> str:
        """`denv.yaml:6:26  release.topology.prefill.gpus: 0 is not a number of GPUs; it must be at least 1`."""
        head = f"{file}:{self.place.line}:{self.place.column}  "
        return f"{head}{self.path}: {self.sentence}" if self.path else head + self.sentence


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value, as its text: what it means is decided by who reads it, so `1e5` may be a revision."""

    place: Place
    text: str
    is_null: bool


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    place: Place
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping and its value."""

    key: str
    place: Place
    value: Node


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping; keys are unique, in the order written."""

    place: Place
    entries: tuple[Entry, ...]


Node = Scalar | Items | Mapping


def key_text(key: str) -> str:
    """A key as a path may show it: short, on one line, and without anything that a terminal would obey."""
    return key[:60] if key.isprintable() else ascii(key[:60])


class _RefusedError(Exception):
    """Ends the reading with its one error."""

    def __init__(self, place: Place, sentence: str, path: str = "") -> None:
        super().__init__(sentence)
        self.error = SpecError(place, path, sentence)


def read(source: str | bytes) -> Mapping | SpecError:
    """The tree of one YAML document whose top is a mapping, or the one reason why there is none."""
    try:
        text = _text(source)
        node = _compose(text)
    except _RefusedError as refused:
        return refused.error
    except yaml.MarkedYAMLError as error:
        return _syntax_error(error, text)
    except yaml.YAMLError as error:
        return SpecError(Place(1, 1), "", f"this is not YAML ({error}); check that it is the right file")
    if not isinstance(node, Mapping):
        return SpecError(node.place, "", "this is not a release file; it must be a mapping with `release:` and `stages:`")
    return node


def _text(source: str | bytes) -> str:
    size_bytes = len(source) if isinstance(source, bytes) or len(source) > MAX_BYTES else len(source.encode(errors="replace"))
    if size_bytes > MAX_BYTES:
        sentence = f"the file has {size_bytes / 1e6:.1f} MB and a release file at most 1 MB; check that it is the right file"
        raise _RefusedError(Place(1, 1), sentence)
    try:
        text = source if isinstance(source, str) else source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        head = error.object[: error.start].decode(errors="replace")
        raise _RefusedError(_place_of(head, len(head)), "this is not text in UTF-8; check that it is the right file") from error
    text = text.removeprefix("\ufeff")
    if unprintable := _UNPRINTABLE.search(text):
        sentence = f"a byte that no text has (0x{ord(unprintable[0]):02x}); check that this is the right file"
        raise _RefusedError(_place_of(text, unprintable.start()), sentence)
    return text


def _place_of(text: str, offset: int) -> Place:
    return Place(text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1)


def _place(event: yaml.Event) -> Place:
    mark = event.start_mark
    return Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)


class _Open:
    """A list or mapping whose end has not been seen."""

    def __init__(self, place: Place, is_mapping: bool, path: str) -> None:
        self.place = place
        self.is_mapping = is_mapping
        self.path = path
        self.items: list[Node] = []
        self.entries: list[Entry] = []
        self.seen: dict[str, Place] = {}
        self.key: Scalar | None = None

    @property
    def child_path(self) -> str:
        if not self.is_mapping:
            return f"{self.path}[{len(self.items)}]"
        return ".".join(part for part in (self.path, key_text(self.key.text) if self.key else "") if part)

    def add(self, node: Node) -> None:
        if not self.is_mapping:
            self.items.append(node)
        elif self.key is not None:
            self.entries.append(Entry(self.key.text, self.key.place, node))
            self.key = None
        elif isinstance(node, Scalar):
            self._take_key(node)
        else:
            raise _RefusedError(node.place, "a key must be a single word, not a list or a mapping", self.path)

    def _take_key(self, key: Scalar) -> None:
        if key.text in self.seen:
            first = self.seen[key.text]
            path = ".".join(part for part in (self.path, key_text(key.text)) if part)
            raise _RefusedError(key.place, f"the key is here twice; it is already on line {first.line}. Remove one of them", path)
        self.seen[key.text] = key.place
        self.key = key

    def close(self) -> Node:
        return Mapping(self.place, tuple(self.entries)) if self.is_mapping else Items(self.place, tuple(self.items))


def _compose(text: str) -> Node:
    stack: list[_Open] = []
    top: Node | None = None
    values = 0
    for event in _events(text):
        path = stack[-1].child_path if stack else ""
        if isinstance(event, yaml.DocumentStartEvent) and top is not None:
            raise _RefusedError(_place(event), "a second document starts here; a release file has one. Remove the `---` or make two files")
        if isinstance(event, yaml.AliasEvent):
            sentence = f"aliases such as `*{str(event.anchor)[:40]}` are not read; write the value out"
            raise _RefusedError(_place(event), sentence, path)
        node: Node | None = None
        if isinstance(event, yaml.ScalarEvent):
            node = _scalar(event, path)
        elif isinstance(event, yaml.CollectionStartEvent):
            stack.append(_opened(event, path, len(stack)))
        elif isinstance(event, yaml.CollectionEndEvent):
            node = stack.pop().close()
        if node is None:
            continue
        values += 1
        if values > MAX_VALUES:
            raise _RefusedError(node.place, f"over {MAX_VALUES:,} values; a release file has some dozens. Check that it is the right file")
        if stack:
            stack[-1].add(node)
        else:
            top = node
    if top is None or (isinstance(top, Scalar) and top.is_null):
        raise _RefusedError(Place(1, 1), "the file is empty; a release file starts with `release:`")
    return top


def _events(text: str) -> Iterator[yaml.Event]:
    yield from yaml.parse(text, Loader=_Loader)


def _refuse_tag(event: yaml.ScalarEvent | yaml.CollectionStartEvent, path: str) -> None:
    if event.tag is not None and event.tag != "!":
        raise _RefusedError(_place(event), f"the tag `{event.tag[:60]}` is not read; write the value alone", path)


def _scalar(event: yaml.ScalarEvent, path: str) -> Scalar:
    _refuse_tag(event, path)
    return Scalar(_place(event), event.value, is_null=not event.style and event.value in _NULLS)


def _opened(event: yaml.CollectionStartEvent, path: str, depth: int) -> _Open:
    _refuse_tag(event, path)
    if depth >= MAX_DEPTH:
        raise _RefusedError(_place(event), f"nested over {MAX_DEPTH} deep; a release file is at most 5 deep", path[:80])
    return _Open(_place(event), isinstance(event, yaml.MappingStartEvent), path)


# The parser's own words, by their beginning, and what to do about it.
_CURES = (
    ("mapping values are not allowed", "a colon where no key can be; check the indentation, or put the text in quotes"),
    ("did not find expected key", "no key where one is expected; check the indentation and that every bracket and quote is closed"),
    ("did not find expected '-' indicator", "this line does not belong to the list above it; check the indentation"),
    ("could not find expected ':'", "a key without its colon; write `key: value`"),
    ("did not find expected ',' or", "this bracket is not closed, or a comma is missing inside it"),
    ("did not find expected node content", "a value is missing here, or there is a comma too many"),
    ("found unexpected end of stream", "this quote is never closed"),
    ("found character that cannot start any token", "this character cannot start a value; put the text in quotes"),
    ("found undefined tag handle", "a text that starts with `!` must be put in quotes"),
    ("exceeded max", "nested too deeply; a release file is at most 5 deep"),
)


_OPENED = ("did not find expected ',' or", "found unexpected end of stream")  # told at the place where it begins, not where it is missed


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> SpecError:
    problem = " ".join(str(error.problem or error).split())
    mark = (error.context_mark if problem.startswith(_OPENED) else None) or error.problem_mark or error.context_mark
    place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
    lines = text.splitlines()
    if place.line <= len(lines) and "\t" in lines[place.line - 1][: place.column]:
        return SpecError(place, "", "a tab; YAML is indented with spaces only, so replace it by spaces")
    for words, cure in _CURES:
        if problem.startswith(words):
            return SpecError(place, "", cure)
    return SpecError(place, "", f"this is not YAML: {problem}; check this line and the one before it")
