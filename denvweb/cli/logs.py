"""`denv logs`: what the engines of a pool write, from their nodes."""

from __future__ import annotations

import json

import click

from denvweb.cli.client import Client
from denvweb.cli.names import name_argument
from denvweb.cli.output import json_option, paint, split_stage
from denvweb.core import wire
from fleets.domain.types import Role
from fleets.domain.views import LogLines


@click.command()
@name_argument("stage")
@click.argument("pool", type=click.Choice([role.value for role in Role]))
@click.option("-f", "--follow", is_flag=True, help="Go on as lines are written, until Ctrl-C.")
@click.option("--since", default="", help="Lines of this time, as in 10m, instead of the last ones.")
@click.option("--tail", type=click.IntRange(0, 5000), default=200, show_default=True, help="How many lines of each log at first.")
@click.option("--replica", type=click.IntRange(1), help="Only this replica of each unit, counted from 1.")
@click.option("--rank", type=click.IntRange(0), help="Only this rank; 0 leads, and is the one that serves.")
@json_option
def logs(stage: str, pool: str, follow: bool, since: str, tail: int, replica: int | None, rank: int | None, as_json: bool) -> None:
    """What the engines of POOL (prefill, decode or aggregated) of MODEL/STAGE write. A dead one's last lines are there, too."""
    model, name = split_stage(stage)
    given = {
        "pool": pool,
        "replica": replica,
        "rank": rank,
        "since": since,
        "tail": None if since else tail,
        "follow": 1 if follow else None,
    }
    try:
        for event, data in Client().events(f"stages/{model}/{name}/logs", **given):
            if event == "end":
                return
            _show(event, wire.decode(data.encode(), LogLines), as_json)
    except KeyboardInterrupt:
        return


def _show(event: str, said: LogLines, as_json: bool) -> None:
    head = f"unit {said.unit} {said.role.value} {said.ordinal + 1}" + (f" rank {said.rank}" if said.rank else "")
    for line in said.text.splitlines() if event == "log" else ():
        if as_json:
            click.echo(json.dumps(wire.to_plain(said) | {"text": line}, ensure_ascii=False))
        else:
            click.echo(f"{paint(head, 'plan')}  {line}")
    if said.note:
        click.echo(paint(f"{head}: {said.note}", "warn"), err=True)
