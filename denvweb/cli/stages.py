"""`denv stages` and `denv events`."""

from __future__ import annotations

import click

from denvweb.cli.client import Client
from denvweb.cli.lists import limit_option, time_options
from denvweb.cli.names import name_argument, name_option, none_fits
from denvweb.cli.output import echo_json, json_option, paint, split_stage, table
from denvweb.core.words import meant
from metrics.domain.views import EventView
from releases.domain.views import STAGE_STATES, AlarmView, StageView

_VIAS = ["ui", "api", "cli", "slack", "alarm", "system"]
_LEVELS = {"steady": "ok", "held": "warn", "blocked": "bad", "rolling-back": "bad", "degraded": "warn"}


def alarm_value(alarm: AlarmView) -> str:
    """The present value beside the limit, in the alarm's own unit."""
    return f"{alarm.value_text} of {alarm.limit_text}"


def _row(stage: StageView) -> list[str]:
    weights = "  ".join(f"{release.partition('@')[2]} {share:.0%}" for release, share in stage.releases.items() if share)
    alarms = "  ".join(
        f"{alarm.name} {paint(alarm_value(alarm), 'bad' if alarm.state == 'over' else '')}"
        for alarm in stage.alarms
        if alarm.state != "rests"
    )
    state = paint(stage.state, _LEVELS.get(stage.state, ""))
    fleets = ", ".join(stage.fleets) + (" (simulated)" if stage.simulated else "")
    return [stage.stage, state, weights or "-", _units(stage), fleets, alarms or "-"]


def _units(stage: StageView) -> str:
    """`1/2`; `3 for 2` while a rollout brings more than are wanted."""
    return f"{stage.units_ready}{' for ' if stage.units_ready > stage.replicas else '/'}{stage.replicas}"


@click.command()
@name_option("model", help="Of this model alone.")
@click.option("--state", type=click.Choice(STAGE_STATES), default=None, help="In this state alone.")
@name_option("fleet", help="On this fleet alone.")
@json_option
def stages(model: str, state: str | None, fleet: str, as_json: bool) -> None:
    """Every stage: its state, releases by share of the traffic, units ready, and figures beside their alarms."""
    views = Client().get_all("stages", StageView, model=model, state=state, fleet=fleet)
    if as_json:
        echo_json(views)
        return
    if not views and (model or state or fleet):
        click.echo(none_fits("stage", model=model, fleet=fleet))
        return
    if not views:
        click.echo("No stage yet. `denv release -f denv.yaml` makes the first one.")
        return
    click.echo(table([["stage", "state", "release", "units", "fleets", "figures"], *map(_row, views)]))
    for view in views:
        if view.state != "steady":
            click.echo(f"{view.stage}: {view.sentence}")
        for sentence in view.healing_frozen:
            click.echo(paint(f"{view.stage}: {sentence}", "warn"))
        for breach in view.breaches:
            click.echo(paint(f"{breach.sentence} (since {breach.since:%Y-%m-%d %H:%M:%S})", "bad"))


def event_line(event: EventView, where: str = "") -> str:
    """One journal row on one line; `where` among rows of many stages."""
    who = event.actor if event.actor == event.via else f"{event.actor}, {event.via}"
    return f"{event.at:%Y-%m-%d %H:%M:%S}  {f'{where}: ' if where else ''}{paint(event.sentence, event.level)}  ({who})"


def _kind_meant(kind: str) -> str:
    """The kind that was meant, of those that have happened lately."""
    if not kind:
        return ""
    lately = {event.kind for event in Client().get_pages("events", EventView, cursor="before", most=500)}
    return meant(kind, {*lately, *(one.partition(".")[0] for one in lately)})


@click.command()
@name_argument("stage", metavar="[MODEL/STAGE]", default="")
@click.option("--kind", default="", help="Those whose kind begins so: rollout., change.refused")
@click.option("--level", type=click.Choice(["info", "warn", "bad"]), default=None, help="Of this level alone.")
@click.option("--actor", default="", help="Who did it.")
@click.option("--via", type=click.Choice(_VIAS), default=None, help="Through what.")
@click.option("--text", default="", help="Those whose sentence has it.")
@time_options
@limit_option(30)
@json_option
def events(stage: str, limit: int, as_json: bool, **words: str | None) -> None:
    """What happened to a stage, or to all that you may see: who did what, through what, and why."""
    path = f"stages/{'/'.join(split_stage(stage))}/events" if stage else "events"
    found = Client().get_pages(path, EventView, cursor="before", most=limit, **words)
    if as_json:
        echo_json(found)
        return
    if not found:
        click.echo(f"No event fits. {_kind_meant(words['kind'] or '')}".rstrip())
    for event in sorted(found, key=lambda event: event.seq):
        click.echo(event_line(event, "" if stage else event.stage or event.fleet or event.model))
