"""Check the journal against its chain of hashes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from metrics.selectors import chain_view


class Command(BaseCommand):
    """`manage.py audit_verify [--head HASH]`."""

    help = "Check that no row of the journal was changed, taken out or slipped in. Fails, and names the row, when one was."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--head", default="", help="a hash that was printed earlier: also check that the chain still has it")

    def handle(self, *args: Any, **options: Any) -> None:
        found = chain_view(head=options["head"])
        if found.problem:
            raise CommandError(f"The journal does not hold: {found.problem}. {found.checked} events before it do.")
        self.stdout.write(f"The journal holds: {found.checked} events, up to {found.head or 'none'}. Note the hash down elsewhere.")
