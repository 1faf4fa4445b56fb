"""What goes wrong, as the command says it: a sentence for people on stderr, or with `--json` the API's own error body."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable

import click

from denvweb.core.errors import DenvError, NotFoundError
from denvweb.core.words import meant, nearest

_CHOICE = re.compile(r"'(.*)' is not one of ", re.DOTALL)


def as_json(words: Iterable[str]) -> bool:
    """Whether the command line asks for JSON; it may be too wrong to be taken apart."""
    return "--json" in words


def show(error: DenvError, words: Iterable[str]) -> int:
    """Say it; the exit status."""
    detail = f"{error.detail} {_name_meant(error)}".rstrip()
    if as_json(words):
        body = {"code": error.code, "detail": detail, "fields": error.fields, "request_id": error.request_id}
        click.echo(json.dumps(body, ensure_ascii=False), err=True)
        return error.exit_status
    click.echo(f"denv: {detail}", err=True)
    for path, problems in error.fields.items():
        for problem in problems:
            if problem not in error.detail:
                click.echo(f"  {path}: {problem}" if path else f"  {problem}", err=True)
    if error.request_id and error.exit_status == 3:
        click.echo(f"  (request {error.request_id}, for whoever reads the control plane's log)", err=True)
    return error.exit_status


def _name_meant(error: DenvError) -> str:
    """For something that there is none of: the name that was meant."""
    if not isinstance(error, NotFoundError):
        return ""
    from denvweb.cli import client, names  # only now: `denv --help` needs no HTTP

    return names.meant_in_path(error.path, error.params) if isinstance(error, client.MissingError) else ""


def show_usage(error: click.ClickException, words: Iterable[str]) -> int:
    """Say what is wrong with the command line, with the word that was meant, or how the command is used."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    name = ctx.command_path if ctx is not None else "denv"
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
        return 2
    detail, hint = _plainly(error), _hint(error, ctx)
    sentence = f"{detail} {hint}".strip()
    if as_json(words):
        click.echo(json.dumps({"code": "usage", "detail": sentence, "fields": {}, "request_id": ""}, ensure_ascii=False), err=True)
        return 2
    click.echo(f"{name}: {sentence}", err=True)
    if not hint and ctx is not None:
        click.echo(f"{ctx.get_usage()}\n`{name} --help` says more.", err=True)
    return 2


def unknown_command(name: str, typed: str, known: Iterable[str]) -> DenvError:
    """The error for a word that is no command of `name`."""
    near = nearest(typed, known)
    wanted = {"demo": "up --demo"}.get(near, near)
    return _WrongWordError(f"no command `{typed}`. Did you mean `{name} {wanted or '--help'}`?", code="unknown-command")


class _WrongWordError(DenvError):
    """A command that is none."""

    exit_status = 2


def _plainly(error: click.ClickException) -> str:
    if isinstance(error, click.exceptions.NoSuchOption):
        return f"no option `{error.option_name}`."
    return error.message if isinstance(error, click.UsageError) and not isinstance(error, click.BadParameter) else error.format_message()


def _hint(error: click.ClickException, ctx: click.Context | None) -> str:
    """`Did you mean ...?`, for an option and for one of a choice."""
    if isinstance(error, click.exceptions.NoSuchOption) and ctx is not None:
        flags = [flag for param in ctx.command.get_params(ctx) for flag in (*param.opts, *param.secondary_opts) if flag.startswith("--")]
        return meant(error.option_name, flags)
    if isinstance(error, click.BadParameter) and error.param is not None and isinstance(error.param.type, click.Choice):
        typed = _CHOICE.match(error.message)
        return meant(typed[1], map(str, error.param.type.choices)) if typed else ""
    return ""


def no_more_output() -> int:
    """Whoever read the output has gone, as in `denv events | head`, or its disk is full: the rest of it goes nowhere, without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
