"""`denv login`, `denv token` and `denv completion`."""

from __future__ import annotations

import json
from typing import Any

import click
from click.shell_completion import get_completion_class

from denvweb.cli.client import Access, Client, access_file, checked_url
from denvweb.cli.groups import Group
from denvweb.cli.names import name_argument
from denvweb.cli.output import echo_done, echo_json, json_option, table, typed_secret
from denvweb.core.files import write_private

_VERIFY_TIMEOUT_S = 1800.0  # all of the journal is read: about 20,000 events a second


def save_access(access: Access) -> None:
    """Write the file that every later command reads; only its owner may."""
    path = access_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(path, json.dumps({"url": access.url, "token": access.token}))


@click.command()
@click.argument("url")
@click.option("--token", default="", help="The API token; asked for, or read from standard input, when it is left out.")
@json_option
def login(url: str, token: str, as_json: bool) -> None:
    """Remember a control plane and a token for it."""
    where = checked_url(url)
    given = token or typed_secret("API token (from Settings, or `denv token create` where you are logged in)")
    access = Access(url=where, token=given.strip())
    me = Client(access).get("me", dict[str, Any])
    save_access(access)
    said = {"url": access.url, "username": me["username"], "kept_in": str(access_file())}
    echo_done(as_json, said, f"Logged in to {access.url} as {me['username']}; kept in {access_file()}.")


@click.group(cls=Group)
def token() -> None:
    """Tokens for programs and for nodes that join. Each is shown once."""


@token.command()
@click.option("--label", default="", help="What it is for.")
@click.option("--router", is_flag=True, help="For a router instead of a person's programs.")
@json_option
def create(label: str, router: bool, as_json: bool) -> None:
    """A token for a script or a CI job, or for a router."""
    body = Client().post("tokens", dict[str, Any], {"name": label, "scope": "router" if router else "api"})
    if as_json:
        echo_json(body)
    else:
        click.echo(body["token"])


@token.command()
@name_argument("fleet")
@json_option
def join(fleet: str, as_json: bool) -> None:
    """A one-use token with which the agent of a new node joins FLEET; good for an hour."""
    body = Client().post("join-tokens", dict[str, Any], {"fleet": fleet})
    if as_json:
        echo_json(body)
    else:
        click.echo(body["token"])


@token.command("list")
@json_option
def list_tokens(as_json: bool) -> None:
    """The tokens that are good, newest first; their secrets are kept nowhere."""
    found = Client().get("tokens", dict[str, Any])["results"]
    if as_json:
        echo_json(found)
        return
    rows = [["token", "of", "scope", "for", "expires"]]
    rows += [[row["id"], row["user"], row["scope"], row["name"] or "-", row["expires_at"] or "never"] for row in found]
    click.echo(table(rows))


@token.command()
@click.argument("token_id", metavar="TOKEN")
@json_option
def revoke(token_id: str, as_json: bool) -> None:
    """Take a token back by its id (the part before the dot)."""
    found = token_id.partition(".")[0]
    Client().delete(f"tokens/{found}")
    sentence = "revoked; it is good for nothing from now on (a router's within ten seconds)"
    echo_done(as_json, {"id": found, "revoked": True}, sentence)


@click.group(cls=Group)
def audit() -> None:
    """The journal as evidence: who changed what, through what, and what was refused."""


@audit.command()
@click.option("--head", default="", help="A head that was kept from an earlier check: is it still in the chain?")
@json_option
def verify(head: str, as_json: bool) -> None:
    """Check the whole journal against its chain of hashes; exit status 1 when it does not hold."""
    check = Client(timeout_s=_VERIFY_TIMEOUT_S).get("audit/verify", dict[str, Any], head=head)
    echo_done(as_json, check, check["problem"] or f"{check['checked']:,} events, unbroken; head {check['head']}")
    if check["problem"]:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script: `eval "$(denv completion bash)"`."""
    from denvweb.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(kind(cli, {}, "denv", "_DENV_COMPLETE").source())
