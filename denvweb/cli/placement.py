"""`denv placement`: why units are where they are, and what would make room."""

from __future__ import annotations

import click

from denvweb.cli.client import Client
from denvweb.cli.groups import Group
from denvweb.cli.names import name_argument
from denvweb.cli.output import echo_json, json_option, paint, split_stage, table
from fleets.domain.defrag import DefragAdvice, Opening
from fleets.domain.explain import FleetExplained, PlacementExplained

_NODES_NAMED = 3


@click.group(cls=Group)
def placement() -> None:
    """Why units are where they are, and which moves would make room."""


@placement.command()
@name_argument("stage")
@json_option
def explain(stage: str, as_json: bool) -> None:
    """Why each unit of MODEL/STAGE is where it is, and what each fleet says to one more."""
    model, name = split_stage(stage)
    found = Client().get(f"stages/{model}/{name}/placement", PlacementExplained)
    if as_json:
        echo_json(found)
        return
    release = found.release.partition("@")[2]
    click.echo(f"{found.stage}   release {release}   {found.shape}, {found.rule.value}   {found.arithmetic} GPUs a unit\n")
    for unit in found.units:
        aside = "" if unit.release == found.release else f", release {unit.release.partition('@')[2]}"
        click.echo(f"unit {unit.slot}  {unit.where}   {unit.gpus} GPUs on {_nodes(unit.nodes)}{aside}")
        click.echo(f"        {unit.why}")
    click.echo("\none more unit:")
    for fleet in found.fleets:
        _echo_fleet(fleet)


def _nodes(names: tuple[str, ...]) -> str:
    """The first and the last of many."""
    return " ".join(names) if len(names) <= _NODES_NAMED else f"{names[0]} .. {names[-1]} ({len(names)} nodes)"


def _echo_fleet(fleet: FleetExplained) -> None:
    mark = paint("fits ", "ok") if fleet.to else paint("no   ", "warn")
    rank = f"choice {fleet.preference}" if fleet.preference else "not the stage's"
    room = f"{fleet.free} of {fleet.gpus} GPUs free, {fleet.largest_free} in the freest of {fleet.domains} domains"
    click.echo(f"{mark} {fleet.fleet}   {fleet.gpu_kind}, {rank}   {room}")
    lines = [fleet.sentence, *([fleet.arithmetic] if not fleet.to else []), *([f"fits: {fleet.fits}"] if fleet.fits else []), *fleet.memory]
    for line in lines:
        click.echo(f"        {line}")


@placement.command()
@name_argument("fleet", required=False, default="")
@json_option
def defrag(fleet: str, as_json: bool) -> None:
    """Which moves would open a whole domain, in FLEET or in each. Advice only: nothing is moved."""
    found = Client().get_list("placement/defrag", DefragAdvice, fleet=fleet)
    if as_json:
        echo_json(found)
        return
    for advice in found:
        click.echo(f"{advice.sentence}.")
        for opening in advice.openings:
            _echo_opening(opening)
    if any(advice.openings for advice in found):
        click.echo("Nothing was moved. `denv nodes drain NODE` moves the units of one node; uncordon it then.")


def _echo_opening(opening: Opening) -> None:
    click.echo(f"  {opening.domain} would have {opening.gpus} GPUs free; engines with {opening.moved_gpus} GPUs start anew:")
    rows = [[f"{move.stage} unit {move.slot}", f"{move.gpus} GPUs", f"to {move.to}"] for move in opening.moves]
    click.echo(table(rows, right=(1,), indent="    "))
