"""Groups of commands, whose lists say a whole sentence of each."""

from __future__ import annotations

import click


class Group(click.Group):
    """A group whose help cuts no sentence off, in the order in which its commands were written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As they were written: what comes first in life comes first."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first paragraph of each."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first(command)) for name, command in self.commands.items() if not command.hidden])


def _first(command: click.Command) -> str:
    return " ".join((command.help or "").strip().split("\n\n")[0].split())
