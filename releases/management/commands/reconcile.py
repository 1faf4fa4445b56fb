"""`manage.py reconcile`: the reconcilers in a plain loop, for an installation without Celery or beside it."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import close_old_connections

from releases.reconcile import reconcile


class Command(BaseCommand):
    """Looks again every so many seconds; any number of these, and of workers, may run at once."""

    help = "Reconcile rollouts and stages in a loop; --once for a single look."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--every", type=float, default=2.0, help="Seconds between two looks.")
        parser.add_argument("--once", action="store_true", help="Look once and end.")

    def handle(self, *args: Any, **options: Any) -> None:
        stop = threading.Event()
        if not options["once"]:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
        while True:
            close_old_connections()
            look = reconcile()
            if look.decisions or look.healings or look.failures:
                self.stdout.write(f"{look.decisions} decisions, {look.healings} repairs, {look.failures} failures")
            if options["once"] or stop.wait(options["every"]):
                return
