"""`denv nodes`: the list, and taking a node out of use and back."""

from __future__ import annotations

import click

from denvweb.cli.client import Client
from denvweb.cli.groups import Group
from denvweb.cli.names import name_argument, name_option, none_fits
from denvweb.cli.output import echo_json, json_option, paint, table
from fleets.domain.drain import DrainHow, DrainPlan
from fleets.domain.types import NodeState
from fleets.domain.views import NodeStanding

_NODE_LEVELS = {NodeState.READY: "ok", NodeState.SUSPECT: "warn", NodeState.LOST: "bad"}

_HOW = {DrainHow.ELSEWHERE: "ok", DrainHow.AFTER: "warn", DrainHow.STOPPED: "ok", DrainHow.WAITS: "bad"}

_reason_option = click.option("--reason", default="", help="Why, for the journal.")


@click.group(cls=Group, invoke_without_command=True)
@name_option("fleet", help="Of this fleet alone.")
@click.option("--state", type=click.Choice([state.value for state in NodeState]), default=None, help="In this state alone.")
@click.option("--cordoned/--not-cordoned", default=None, help="Whether it takes nothing new.")
@json_option
@click.pass_context
def nodes(ctx: click.Context, fleet: str, state: str | None, cordoned: bool | None, as_json: bool) -> None:
    """Every node: its state, its last report and its free GPUs; or take one out of use, and back."""
    if ctx.invoked_subcommand is None:
        flag = None if cordoned is None else str(cordoned).lower()
        words = {"fleet": fleet, "state": state, "cordoned": flag}
        found = Client().get_all("nodes", NodeStanding, **words)
        _list(found, any(words.values()), fleet, as_json)


def _list(found: list[NodeStanding], filtered: bool, fleet: str, as_json: bool) -> None:
    if as_json:
        echo_json(found)
        return
    if not found:
        none = "No node yet. `denv token join FLEET` makes a token with which the agent of one joins."
        click.echo(none_fits("node", fleet=fleet) if filtered else none)
        return
    click.echo(table([["node", "state", "free", "last report"], *map(_row, found)], right=(2,)))
    for node in found:
        for trouble in node.troubles:
            click.echo(paint(f"{node.node}: {trouble}", "warn"))


def _row(node: NodeStanding) -> list[str]:
    last = f"{node.last_report_at:%Y-%m-%d %H:%M:%S}" if node.last_report_at else "never"
    return [node.node, paint(node.state.value, _NODE_LEVELS.get(node.state, "")) + _aside(node), f"{node.free}/{node.gpus}", last]


def _aside(node: NodeStanding) -> str:
    """` draining (fan replaced)`: what keeps new ranks from it."""
    if not node.cordoned:
        return ""
    what = ("draining" if node.used else "drained") if node.draining else "cordoned"
    return f" {what}" + (f" ({node.reason})" if node.reason else "")


@nodes.command()
@name_argument("node")
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
@name_argument("node")
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
@name_argument("node")
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
