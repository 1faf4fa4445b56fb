"""Make a new installation usable: tables, the first administrator, and the credentials that denv's own programs need."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from denvweb import env
from denvweb.auth import token_check, token_create
from denvweb.core.files import write_private
from denvweb.models import ApiToken
from fleets.services import join_token_create


class Command(BaseCommand):
    """`manage.py bootstrap --url http://127.0.0.1:8080 --fleet gb200-use1`."""

    help = "Migrate, create the first administrator, and write credentials into DENV_HOME/credentials."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--url", default="http://127.0.0.1:8080", help="where the control plane will be reached")
        parser.add_argument(
            "--fleet", action="append", default=[], help="write a join token for the agents of this fleet (may be repeated)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        folder = env.home() / "credentials"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        admin = _admin(folder)
        saved = _read_json(folder / "cli.json")
        if not token_check(str(saved.get("token", "")), ApiToken.Scope.API):
            saved["token"] = token_create(user=admin, label="the denv command on this machine")
        write_private(folder / "cli.json", json.dumps({"url": options["url"], "token": saved["token"]}))
        router = folder / "router.token"
        if not router.exists() or not token_check(router.read_text(encoding="utf-8"), ApiToken.Scope.ROUTER):
            write_private(router, token_create(user=admin, scope=ApiToken.Scope.ROUTER, label="routers on this machine"))
        for fleet in options["fleet"]:
            write_private(folder / f"join-{fleet}.token", join_token_create(fleet=fleet, created_by=admin.username))


def _admin(folder: Path) -> User:
    """The first administrator; the password is made once, and changing it in the dashboard makes the file stale."""
    admin = User.objects.filter(username="admin").first()
    if admin is None:
        password = secrets.token_urlsafe(12)
        admin = User.objects.create_superuser("admin", password=password)
        write_private(folder / "admin-password", password)
    return admin


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return value
