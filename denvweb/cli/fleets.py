"""`denv fleets`."""

from __future__ import annotations

import click

from denvweb.cli.client import Client
from denvweb.cli.output import echo_json, json_option, paint, table
from fleets.domain.views import DomainMap, FleetMap


def _occupants(domain: DomainMap) -> str:
    """`ds-flash/prod-us unit 1 (P1 P2 D1) release 7` for each unit in the domain."""
    units: dict[tuple[str, int], tuple[set[str], set[str]]] = {}
    for node in domain.nodes:
        for cell in node.cells:
            if cell.unit and cell.role:
                pools, releases = units.setdefault((cell.stage, cell.slot), (set(), set()))
                pools.add(f"{cell.role.value[0].upper()}{cell.ordinal + 1}")
                releases.add(cell.release.partition("@")[2])
    parts = []
    for (stage, slot), (pools, releases) in sorted(units.items()):
        parts.append(f"{stage} unit {slot} ({' '.join(sorted(pools, reverse=True))}), release {'+'.join(sorted(releases))}")
    return "; ".join(parts) or "free"


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


@click.command()
@click.argument("fleet", required=False)
@json_option
def fleets(fleet: str | None, as_json: bool) -> None:
    """Every fleet, or one, with its domains and what runs there."""
    found = Client().get_list("fleets", FleetMap)
    if fleet:
        found = [view for view in found if view.fleet == fleet]
        if not found:
            raise click.UsageError(f"there is no fleet `{fleet}`; `denv fleets` lists them")
    if as_json:
        echo_json(found)
        return
    if not found:
        click.echo("No fleet yet. `denv token join FLEET` makes a token with which the agents of one join.")
    for view in found:
        silent = paint(f", {view.nodes_silent} silent", "bad") if view.nodes_silent else ""
        label = ", simulated" if view.simulated else ""
        click.echo(f"{view.fleet}   {view.gpu_kind}{label}   {view.free} of {view.gpus} GPUs free   {_nodes(view.nodes)}{silent}")
        if view.frozen:
            click.echo(paint(f"  {view.frozen}", "warn"))
        rows = [[domain.domain, f"{domain.free}/{domain.size}", _nodes(len(domain.nodes)), _occupants(domain)] for domain in view.domains]
        click.echo(table(rows, right=(1,), indent="  "))
