"""`denv release`, `denv releases`, `denv diff` and `denv recipes`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from denvweb.cli.client import Client
from denvweb.cli.groups import Group
from denvweb.cli.lists import limit_option, time_options
from denvweb.cli.names import name_argument
from denvweb.cli.output import echo_done, echo_json, echo_json_line, json_option, paint, table
from denvweb.cli.rollout import exit_for, watch_to_end
from denvweb.core import wire
from denvweb.core.errors import InvalidError
from releases.domain.spec import ReleaseFile, parse
from releases.domain.spec_prompts import MOST_BYTES, all_put_in, prompt_files
from releases.domain.views import DryRunView, FindingView, ReleaseView, RolloutView, StagePlanView

_POLL_S = 0.2
_MAX_FILE_BYTES = 16 * 2**20
_MAX_PROMPT_FILE_BYTES = 4 * MOST_BYTES  # blank lines and quotes aside


def read_spec(path: Path) -> str:
    """The file's text; a sentence for everything that keeps it from being text."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidError(f"{path}: {path.stat().st_size:,} bytes is no release file; the longest allowed has 1,000,000")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"{path}: {error.strerror}; name the file with -f") from error
    except UnicodeDecodeError as error:
        raise InvalidError(f"{path}: not text in UTF-8 (byte {error.start}); a release file is YAML") from error


