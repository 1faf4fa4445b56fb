"""`denv init` and `denv schema`: a first release file by asking, and what editors complete it with."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from denvweb.cli.client import Client, saved_access
from denvweb.cli.names import name_option
from denvweb.core.errors import DenvError, InvalidError
from releases.domain.spec import ReleaseFile, parse
from releases.domain.spec_schema import URL, spec_schema

_TEXT = """\
# yaml-language-server: $schema={schema}
release:
  model: {model}
  weights: {weights}
  recipe: {recipe}
  topology: {topology}
stages:
  {stage}:
    fleets: [{fleets}]
    replicas: {units}
    alarms: {{ ttft-p99: {ttft}, itl-p99: {itl}, error-rate: 1% }}
    rollout: {{ canary: 10%, steps: [50%, 100%], hold: 10m, bake: 30m }}
"""


@dataclass(frozen=True, slots=True)
class Known:
    """What the control plane has to offer; nothing when none answers."""

    recipes: tuple[str, ...] = ()
    fleets: tuple[str, ...] = ()


def look() -> Known:
    """Ask the control plane that the command is logged in to."""
    try:
        client = Client()
        recipes, fleets = (client.get(path, dict[str, Any])["results"] for path in ("recipes", "fleets"))
    except DenvError:
        return Known()
    return Known(tuple(row["recipe"] for row in recipes), tuple(row["fleet"] for row in fleets))


def _pool(text: str, what: str) -> str:
    """`4x2` is two replicas of four GPUs."""
    gpus, _, replicas = text.lower().partition("x")
    if not gpus.isdecimal() or not (replicas or "1").isdecimal():
        raise InvalidError(f"{what}: `{text}` is no pool; write GPUs of a replica x replicas, such as 4x2")
    return f"{{ gpus: {int(gpus)}, replicas: {int(replicas or 1)} }}"


def _topology(prefill: str, decode: str, aggregated: str) -> str:
    if aggregated:
        return f"{{ mode: aggregated, aggregated: {_pool(aggregated, '--aggregated')} }}"
    return f"{{ prefill: {_pool(prefill, '--prefill')}, decode: {_pool(decode, '--decode')} }}"


def _ask(value: str, question: str, default: str, known: Sequence[str] = ()) -> str:
    """What was given as an option; else what is answered; without a terminal the default."""
    if value:
        return value
    if not sys.stdin.isatty():
        if default:
            return default
        raise InvalidError(f"{question}: nobody is there to ask; give it as an option (see `denv init --help`)")
    if known:
        click.echo(f"  there are: {', '.join(known[:12])}", err=True)
    return str(click.prompt(question, default=default or None, err=True))


@click.command()
@click.option("-o", "--output", "path", default="denv.yaml", show_default=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", default="", help="What clients will ask for by name.")
@click.option("--weights", default="", help="hf://org/name@revision or file:///path@digest.")
@name_option("recipe", help="As `denv recipes` lists them.")
@click.option("--stage", default="", help="Where it runs first. [default: prod]")
@name_option("fleet", "--fleet", "fleets", default=(), multiple=True, help="A fleet to run in; may be given more than once.")
@click.option("--prefill", default="", help="GPUs of a replica x replicas. [default: 1x1]")
@click.option("--decode", default="", help="GPUs of a replica x replicas. [default: 1x1]")
@click.option("--aggregated", default="", help="One pool that does both, instead of the two: such as 8x1.")
@click.option("--units", default=1, show_default=True, type=click.IntRange(1, 1024), help="Serving units.")
@click.option("--ttft", default="1500ms", show_default=True, help="Limit of the TTFT alarm, p99.")
@click.option("--itl", default="60ms", show_default=True, help="Limit of the ITL alarm, p99.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def init(path: Path, fleets: tuple[str, ...], units: int, ttft: str, itl: str, force: bool, **given: str) -> None:
    """Write a first denv.yaml. What is not given as an option is asked for on a terminal."""
    if path.exists() and not force:
        raise InvalidError(f"{path} is there already; --force writes over it")
    known = look()
    model = _ask(given["model"], "Model (what clients ask for)", "")
    text = _TEXT.format(
        schema=f"{saved_access().url or 'http://127.0.0.1:8080'}{URL}",
        model=model,
        weights=_ask(given["weights"], "Weights (hf://org/name@revision)", ""),
        recipe=_ask(given["recipe"], "Recipe", known.recipes[0] if len(known.recipes) == 1 else "", known.recipes),
        topology=_asked_topology(given),
        stage=_ask(given["stage"], "Stage", "prod"),
        fleets=", ".join(fleets) or _ask("", "Fleet", known.fleets[0] if len(known.fleets) == 1 else "", known.fleets),
        units=units,
        ttft=ttft,
        itl=itl,
    )
    found = parse(text)
    if not isinstance(found, ReleaseFile):
        raise InvalidError("This makes no release file.", fields={"": [f"{path}:{error}" for error in found]})
    path.write_text(text, encoding="utf-8")
    click.echo(f"Wrote {path}. See what it would do: denv release -f {path} --dry-run")


def _asked_topology(given: dict[str, str]) -> str:
    if given["aggregated"]:
        return _topology("", "", given["aggregated"])
    prefill = _ask(given["prefill"], "Prefill pool of a unit (GPUs of a replica x replicas)", "1x1")
    return _topology(prefill, _ask(given["decode"], "Decode pool of a unit (GPUs of a replica x replicas)", "1x1"), "")


@click.command()
def schema() -> None:
    """The JSON schema of denv.yaml, for editors and for checks without a control plane."""
    click.echo(json.dumps(spec_schema(), indent=2))
