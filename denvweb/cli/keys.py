"""`denv key`: API keys of the clients that send requests to a stage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from denvweb.cli.client import Client
from denvweb.cli.groups import Group
from denvweb.cli.names import name_argument
from denvweb.cli.output import echo_done, echo_json, json_option, split_stage, table
from denvweb.core.units import parse_duration_s
from fleets.domain.views import ApiKeys, NewApiKey


@click.group(cls=Group)
def key() -> None:
    """API keys of a stage's clients. From a stage's first key on, its routers refuse requests without one."""


def _path(stage: str, rest: str = "") -> str:
    model, name = split_stage(stage)
    return f"stages/{model}/{name}/keys{rest}"


@key.command()
@name_argument("stage")
@click.option("--client", required=True, help="Who it is for; shown in the access log.")
@click.option("--requests-per-min", type=click.IntRange(min=0), default=0, help="0: no limit.")
@click.option("--tokens-per-min", type=click.IntRange(min=0), default=0, help="Prompt and completion together; 0: no limit.")
@click.option("--at-once", type=click.IntRange(min=0), default=0, help="Requests in flight; 0: no limit.")
@click.option("--expires-in", default="", help="As in 30d or 12h; never by default.")
@json_option
def create(stage: str, client: str, requests_per_min: int, tokens_per_min: int, at_once: int, expires_in: str, as_json: bool) -> None:
    """Make a key for a client of MODEL/STAGE. It is shown once."""
    allowance = {"requests_per_min": requests_per_min, "tokens_per_min": tokens_per_min, "at_once": at_once}
    body = {"client": client, "allowance": allowance, "expires_at": _expiry(expires_in)}
    made = Client().post(_path(stage), NewApiKey, body)
    if as_json:
        echo_json(made)
    else:
        click.echo(made.text)


def _expiry(text: str) -> str | None:
    if not text:
        return None
    seconds = parse_duration_s(text)
    if not seconds:
        raise click.UsageError(f"`{text}` is no duration; write 30d, 12h or 90m")
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@key.command("list")
@name_argument("stage")
@json_option
def list_keys(stage: str, as_json: bool) -> None:
    """The keys of MODEL/STAGE, and their limits."""
    found = Client().get(_path(stage), ApiKeys)
    if as_json:
        echo_json(found)
        return
    if found.results:
        rows = [["key", "client", "requests/min", "tokens/min", "at once", "expires"]]
        for row in found.results:
            limits = (row.allowance.requests_per_min, row.allowance.tokens_per_min, row.allowance.at_once)
            expires = f"{row.expires_at:%Y-%m-%d %H:%M}" if row.expires_at else "never"
            rows.append([row.id, row.client, *(f"{limit:,}" if limit else "-" for limit in limits), expires])
        click.echo(table(rows, right=(2, 3, 4)))
    if not found.required:
        click.echo(f"{stage} takes requests without a key.")
    elif not found.results:
        click.echo(f"{stage} has no key and refuses every request; `denv key create` makes one, `denv key open` takes requests without.")


@key.command()
@name_argument("stage")
@click.argument("key_id", metavar="KEY")
@json_option
def revoke(stage: str, key_id: str, as_json: bool) -> None:
    """Take a key of MODEL/STAGE back by its id (the part before the dot)."""
    found = key_id.partition(".")[0]
    Client().delete(_path(stage, f"/{found}"))
    echo_done(as_json, {"id": found, "revoked": True}, "revoked; routers refuse it from now on")


@key.command()
@name_argument("stage")
@json_option
def require(stage: str, as_json: bool) -> None:
    """Have MODEL/STAGE refuse requests without a key."""
    _require(stage, as_json, required=True)


@key.command("open")
@name_argument("stage")
@json_option
def open_stage(stage: str, as_json: bool) -> None:
    """Have MODEL/STAGE take requests without a key; the keys stay."""
    _require(stage, as_json, required=False)


def _require(stage: str, as_json: bool, *, required: bool) -> None:
    model, name = split_stage(stage)
    found = Client().post(f"stages/{model}/{name}/keys-required", ApiKeys, {"required": required})
    echo_done(as_json, found, f"{stage} {'refuses' if found.required else 'takes'} requests without a key.")
