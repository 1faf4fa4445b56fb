"""Flags of the long-running programs: argparse that says which flag was meant, and no page of usage for a slip."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from denvweb.core.words import meant

_UNKNOWN = re.compile(r"unrecognized arguments: (--[^\s=]+)")


class FlagParser(argparse.ArgumentParser):
    """One program's flags. They are never shortened: a new one would change what a short form means."""

    def __init__(self, *, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """One sentence, and exit status 2."""
        unknown = _UNKNOWN.match(message)
        hint = meant(unknown[1], [flag for action in self._actions for flag in action.option_strings]) if unknown else ""
        hint = hint or f"`{self.prog} --help` lists the flags."
        self.exit(2, f"{self.prog}: {message}. {hint}\n")
