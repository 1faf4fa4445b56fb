"""`denv up`, `agent`, `router` and `engine`: the long-running programs; each keeps its own flags."""

from __future__ import annotations

import os
import sys

import click

from denvweb.cli.groups import Group

_PASS_ON = {"ignore_unknown_options": True, "help_option_names": []}


@click.command()
@click.option("--port", default=8080, show_default=True, help="Of the dashboard and the API.")
@click.option("--demo", is_flag=True, help="Add simulated fleets, a model and traffic.")
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the dashboard once it is up, where there is a screen.")
def up(port: int, demo: bool, browser: bool) -> None:
    """The whole of denv on this machine, until interrupted.

    Data, logs and credentials are in DENV_HOME (~/.denv). DATABASE_URL and REDIS_URL replace the embedded servers.
    """
    from denvweb.local.up import UpConfig, run

    sys.exit(run(UpConfig(port=port, demo=demo, browser=browser)))


@click.command(context_settings=_PASS_ON)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def agent(args: tuple[str, ...]) -> None:
    """Run the agent of a node."""
    from fleets.agent.main import main

    sys.exit(main(list(args)))


@click.command(context_settings=_PASS_ON)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def router(args: tuple[str, ...]) -> None:
    """Run the router of a stage."""
    from fleets.router.main import main

    sys.exit(main(list(args)))


@click.command(context_settings=_PASS_ON)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def reconcile(args: tuple[str, ...]) -> None:
    """Run the reconcilers in a loop, without Celery or a broker; --once for a single look."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "denvweb.settings")
    os.execv(sys.executable, [sys.executable, "-m", "django", "reconcile", *args])


@click.group(cls=Group)
def engine() -> None:
    """Engines that denv brings itself."""


@engine.command(context_settings=_PASS_ON)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def sim(args: tuple[str, ...]) -> None:
    """Run a simulated engine."""
    from fleets.engines.sim.main import main

    sys.exit(main(list(args)))
