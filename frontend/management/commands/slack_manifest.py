"""Print the manifest of the Slack app."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from frontend.slack.manifest import manifest


class Command(BaseCommand):
    """`manage.py slack_manifest --url https://denv.example.com`."""

    help = "Print the manifest that Slack makes the app from: api.slack.com/apps, Create New App, From a manifest."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--url", default=settings.PUBLIC_URL, help="where Slack reaches this installation")
        parser.add_argument("--socket-mode", action="store_true", help="denv calls Slack, so Slack needs to reach nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(json.dumps(manifest(url=options["url"].rstrip("/"), socket_mode=options["socket_mode"]), indent=2))
