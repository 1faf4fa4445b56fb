"""docs/reference/command.md, from the tree of commands and the flags of the programs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import click

from denvweb.cli.main import COMMANDS, cli
from fleets.agent import config as agent
from fleets.router import config as router

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command.md"
_HEAD = """\
# The command

By `make command-docs`, from the command itself; a test holds it to that. `denv COMMAND --help` says the same.

**Where it goes.** `DENV_URL` and `DENV_TOKEN`, else what `denv login` or `denv up` wrote to `credentials/cli.json` in `DENV_HOME`
(`~/.denv`).

**Exit status.** 0: done. 1: refused or failed, as a dry run that does not fit, a rollout that did not succeed, or a name that there is
none of. 2: what was typed, or the file, is wrong; nothing was sent. 3: the control plane does not answer. 130: interrupted.

**Programs.** With `--json` standard output is one JSON document, the API's own answer; of `--watch`, `--wait`, `rollout watch` and `logs`
it is one document a line. Errors are one line of JSON on standard error, in the API's body: `code`, `detail`, `fields`, `request_id`.

**Terminals.** Colour repeats what words say, and only a terminal gets it; `NO_COLOR` switches it off. Nothing is drawn with box
characters. Questions go to standard error; where nobody can answer, say `--yes`.

**Shells.** `eval "$(denv completion bash)"` (or `zsh`, `fish`) completes commands, options and the names of stages, models, fleets,
nodes, recipes and secrets; they are asked of the control plane, which has a second for it. A word that is none gets the nearest one.
"""
_PROGRAMS = {"agent": agent.parser, "router": router.parser}


def page() -> str:
    """The whole page."""
    ctx = click.Context(cli, info_name="denv")
    parts = [_HEAD]
    for name in COMMANDS:
        command = cli.get_command(ctx, name)
        assert command is not None
        parts += _sections(command, click.Context(command, info_name=name, parent=ctx), 2)
    return "\n".join(parts)


def _sections(command: click.Command, ctx: click.Context, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {ctx.command_path}\n"
    if isinstance(command, click.Group):
        if command.invoke_without_command:
            yield from _usage(command, ctx)
        else:
            yield f"{_prose(command)}\n"
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from _sections(below, click.Context(below, info_name=name, parent=ctx), depth + 1)
    else:
        yield from _usage(command, ctx)


def _usage(command: click.Command, ctx: click.Context) -> Iterator[str]:
    name = ctx.command_path.partition(" ")[2]
    words = [*(param.make_metavar(ctx) for param in command.params if isinstance(param, click.Argument) and param.name != "args")]
    yield f"```\n{' '.join([ctx.command_path, *words, '[OPTIONS]'])}\n```\n"
    yield f"{_prose(command)}\n"
    rows = [*_options(command, ctx), *(_flags(_PROGRAMS[name]()) if name in _PROGRAMS else ())]
    if rows:
        yield "\n".join(["| option | |", "| --- | --- |", *rows]) + "\n"


def _prose(command: click.Command) -> str:
    paragraphs = (command.help or "").strip().split("\n\n")
    return "\n\n".join(re.sub(r"\s+", " ", paragraph.strip()) for paragraph in paragraphs)


def _options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for param in command.params:
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record is not None:
            yield _row(*record)


def _flags(made: argparse.ArgumentParser) -> Iterator[str]:
    formatter = made._get_formatter()
    for action in made._actions:
        if action.dest != "help":
            yield _row(formatter._format_action_invocation(action), formatter._expand_help(action))


def _row(flags: str, text: str) -> str:
    told = re.sub(r"\s+", " ", text).replace("|", "\\|")
    return f"| `{flags.replace('|', chr(92) + '|')}` | {told} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
