"""`denv freeze`: times in which nothing goes forward."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import click

from denvweb.cli.client import Client
from denvweb.cli.groups import Group
from denvweb.cli.output import echo_done, echo_json, json_option, paint, table
from denvweb.core.errors import InvalidError
from denvweb.core.words import did_you_mean
from releases.domain.freezes import DAYS, clock
from releases.domain.views import FreezeWindowView


@click.group(cls=Group)
def freeze() -> None:
    """Times in which no release starts and no rollout goes on. Rollbacks are exempt, and --break-glass goes on all the same."""


@freeze.command("list")
@json_option
def list_windows(as_json: bool) -> None:
    """All freeze windows, and which are on now."""
    found = Client().get_all("freeze-windows", FreezeWindowView)
    if as_json:
        echo_json(found)
        return
    if not found:
        click.echo("No freeze window. `denv freeze add --help` shows how to set one.")
        return
    rows = [["window", "when", "now", "why", "by"]]
    rows += [[row.id, row.sentence, _now(row), row.reason, row.created_by] for row in found]
    click.echo(table(rows))


def _now(row: FreezeWindowView) -> str:
    if row.on:
        return paint(f"on until {clock(row.ends, row.zone)}" if row.ends else "on, with no end in sight", "warn")
    return f"next {clock(row.begins, row.zone)}" if row.begins else "over"


@freeze.command()
@click.option("--days", default="", help="Days on which it begins, such as mon-fri or sat,sun; without: once.")
@click.option("--from", "start", required=True, help="18:00 with --days, or a date such as 2026-12-24 or 2026-12-24T18:00.")
@click.option("--to", "end", required=True, help="Its end, in the same form.")
@click.option("--zone", required=True, help="The time zone that these are in, such as Europe/Berlin.")
@click.option("--on", "where", default="", metavar="MODEL[/STAGE]", help="Only this model or stage.")
@click.option("--reason", required=True, help="Why; whoever is held up reads it.")
@json_option
def add(days: str, start: str, end: str, zone: str, where: str, reason: str, as_json: bool) -> None:
    """Set a window."""
    model, _, stage = where.partition("/")
    body: dict[str, object] = {"zone": zone, "reason": reason, "model": model, "stage": stage}
    if days:
        body |= {"days": _days(days), "start": start, "end": end}
    else:
        body |= {"begins_at": _moment("--from", start, zone), "ends_at": _moment("--to", end, zone)}
    view = Client().post("freeze-windows", FreezeWindowView, body)
    if as_json:
        echo_json(view)
    else:
        click.echo(f"freeze {view.id} set: {view.sentence}; {_now(view)}")


def _days(text: str) -> list[str]:
    """`mon-fri` or `sat,sun` as a list of days."""
    first, dash, last = text.lower().partition("-")
    if dash and first in DAYS and last in DAYS:
        at, to = DAYS.index(first), DAYS.index(last)
        return [DAYS[(at + i) % len(DAYS)] for i in range((to - at) % len(DAYS) + 1)]
    return [day.strip() for day in text.lower().split(",")]


def _moment(option: str, text: str, zone: str) -> str:
    try:
        where = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        hint = did_you_mean(zone, available_timezones()) or "; write one such as Europe/Berlin"
        raise InvalidError(f"--zone: there is no time zone {zone}{hint}") from error
    try:
        return datetime.fromisoformat(text).replace(tzinfo=where).isoformat()
    except ValueError as error:
        raise InvalidError(f"{option}: `{text}` is no date; write one such as 2026-12-24T18:00, or give --days too") from error


@freeze.command()
@click.argument("window")
@json_option
def remove(window: str, as_json: bool) -> None:
    """Remove a window by its id; what it held goes on."""
    Client().delete(f"freeze-windows/{window}")
    echo_done(as_json, {"id": window, "removed": True}, "removed; what it held goes on at the reconciler's next look")
