"""`denv fleets`."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from denvweb.cli.client import Client
from denvweb.cli.groups import Group
from denvweb.cli.names import known, meant, name_argument
from denvweb.cli.output import echo_json, json_option, paint, table
from denvweb.core.errors import NotFoundError
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


class _FleetsGroup(Group):
    """`denv fleets NAME` shows that fleet, whatever its name is, but for the names of commands."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of fleets, then commands and options."""
        names = () if incomplete.startswith("-") else known("fleet")
        return [CompletionItem(name) for name in names if name.startswith(incomplete)] + super().shell_complete(ctx, incomplete)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


@click.group(cls=_FleetsGroup, invoke_without_command=True)
@json_option
@click.pass_context
def fleets(ctx: click.Context, as_json: bool) -> None:
    """Every fleet, or one (`denv fleets NAME`), with its domains and what runs there."""
    if ctx.invoked_subcommand is None:
        _show(None, as_json)


@fleets.command()
@name_argument("fleet")
@click.option("--reason", required=True, help="How you know that these nodes are dead; for the journal.")
@json_option
def thaw(fleet: str, reason: str, as_json: bool) -> None:
    """Have the silent nodes of a frozen FLEET taken for dead and replaced, however many they are; for a quarter of an hour."""
    view = Client().post(f"fleets/{fleet}/thaw", FleetMap, {"reason": reason})
    if as_json:
        echo_json(view)
        return
    click.echo(f"{view.fleet}: what ran on its {_nodes(view.nodes_silent)} without a report is replaced where there is room.")


@fleets.command()
@name_argument("fleet")
@json_option
def show(fleet: str, as_json: bool) -> None:
    """One FLEET with its domains and what runs there."""
    _show(fleet, as_json)


def _show(fleet: str | None, as_json: bool) -> None:
    found = Client().get_all("fleets", FleetMap)
    if fleet:
        found = [view for view in found if view.fleet == fleet]
        if not found:
            raise NotFoundError(f"There is no fleet {fleet}; `denv fleets` lists them. {meant('fleet', fleet)}".rstrip())
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
            click.echo(f"  When you know that they are dead: denv fleets thaw {view.fleet} --reason WHY")
        rows = [[domain.domain, f"{domain.free}/{domain.size}", _nodes(len(domain.nodes)), _occupants(domain)] for domain in view.domains]
        click.echo(table(rows, right=(1,), indent="  "))
