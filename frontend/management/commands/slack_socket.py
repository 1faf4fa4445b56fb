"""Take Slack's commands and clicks over Socket Mode."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from denvweb.core.errors import DenvError
from frontend.slack.socket import connect


class Command(BaseCommand):
    """`manage.py slack_socket`, until it is ended."""

    help = "Connect to Slack in Socket Mode. Run one: Slack gives each request to one of the connections."

    def handle(self, *args: Any, **options: Any) -> None:
        over = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: over.set())
        try:
            client = connect()
        except DenvError as error:
            raise CommandError(error.detail) from error
        self.stdout.write("connected to Slack")
        over.wait()
        client.close()