def with_prompts(text: str, path: Path) -> str:
    """The text with the prompts of synthetic traffic in place of the files that it names, which are looked for beside it."""
    contents = {}
    for named in prompt_files(text):
        file = path.parent / named.name
        try:
            if file.stat().st_size > _MAX_PROMPT_FILE_BYTES:
                raise InvalidError(
                    f"{path}:{named.place.line}: {named.name} has {file.stat().st_size:,} bytes; at most {MOST_BYTES:,} of prompts"
                )
            contents[named.name] = file.read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidError(f"{path}:{named.place.line}: the prompts in {named.name} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidError(f"{path}:{named.place.line}: {named.name} is not text in UTF-8 (byte {error.start})") from error
        except ValueError as error:
            raise InvalidError(f"{path}:{named.place.line}: {named.name!r} is no name of a file") from error
    return all_put_in(text, contents)


def check_locally(text: str, path: Path, *, as_json: bool = False) -> None:
    """Print every mistake of the file and exit with 2; nothing has been sent yet."""
    parsed = parse(text)
    if isinstance(parsed, ReleaseFile):
        return
    if as_json:
        fields: dict[str, list[str]] = {}
        for error in parsed:
            fields.setdefault(error.path, []).append(f"{path}:{error.place.line}:{error.place.column}: {error.sentence}")
        raise InvalidError(f"{_count(len(parsed), 'error')} in the file; nothing was sent.", code="spec-invalid", fields=fields)
    for error in parsed:
        click.echo(error.text(str(path)), err=True)
    click.echo(f"{_count(len(parsed), 'error')} in the file; nothing was sent.", err=True)
    sys.exit(2)


def finding_lines(finding: FindingView) -> list[str]:
    """A finding on one line, its arithmetic and its cure under it."""
    head = f"{paint(f'{finding.severity:<6}', finding.severity)} {finding.subject}: {finding.sentence}"
    if finding.severity != "ok" and not finding.arithmetic and not finding.fits:
        head += f"    {finding.code}"
    lines = [head]
    if finding.arithmetic:
        lines.append(f"       {finding.arithmetic}")
    if finding.fits:
        lines.append(f"       fits: {finding.fits}")
    if finding.arithmetic or finding.fits:
        lines[-1] += f"        {finding.code}"
    return lines


def plan_text(plan: StagePlanView) -> str:
    """The steps of one stage, and the way back."""
    rows = [["plan" if not i else "", str(step.index + 1), step.title, step.detail] for i, step in enumerate(plan.steps)]
    return "\n".join(
        [
            f"{plan.stage}: {plan.changed}",
            table(rows, right=(1,)),
            f"capacity  at least {plan.capacity_ratio_min:.0%} of the stage's units serve at every moment",
            f"way back  {plan.way_back}",
        ]
    )


def _print_dry_run(view: DryRunView) -> None:
    model, _, number = view.release.partition("@")
    click.echo(f"release {number} of {model}   {view.recipe}\n")
    for finding in view.findings:
        for line in finding_lines(finding):
            click.echo(line, err=finding.severity == "error")
    if not view.error_count:
        for plan in view.plans:
            click.echo("\n" + plan_text(plan))
    click.echo(f"\n{_count(view.error_count, 'error')}, {_count(view.warning_count, 'warning')}. Nothing was changed.")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def dry_run(client: Client, wanted: dict[str, Any]) -> DryRunView:
    """Have the control plane check the file, as the API takes it; its progress is shown on a terminal."""
    view = client.post("dry-runs", DryRunView, wanted)
    shown = ""
    while view.state != "done":
        line = f"{view.progress:>4.0%}  {view.progress_text or 'waits for a worker'}"
        if sys.stderr.isatty() and line != shown:
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
            shown = line
        time.sleep(_POLL_S)
        view = client.get(f"dry-runs/{view.id}", DryRunView)
    if shown:
        click.echo("\r\x1b[K", nl=False, err=True)
    return view


def _in_ci() -> bool:
    """CI services say so by this variable; some set it to their own name."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


@click.group(cls=Group, invoke_without_command=True)
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path), default=Path("denv.yaml"), show_default=True, help="The release file."
)
@click.option("--dry-run", "only_check", is_flag=True, help="Say whether it fits and what would happen; change nothing.")
@click.option("--stage", default="", help="Only this stage of the file.")
@click.option("--note", default="", help="A sentence for the release's history.")
@click.option("--supersede", is_flag=True, help="End a rollout in flight and take its place; what it brought is taken away first.")
@click.option("--break-glass", default="", metavar="REASON", help="Begin in spite of freeze windows; the journal and all channels say so.")
@click.option(
    "--automated", is_flag=True, default=_in_ci, help="No person is there: refuse what was taken back before. On by itself where CI is set."
)
@click.option(
    "--wait",
    is_flag=True,
    help="Follow the rollouts to their end; exit status 1 unless all succeed. With --json a line each change.",
)
@json_option
@click.pass_context
def release(
    ctx: click.Context,
    path: Path,
    only_check: bool,
    stage: str,
    note: str,
    supersede: bool,
    break_glass: str,
    automated: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Check a release file against the fleets, and roll it out stage by stage.

    Exit status 0: it fits (or is under way), 1: it does not fit, 2: the file itself is wrong.
    """
    if ctx.invoked_subcommand is not None:
        return
    text = with_prompts(read_spec(path), path)
    check_locally(text, path, as_json=as_json)
    client = Client()
    if only_check:
        view = dry_run(client, {"yaml": text, "stage": stage, "supersede": supersede, "break_glass": break_glass})
        if as_json:
            echo_json(view)
        else:
            _print_dry_run(view)
        sys.exit(2 if view.file_errors else 1 if view.error_count else 0)
    body = {"yaml": text, "stage": stage, "note": note, "supersede": supersede, "break_glass": break_glass, "automated": automated}
    answer = client.post("releases", dict[str, Any], body)
    created, rollouts = wire.from_plain(answer["release"], ReleaseView), [wire.from_plain(row, RolloutView) for row in answer["rollouts"]]
    if not as_json:
        click.echo(f"release {created.number} of {created.model} accepted")
        for row in rollouts:
            click.echo(f"  {row.stage}: rollout {row.id}, {row.why or row.state}")
    else:
        (echo_json_line if wait else echo_json)(answer)
    if wait:
        for row in rollouts:
            exit_for(watch_to_end(client, row.id, as_json=as_json))
    elif not as_json and rollouts:
        click.echo(f"follow it with: denv rollout watch {rollouts[0].stage}")


@release.command()
@click.argument("held", metavar="MODEL@N")
@click.option("--reason", default="", help="Why, for the journal.")
@json_option
def resume(held: str, reason: str, as_json: bool) -> None:
    """Let automation deploy a release again that was taken back."""
    model, _, number = held.partition("@")
    if not model or not number.isdigit():
        raise click.UsageError("write a release, as in ds-flash@8")
    view = Client().post(f"models/{model}/releases/{number}/resume", ReleaseView, {"reason": reason})
    echo_done(as_json, view, f"release {view.number} of {view.model} may be deployed by automation again")


@click.command()
@name_argument("model")
@click.option("--stage", default="", help="Those that were ever rolled out to it, as in prod-us.")
@click.option("--by", default="", help="Who made it.")
@click.option("--held/--not-held", default=None, help="Whether automation may not deploy it.")
@time_options
@limit_option(50)
@json_option
def releases(model: str, held: bool | None, limit: int, as_json: bool, **words: str | None) -> None:
    """The releases of a model, newest first."""
    flag = None if held is None else str(held).lower()
    found = Client().get_pages(f"models/{model}/releases", ReleaseView, cursor="before", most=limit, held=flag, **words)
    if as_json:
        echo_json(found)
        return
    rows = [["release", "recipe", "created", "by", "serves", "note"]]
    rows += [
        [str(r.number), r.recipe, f"{r.created_at:%Y-%m-%d %H:%M}", r.created_by, ", ".join(r.stages) or "-", r.held or r.note]
        for r in found
    ]
    click.echo(table(rows, right=(0,)))


@click.command()
@click.argument("older", metavar="MODEL@N")
@click.argument("newer", metavar="MODEL@M")
@json_option
def diff(older: str, newer: str, as_json: bool) -> None:
    """What changed from one release to another."""
    (model, _, first), (other, _, second) = older.partition("@"), newer.partition("@")
    if model != other or not first.isdigit() or not second.isdigit():
        raise click.UsageError("write two releases of one model, as in ds-flash@3 ds-flash@4")
    body = Client().get(f"models/{model}/releases/{second}/diff", dict[str, Any], against=first)
    if as_json:
        echo_json(body)
        return
    for line in str(body["unified"]).splitlines():
        click.echo(paint(line, {"+": "ok", "-": "bad"}.get(line[:1], "")))


@click.command()
@json_option
def recipes(as_json: bool) -> None:
    """The recipes that a release can name."""
    found = Client().get("recipes", dict[str, Any])["results"]
    if as_json:
        echo_json(found)
        return
    rows = [["recipe", "engine", "modes", "GPU kinds"]]
    for row in found:
        engine = f"{row['engine']} {row.get('engine_version', '')}".strip()
        rows.append([row["recipe"], engine, ", ".join(row["modes"]), ", ".join(row["gpu_kinds"])])
    click.echo(table(rows))
