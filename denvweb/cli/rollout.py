"""`denv rollout ...` and `denv rollback`."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

import click

from denvweb.cli.client import Client
from denvweb.cli.groups import Group
from denvweb.cli.lists import limit_option, time_options
from denvweb.cli.names import name_argument, name_option, none_fits
from denvweb.cli.output import echo_done, echo_json, echo_json_line, json_option, redrawn, split_stage, table
from denvweb.cli.rollout_text import rollout_text
from denvweb.core.errors import ConflictError, DenvError, InvalidError
from releases.domain.rollout_types import Phase
from releases.domain.views import PreflightView, ReleaseView, RolloutView, StageView

_WATCH_EVERY_S = 1.0
_GOOD_ENDS = {"succeeded"}
_STATES = ["active", *(phase.value for phase in Phase)]


@click.group(cls=Group)
def rollout() -> None:
    """The journey of a stage from one release to another."""


def _current(client: Client, stage: str) -> RolloutView:
    model, name = split_stage(stage)
    return client.get(f"stages/{model}/{name}/rollout", RolloutView)


def _text(client: Client, view: RolloutView) -> str:
    text = rollout_text(view, client.get(f"stages/{view.stage}", StageView), datetime.now(UTC))
    return f"{text}\npage: {client.access.url}/rollouts/{view.id}"


@click.command()
@name_option("model", help="Of this model alone.")
@name_option("stage", metavar="MODEL/STAGE", help="Of this stage alone.")
@click.option("--state", type=click.Choice(_STATES), default=None, help="In this state alone; active: all that have not ended.")
@click.option("--kind", type=click.Choice(["rollout", "rollback"]), default=None, help="Of this kind alone.")
@time_options
@limit_option(30)
@json_option
def rollouts(limit: int, as_json: bool, **words: str | None) -> None:
    """Rollouts, newest first: of every stage, under way and over."""
    found = Client().get_pages("rollouts", RolloutView, cursor="before", most=limit, **words)
    if as_json:
        echo_json(found)
        return
    rows = [["rollout", "stage", "release", "state", "began", "by", "why"]]
    for view in found:
        release = f"{view.from_release or '-'} -> {view.to_release}"
        rows.append([view.id, view.stage, release, view.state, f"{view.started_at:%Y-%m-%d %H:%M}", view.started_by, view.why])
    click.echo(table(rows) if found else none_fits("rollout", model=words["model"], stage=words["stage"]))


@rollout.command()
@name_argument("stage")
@json_option
def show(stage: str, as_json: bool) -> None:
    """The active rollout of a stage, or its last one."""
    client = Client()
    view = _current(client, stage)
    if as_json:
        echo_json(view)
    else:
        click.echo(_text(client, view))


def watch_to_end(client: Client, rollout_id: str, *, as_json: bool) -> RolloutView:
    """Follow one rollout until it has ended or needs a person; with `as_json` one line of JSON a change."""
    shown: tuple[str, str, int] | None = None
    with redrawn() as draw:
        while True:
            view = client.get(f"rollouts/{rollout_id}", RolloutView)
            if not as_json:
                draw(_text(client, view))
            elif shown != (view.state, view.why, view.weight_bp):
                echo_json_line(view)
                shown = (view.state, view.why, view.weight_bp)
            if not view.active or view.state == "rollback-blocked":
                return view
            time.sleep(_WATCH_EVERY_S)


def exit_for(view: RolloutView) -> None:
    """Exit status for scripts: 0 when the release serves, 1 when it does not."""
    if view.state not in _GOOD_ENDS and not (view.kind == "rollback" and view.state == "rolled-back"):
        raise DenvError(f"{view.stage}: {view.state}: {view.why}", code="rollout-failed")


@rollout.command()
@name_argument("stage")
@json_option
def watch(stage: str, as_json: bool) -> None:
    """Follow a rollout to its end; exit status 1 unless it succeeds."""
    client = Client()
    exit_for(watch_to_end(client, _current(client, stage).id, as_json=as_json))


def _act(stage: str, action: str, body: dict[str, object], as_json: bool, *, if_match: str = "") -> None:
    model, name = split_stage(stage)
    client = Client()
    view = client.post(f"stages/{model}/{name}/rollout/{action}", RolloutView, body, if_match=if_match)
    echo_done(as_json, view, f"{view.stage}: {view.state}: {view.why}")


@rollout.command()
@name_argument("stage")
@click.option("--full", is_flag=True, help="Skip what is left of the steps; needs --reason.")
@click.option("--reason", default="", help="Why, for the journal.")
@click.option("--break-glass", default="", metavar="REASON", help="Go on in spite of freeze windows; the journal and all channels say so.")
@json_option
def promote(stage: str, full: bool, reason: str, break_glass: str, as_json: bool) -> None:
    """Approve the next step, or end a hold early."""
    model, name = split_stage(stage)
    _, seen = Client().get_tagged(f"stages/{model}/{name}/rollout", RolloutView)  # what is decided on; a newer state refuses the promotion
    _act(stage, "promote", {"full": full, "reason": reason, "break_glass": break_glass}, as_json, if_match=seen)


@rollout.command()
@name_argument("stage")
@click.option("--reason", default="", help="Why, for the journal.")
@json_option
def pause(stage: str, reason: str, as_json: bool) -> None:
    """Hold the rollout where it is; alarms still roll it back."""
    _act(stage, "pause", {"reason": reason}, as_json)


@rollout.command()
@name_argument("stage")
@json_option
def resume(stage: str, as_json: bool) -> None:
    """Go on with a paused rollout."""
    _act(stage, "resume", {}, as_json)


@rollout.command()
@name_argument("stage")
@click.option("--reason", default="", help="Why, for the journal.")
@json_option
def abort(stage: str, reason: str, as_json: bool) -> None:
    """Give the rollout up: all traffic goes back to the stable release."""
    _act(stage, "abort", {"reason": reason}, as_json)


def _confirm(question: str) -> None:
    """Ask, on stderr; where nobody can answer, as in a CI job, and without a question, say how to go without asking."""
    unsaid = InvalidError("Nothing was done: nobody said yes. Give --yes to go without being asked.", code="not-confirmed")
    if not question:
        raise unsaid
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo("", err=True)
        raise unsaid from None


@click.command()
@name_argument("stage")
@click.option("--to", type=int, help="The release to go back to; the one before by default.")
@click.option("--reason", default="", help="Why, for the journal.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Stay until all traffic is on the old release.")
@json_option
def rollback(stage: str, to: int | None, reason: str, yes: bool, wait: bool, as_json: bool) -> None:
    """Send all traffic back to the release before, at once where a unit of it is warm."""
    model, name = split_stage(stage)
    client = Client()
    preflight = client.get(f"stages/{model}/{name}/preflight", PreflightView, to=to)
    if not preflight.possible:
        raise ConflictError(preflight.sentence, code=preflight.blocked_by or "rollback-does-not-fit")
    if not yes:
        _confirm("" if as_json else f"Roll back {stage} to {preflight.to_release}. {preflight.sentence} Go?")
    view = client.post(f"stages/{model}/{name}/rollback", RolloutView, {"to": to, "reason": reason})
    if not as_json:
        click.echo(f"rollback {view.id} accepted {datetime.now(UTC):%H:%M:%S}")
    if wait:
        began = time.monotonic()
        routers = _traffic_back(client, view, f"{model}@{preflight.to_release}")
        if not as_json:
            after = f"after {time.monotonic() - began:.1f} s ({_routers(routers)} confirmed)"
            click.echo(f"all traffic on {preflight.to_release} {after}; {_left(client, stage, preflight.to_release)}")
    if as_json:
        echo_json(client.get(f"rollouts/{view.id}", RolloutView) if wait else view)
    else:
        _say_held(client, model, view)


def _traffic_back(client: Client, view: RolloutView, target: str) -> int:
    """Wait until every live router sends everything to `target`; how many there are. Raises when it needs a person."""
    while True:
        now = client.get(f"stages/{view.stage}", StageView)
        if now.routers.weights.get(target) == 10_000 and now.routers.confirmed >= now.routers.generation:
            return now.routers.live
        if (seen := client.get(f"rollouts/{view.id}", RolloutView)).state == "rollback-blocked" or not seen.active:
            raise DenvError(f"{seen.stage}: {seen.state}: {seen.why}", code="rollout-failed")
        time.sleep(0.2)


def _routers(count: int) -> str:
    return f"{count} router" if count == 1 else f"{count} routers"


def _left(client: Client, stage: str, to: int | None) -> str:
    """What is still done on the release that was left."""
    units = client.get(f"stages/{stage}", StageView).units
    inflight = sum(unit.inflight for unit in units if unit.release.partition("@")[2] != str(to))
    return f"{inflight:,} in flight on others finish there" if inflight else "nothing is in flight on another"


def _say_held(client: Client, model: str, view: RolloutView) -> None:
    """A release that was taken back is not deployed by automation again, which whoever took it back should know."""
    for number in (view.from_release, view.to_release):
        if number is not None and client.get(f"models/{model}/releases/{number}", ReleaseView).held:
            click.echo(f"Release {number} will not be deployed by automation until someone runs: denv release resume {model}@{number}")
