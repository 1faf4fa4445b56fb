"""`denv`: the command. Commands are loaded when they are named, so that each starts fast and none needs Django."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from denvweb.cli import mistakes
from denvweb.core.errors import DenvError

# command: (module, function, one line for `denv --help`)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("denvweb.cli.programs", "up", "The whole of denv on this machine"),
    "init": ("denvweb.cli.init", "init", "Write a first denv.yaml by asking"),
    "schema": ("denvweb.cli.init", "schema", "The JSON schema of denv.yaml, for editors"),
    "release": ("denvweb.cli.release", "release", "Check a release file, and roll it out"),
    "releases": ("denvweb.cli.release", "releases", "The releases of a model"),
    "diff": ("denvweb.cli.release", "diff", "What changed between two releases"),
    "recipes": ("denvweb.cli.release", "recipes", "The recipes that a release can name"),
    "rollout": ("denvweb.cli.rollout", "rollout", "Show, watch, promote, pause, resume or abort a rollout"),
    "rollouts": ("denvweb.cli.rollout", "rollouts", "Rollouts of every stage, newest first"),
    "rollback": ("denvweb.cli.rollout", "rollback", "Go back to the release before"),
    "freeze": ("denvweb.cli.freeze", "freeze", "Times in which nothing goes forward: list, add, remove"),
    "stages": ("denvweb.cli.stages", "stages", "Every stage and how it is"),
    "scale": ("denvweb.cli.scale", "scale", "How many units and replicas a stage has, and setting them"),
    "metrics": ("denvweb.cli.metrics", "metrics", "TTFT, ITL, errors and queues of a stage beside its alarms"),
    "events": ("denvweb.cli.stages", "events", "What happened to a stage, or to all, newest last"),
    "logs": ("denvweb.cli.logs", "logs", "What the engines of a pool write, and -f as they write it"),
    "fleets": ("denvweb.cli.fleets", "fleets", "Fleets, domains, and what runs where"),
    "nodes": ("denvweb.cli.nodes", "nodes", "The nodes of every fleet: list, cordon, uncordon, drain"),
    "placement": ("denvweb.cli.placement", "placement", "Why units are where they are, and which moves would make room"),
    "token": ("denvweb.cli.access", "token", "Tokens for programs and for nodes that join"),
    "key": ("denvweb.cli.keys", "key", "API keys of the clients that send requests to a stage"),
    "secret": ("denvweb.cli.secrets", "secret", "Secrets that engines need, such as a hub's token"),
    "audit": ("denvweb.cli.access", "audit", "Check that nobody has changed the journal"),
    "login": ("denvweb.cli.access", "login", "Remember a control plane and a token for it"),
    "replay": ("denvweb.cli.replay.command", "replay", "Send a recorded trace to an endpoint, and say what the client saw"),
    "weights": ("denvweb.cli.weights", "weights", "What a checkpoint weighs, and whether it fits, from its headers alone"),
    "size": ("denvweb.cli.sizing", "size", "How many prefill and decode replicas a traffic takes"),
    "advise": ("denvweb.cli.sizing", "advise", "Whether to disaggregate, with the numbers"),
    "simulate": ("denvweb.cli.sizing", "simulate", "Play a trace against a shape that does not exist yet"),
    "agent": ("denvweb.cli.programs", "agent", "Run the agent of a node"),
    "router": ("denvweb.cli.programs", "router", "Run the router of a stage"),
    "reconcile": ("denvweb.cli.programs", "reconcile", "Run the reconcilers without Celery, or beside it"),
    "engine": ("denvweb.cli.programs", "engine", "Run a simulated engine"),
    "completion": ("denvweb.cli.access", "completion", "Print the shell completion script"),
}


class LazyGroup(click.Group):
    """Knows its commands by name only; a wrong name gets the nearest right one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, function, line = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), function)
        command.short_help = line  # what shells show beside it
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise mistakes.unknown_command("denv", name, [*COMMANDS, "demo"])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="denv", prog_name="denv")
def cli() -> None:
    """Serve large language models with prefill and decode on separate GPU pools.

    Exit status: 0 done, 1 refused or failed, 2 the input is wrong, 3 the control plane does not answer.
    """


def _run(words: list[str]) -> int:
    """The exit status."""
    plain = False if os.environ.get("NO_COLOR") else None  # https://no-color.org; elsewhere click asks the terminal
    try:
        status = cli.main(words, prog_name="denv", standalone_mode=False, color=plain)
        return status if isinstance(status, int) else 0
    except click.exceptions.NoSuchCommand as error:
        ctx = error.ctx
        known = ctx.command.list_commands(ctx) if ctx is not None and isinstance(ctx.command, click.Group) else ()
        return mistakes.show(mistakes.unknown_command(ctx.command_path if ctx else "denv", error.command_name, known), words)
    except DenvError as error:
        return mistakes.show(error, words)
    except click.ClickException as error:
        return mistakes.show_usage(error, words)


def main() -> None:
    """Run the command; every error becomes a sentence on stderr and an exit status."""
    output = sys.stdout
    try:
        status = _run(sys.argv[1:])
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        click.echo("", err=True)
        status = 130
    except SystemExit:
        if sys.stdout is output:  # click wraps it, and makes an exit of it, when its reader has gone
            raise
        status = mistakes.no_more_output()
    except BrokenPipeError:
        status = mistakes.no_more_output()
    except OSError as error:
        status = mistakes.show(DenvError(f"{error.filename or 'the output'}: {error.strerror or error}", code="os-error"), sys.argv[1:])
        mistakes.no_more_output()
    sys.exit(status)


if __name__ == "__main__":
    main()
