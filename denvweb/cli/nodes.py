"""`denv nodes`: the list, and taking a node out of use and back."""

from __future__ import annotations

import click

from denvweb.cli.client import Client
from denvweb.cli.output import echo_json, json_option, paint, table
from fleets.domain.drain import DrainHow, DrainPlan
from fleets.domain.types import NodeState
from fleets.domain.views import FleetMap, NodeMap, NodeStanding

_NODE_LEVELS = {NodeState.READY: "ok", NodeState.SUSPECT: "warn", NodeState.LOST: "bad"}

_HOW = {DrainHow.ELSEWHERE: "ok", DrainHow.AFTER: "warn", DrainHow.STOPPED: "ok", DrainHow.WAITS: "bad"}

_reason_option = click.option("--reason", default="", help="Why, for the journal.")


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def nodes(ctx: click.Context, as_json: bool) -> None:
    """Every node: its state, its last report and its free GPUs; or take one out of use, and back."""
    if ctx.invoked_subcommand is None:
        _list(as_json)


def _list(as_json: bool) -> None:
    found = Client().get_list("fleets", FleetMap)
    if as_json:
        echo_json([{"fleet": fleet.fleet, "nodes": [node for domain in fleet.domains for node in domain.nodes]} for fleet in found])
        return
    rows = [["node", "state", "free", "last report"]]
    rows += [_row(node) for fleet in found for domain in fleet.domains for node in domain.nodes]
    if len(rows) == 1:
        click.echo("No node yet. `denv token join FLEET` makes a token with which the agent of one joins.")
        return
    click.echo(table(rows, right=(2,)))
    for node in (node for fleet in found for domain in fleet.domains for node in domain.nodes):
        for trouble in node.troubles:
            click.echo(paint(f"{node.node}: {trouble}", "warn"))


def _row(node: NodeMap) -> list[str]:
    free = sum(cell.state == "free" for cell in node.cells)
    last = f"{node.last_report_at:%Y-%m-%d %H:%M:%S}" if node.last_report_at else "never"
    return [node.node, paint(node.state.value, _NODE_LEVELS.get(node.state, "")) + _aside(node), f"{free}/{len(node.cells)}", last]


def _aside(node: NodeMap) -> str:
    """` draining (fan replaced)`: what keeps new ranks from it."""
    if not node.cordoned:
        return ""
    held = any(cell.state == "used" for cell in node.cells)
    what = ("draining" if held else "drained") if node.draining else "cordoned"
    return f" {what}" + (f" ({node.cordon_reason})" if node.cordon_reason else "")


@nodes.command()
@click.argument("node")
@_reason_option
@json_option
def cordon(node: str, reason: str, as_json: bool) -> None:
    """Have NODE take nothing new; what runs there goes on."""
    now = Client().post(f"nodes/{node}/cordon", NodeStanding, {"reason": reason})
    if as_json:
        echo_json(now)
        return
    runs = f"{now.used} of its {now.gpus} GPUs are in use, and stay so" if now.used else "nothing runs there"
    click.echo(f"{now.node} is cordoned: it takes nothing new; {runs}.")


@nodes.command()
@click.argument("node")
@_reason_option
@json_option
def uncordon(node: str, reason: str, as_json: bool) -> None:
    """Have NODE take new ranks again; a drain of it ends."""
    now = Client().post(f"nodes/{node}/uncordon", NodeStanding, {"reason": reason})
    if as_json:
        echo_json(now)
        return
    silent = "" if now.state is NodeState.READY else f" once it reports (it is {now.state.value})"
    click.echo(f"{now.node} takes new ranks again{silent}.")


@nodes.command()
@click.argument("node")
@click.option("--dry-run", is_flag=True, help="Say what would move where, and change nothing.")
@_reason_option
@json_option
def drain(node: str, dry_run: bool, reason: str, as_json: bool) -> None:
    """Cordon NODE, and replace its units elsewhere, each as soon as there is room for that."""
    client = Client()
    if dry_run:
        plan = client.get(f"nodes/{node}/drain-plan", DrainPlan)
    else:
        plan = client.post(f"nodes/{node}/drain", DrainPlan, {"reason": reason})
    if as_json:
        echo_json(plan)
        return
    for move in plan.moves:
        click.echo(f"{paint(f'{move.how.value:<9}', _HOW[move.how])}  {move.sentence}   {' '.join(move.here)}, {move.gpus} GPUs")
    click.echo(_summary(plan, dry_run))


def _summary(plan: DrainPlan, dry_run: bool) -> str:
    count = "nothing runs there" if not plan.moves else f"{len(plan.moves)} unit{'' if len(plan.moves) == 1 else 's'} to move"
    if dry_run:
        return f"{plan.node}: {count}. Nothing was changed."
    if plan.done:
        return f"{plan.node} is drained: nothing holds its GPUs. `denv nodes uncordon {plan.node}` brings it back."
    ways = f"`denv nodes` says when it is drained; `denv nodes uncordon {plan.node}` ends it"
    return f"{plan.node} is cordoned and being drained: {count}. {ways}."
