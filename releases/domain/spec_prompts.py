"""The prompts of synthetic traffic: a list in the release file, or the name of a file whose lines `denv release` puts in its place.

So the text that makes a release says all of it: nobody needs the file again to read it, to check it or to roll it out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping as Contents
from dataclasses import dataclass

from releases.domain import source
from releases.domain.source import Items, Mapping, Node, Place, Scalar
from releases.domain.spec_reader import Wrong, shown

MOST_PROMPTS = 64
MOST_BYTES = 32_768  # of all prompts of a stage: they go to every router
_RATES = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
MOST_PER_S = 50.0


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A file that the text names, and where."""

    place: Place
    name: str


def prompt_files(text: str) -> tuple[PromptFile, ...]:
    """The files that a release file names as prompts; none when the text is not YAML, which is said elsewhere."""
    stages = _entries(source.read(text), "stages")
    prompts = [node for stage in stages for node in _below(stage, "rollout", "probe", "prompts")]
    return tuple(PromptFile(node.place, node.text) for node in prompts if isinstance(node, Scalar) and not node.is_null)


def _entries(node: object, key: str) -> list[Node]:
    below = _below(node, key)
    return [entry.value for item in below if isinstance(item, Mapping) for entry in item.entries]


def _below(node: object, *keys: str) -> list[Node]:
    found: list[object] = [node]
    for key in keys:
        found = [entry.value for item in found if isinstance(item, Mapping) for entry in item.entries if entry.key == key]
    return [item for item in found if isinstance(item, Scalar | Items | Mapping)]


def prompts_of(content: str) -> tuple[str, ...]:
    """One prompt a line; a line in JSON's quotes may hold line breaks. Blank lines are passed over."""
    return tuple(_unquoted(line.strip()) for line in content.splitlines() if line.strip())


def _unquoted(line: str) -> str:
    if line.startswith('"'):
        try:
            value = json.loads(line)
        except ValueError:
            return line
        return value if isinstance(value, str) else line
    return line


def put_in(text: str, named: PromptFile, prompts: tuple[str, ...]) -> str | None:
    """The text with the prompts where the file's name stood, on the same line; None when the name is not found there."""
    lines = text.splitlines(keepends=True)
    line, at = lines[named.place.line - 1], named.place.column - 1
    for written in (named.name, f'"{named.name}"', f"'{named.name}'"):
        if line.startswith(written, at):
            lines[named.place.line - 1] = line[:at] + json.dumps(list(prompts)) + line[at + len(written) :]
            return "".join(lines)
    return None


def all_put_in(text: str, contents: Contents[str, str]) -> str:
    """The text with the lines of all files in place of their names; the last first, so that places stay true."""
    for named in sorted(prompt_files(text), key=lambda item: item.place, reverse=True):
        if named.name in contents:
            text = put_in(text, named, prompts_of(contents[named.name])) or text
    return text


def read_prompts(node: Node) -> tuple[str, ...] | Wrong:
    """The list of a release file."""
    if isinstance(node, Scalar):
        return Wrong(f"{shown(node)} is a file, whose lines `denv release` puts here; elsewhere write the prompts as a list")
    if not isinstance(node, Items) or not node.items:
        return Wrong("there is no prompt; write a list of them, or the name of a file with one a line")
    values = []
    for index, item in enumerate(node.items):
        if not isinstance(item, Scalar) or not item.text.strip():
            return Wrong(f"{shown(item)} is no prompt; write a text", f"[{index}]", item.place)
        values.append(item.text)
    size_bytes = sum(len(value.encode()) for value in values)
    if len(values) > MOST_PROMPTS or size_bytes > MOST_BYTES:
        return Wrong(
            f"{len(values):,} prompts with {size_bytes:,} bytes; at most {MOST_PROMPTS} with {MOST_BYTES:,} bytes go to the routers"
        )
    return tuple(values)


def read_rate(node: Node) -> float | Wrong:
    """Requests a second of `1/s` or `30/m`."""
    number, _, unit = (node.text if isinstance(node, Scalar) else "").strip().partition("/")
    try:
        per_s = float(number) / _RATES[unit.strip()]
    except (ValueError, KeyError):
        return Wrong(f"{shown(node)} is no rate; write one such as 1/s or 30/m")
    return (
        per_s if 0 < per_s <= MOST_PER_S else Wrong(f"{shown(node)} is no rate of probes; it must be over 0 and at most {MOST_PER_S:g}/s")
    )
