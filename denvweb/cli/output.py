"""How commands print: aligned columns, colour only where it repeats what words say, JSON when asked."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from denvweb.core import wire
from denvweb.core.errors import InvalidError

F = TypeVar("F", bound=Callable[..., Any])

_COLOURS = {"error": "red", "bad": "red", "warn": "yellow", "ok": "green", "advice": "cyan", "plan": "cyan"}


def json_option(command: F) -> F:
    """`--json`: the API's own answer where there is one, for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def echo_json(value: object) -> None:
    """Indented JSON of a view."""
    click.echo(json.dumps(wire.to_plain(value), indent=2, ensure_ascii=False))


def echo_json_line(value: object) -> None:
    """The same on one line: one of a stream of values."""
    click.echo(json.dumps(wire.to_plain(value), ensure_ascii=False))


def echo_done(as_json: bool, value: object, sentence: str) -> None:
    """What was done: the API's answer, or a value that says as much where it answers nothing; else a sentence."""
    if as_json:
        echo_json(value)
    else:
        click.echo(sentence)


def typed_secret(question: str) -> str:
    """Asked for on a terminal, without showing it, else read from standard input; InvalidError when nothing came."""
    if sys.stdin.isatty():
        return str(click.prompt(question, hide_input=True, err=True))
    value = sys.stdin.read().rstrip("\r\n")
    if not value:
        raise InvalidError(f"{question}: nothing came; pipe it in, or call this on a terminal")
    return value


def paint(text: str, level: str) -> str:
    """Colour for a level; click drops it where stdout is no terminal."""
    colour = _COLOURS.get(level)
    return click.style(text, fg=colour) if colour else text


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> str:
    """Columns two spaces apart; `right` names the columns that hold numbers."""
    if not rows:
        return ""
    plain = [[click.unstyle(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in plain if i < len(row)) for i in range(max(map(len, plain)))]
    lines = []
    for row, bare in zip(rows, plain, strict=True):
        cells = [
            " " * (widths[i] - len(bare[i])) + cell if i in right else cell + " " * (widths[i] - len(bare[i])) for i, cell in enumerate(row)
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


@contextmanager
def redrawn() -> Iterator[Callable[[str], None]]:
    """A text that replaces itself on a terminal; elsewhere only a changed text is printed again."""
    last = ""
    moves = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def draw(text: str) -> None:
        nonlocal last
        if text == last:
            return
        if moves and last:
            size = shutil.get_terminal_size()
            rows = rows_of(last, size.columns)
            # What has left the screen above cannot be drawn over: begin at its top.
            sys.stdout.write(f"\x1b[{rows}F\x1b[J" if rows < size.lines else "\x1b[H\x1b[J")
        click.echo(text)
        last = text

    yield draw


def rows_of(text: str, columns: int) -> int:
    """Rows that a text takes on a terminal so wide; a line that is longer wraps."""
    return sum(max(1, -(-len(click.unstyle(line)) // max(1, columns))) for line in text.split("\n"))


def split_stage(text: str) -> tuple[str, str]:
    """`model/stage`, or a usage error that shows the form."""
    model, slash, name = text.partition("/")
    if not (model and slash and name) or "/" in name:
        raise click.UsageError(f"`{text}` is no stage; write MODEL/STAGE, as in ds-flash/prod-us")
    return model, name
