"""`denv reconcile`: all that beat would have done, in a plain loop, for an installation without Celery or beside it."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import close_old_connections

from denvweb.celery import app

log = logging.getLogger(__name__)


class Command(BaseCommand):
    """Runs each periodic task here, as often as beat would send it; any number of these, and of workers, may run at once."""

    help = "Run the reconcilers in a loop, without Celery or a broker; --once for a single look."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--every", type=float, default=0.0, help="Seconds between two looks; as beat has it by default.")
        parser.add_argument("--once", action="store_true", help="Look once and end.")

    def handle(self, *args: Any, **options: Any) -> None:
        stop = threading.Event()
        app.loader.import_default_modules()
        periods = {entry["task"]: options["every"] or float(entry["schedule"]) for entry in app.conf.beat_schedule.values()}
        if options["once"]:
            for task in periods:
                self._run(task)
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        self.stdout.write(f"{', '.join(sorted(periods))}: every {min(periods.values()):g} s or less often; Ctrl-C ends it")
        _loop(periods, self._run, stop)

    def _run(self, task: str) -> None:
        close_old_connections()
        try:
            app.tasks[task]()
        except Exception:
            log.exception("%s failed; the next look tries again", task)


def _loop(periods: dict[str, float], run: Callable[[str], None], stop: threading.Event) -> None:
    due = dict.fromkeys(periods, 0.0)
    while not stop.is_set():
        now = time.monotonic()
        for task in [task for task, at in due.items() if at <= now]:
            run(task)
            due[task] = time.monotonic() + periods[task]
        stop.wait(max(0.0, min(due.values()) - time.monotonic()))
