"""`denv secret`: what engines need of other systems. A value is typed or piped in, never an argument, and never read again."""

from __future__ import annotations

import click

from denvweb.cli.client import Client
from denvweb.cli.groups import Group
from denvweb.cli.names import name_argument, name_option
from denvweb.cli.output import echo_done, echo_json, json_option, table, typed_secret
from fleets.domain.views import SecretView


@click.group(cls=Group)
def secret() -> None:
    """Secrets that releases name (`secrets: { HF_TOKEN: hf-read }`) and engines are given."""


@secret.command("set")
@click.argument("name")
@name_option("model", default="*", show_default=True, help="Whose releases may name it; `*`: every model's.")
@json_option
def set_secret(name: str, model: str, as_json: bool) -> None:
    """Store NAME, or a new value of it. The value is asked for, or read from standard input."""
    value = typed_secret("Value")
    made = Client().post("secrets", SecretView, {"name": name, "value": value, "model": model})
    if as_json:
        echo_json(made)
        return
    users = f" Nodes of {', '.join(made.used_by)} have it now; their engines with their next start." if made.used_by else ""
    click.echo(f"Secret {made.name} is stored (version {made.version}).{users}")


@secret.command("list")
@json_option
def list_secrets(as_json: bool) -> None:
    """Stored secrets, without their values."""
    found = Client().get_all("secrets", SecretView)
    if as_json:
        echo_json(found)
        return
    if not found:
        click.echo("No secret is stored. `denv secret set NAME` stores one.")
        return
    rows = [["name", "model", "version", "set", "by", "used by"]]
    rows += [
        [one.name, one.model, str(one.version), f"{one.set_at:%Y-%m-%d %H:%M}", one.set_by, ", ".join(one.used_by) or "-"] for one in found
    ]
    click.echo(table(rows, right=(2,)))


@secret.command()
@name_argument("secret", "name", metavar="NAME")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove NAME, if nothing uses it."""
    Client().delete(f"secrets/{name}")
    echo_done(as_json, {"name": name, "removed": True}, f"Secret {name} is removed.")
