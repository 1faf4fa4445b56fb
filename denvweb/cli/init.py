"""`denv init` and `denv schema`: a first release file by asking, and what editors complete it with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from denvweb.cli.client import saved_access
from denvweb.cli.init_questions import QUESTIONS, Known, Question, look, problem, render
from denvweb.cli.names import name_option
from denvweb.cli.output import echo_done, json_option
from denvweb.core.errors import DenvError, InvalidError
from denvweb.core.files import write_whole
from releases.domain.spec import ReleaseFile, parse
from releases.domain.spec_schema import URL, spec_schema


def _schema_url() -> str:
    try:
        return f"{saved_access().url or 'http://127.0.0.1:8080'}{URL}"
    except DenvError:  # a file of credentials that cannot be read is no reason not to write another file
        return f"http://127.0.0.1:8080{URL}"


def _may_write(path: Path, *, force: bool, ask: bool) -> None:
    """Refuse to write over a file unasked."""
    if str(path) == "-":
        return
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidError(f"{path}: {'a folder' if path.is_dir() else f'there is no folder {path.parent}'}; name a file with -o")
    if not path.exists() or force:
        return
    if not ask:
        raise InvalidError(f"{path} is there already; --force writes over it")
    click.confirm(f"{path} is there already. Write over it?", abort=True, err=True)


def _answer(question: Question, answers: dict[str, str], known: Known, *, ask: bool, take_all: bool) -> str:
    """What is answered on a terminal, asked again until it is right; without one, or with `--yes`, the default."""
    default = question.default(known, answers)
    if not ask:
        if default and (take_all or not question.needed):
            return default
        raise InvalidError(f"{question.text}: nobody is there to ask; give --{question.name} (see `denv init --help`)")
    click.echo(f"\n{click.style(question.text, bold=True)}: {question.about}", err=True)
    if offers := question.offers(known):
        click.echo(f"  there are: {', '.join(offers[:12])}", err=True)
    while True:
        given = str(click.prompt(" ", default=default or None, err=True, prompt_suffix="> ")).strip()
        wrong = problem(question, given, answers, known)
        if not wrong:
            return given
        click.echo(f"  {wrong}", err=True)


@click.command()
@click.option(
    "-o",
    "--output",
    "path",
    default="denv.yaml",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The file to write; - prints it.",
)
@name_option("recipe", help="As `denv recipes` lists them.")
@click.option("--model", default="", help="What clients will ask for by name.")
@click.option("--weights", default="", help="hf://org/name@revision or file:///path@digest.")
@name_option("fleet", "--fleet", "fleets", default=(), multiple=True, help="A fleet to run in; may be given more than once.")
@click.option("--stage", default="", help="Where it runs first.  [default: prod]")
@click.option("--prefill", default="", help="Prefill pool of a unit: GPUs of a replica x replicas, such as 4x2.")
@click.option("--decode", default="", help="Decode pool of a unit, in the same form.")
@click.option("--aggregated", default="", help="One pool that does both, instead of the two: such as 8x1.")
@click.option("--units", default="", help="Serving units.  [default: 1]")
@click.option("--ttft", default="", help="Limit of the TTFT alarm, p99.  [default: 1500ms]")
@click.option("--itl", default="", help="Limit of the ITL alarm, p99.  [default: 60ms]")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: the default of whatever is not given.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@json_option
def init(path: Path, fleets: tuple[str, ...], yes: bool, force: bool, as_json: bool, **given: str) -> None:
    """Write a first denv.yaml. What is not given as an option is asked for on a terminal, each with a default.

    It works without a control plane too; with one it offers its recipes and fleets. The file is written at the end, whole.
    """
    ask = sys.stdin.isatty() and not yes
    _may_write(path, force=force, ask=ask)
    known, answers = look(), {name: value for name, value in {**given, "fleet": ", ".join(fleets)}.items() if value}
    if ask and not known.online:
        click.echo("No control plane answers, so fleets are not listed; the file can be checked once one does.", err=True)
    for question in QUESTIONS:
        if question.name in answers:
            if wrong := problem(question, answers[question.name], answers, known):
                raise InvalidError(f"--{question.name} {answers[question.name]}: {wrong}")
        elif question.applies(answers, known):
            answers[question.name] = _answer(question, answers, known, ask=ask, take_all=yes)
    text = render(answers, schema=_schema_url())
    found = parse(text)
    if not isinstance(found, ReleaseFile):
        raise InvalidError("This makes no release file.", fields={"": [error.text(str(path)) for error in found]})
    if str(path) == "-":
        click.echo(text, nl=False)
        return
    try:
        write_whole(path, text)
    except OSError as error:
        raise InvalidError(f"{path}: {error.strerror}") from error
    echo_done(as_json, {"path": str(path), "yaml": text}, f"Wrote {path}. See what it would do: denv release -f {path} --dry-run")


@click.command()
def schema() -> None:
    """The JSON schema of denv.yaml, for editors and for checks without a control plane."""
    click.echo(json.dumps(spec_schema(), indent=2))
