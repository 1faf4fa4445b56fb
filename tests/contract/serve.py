"""A web process on servers of its own, with a stage in service; prints its URL and an administrator's token."""

from __future__ import annotations

import os
import sys
import threading

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
os.environ["DENV_API_REQUESTS_PER_S"] = "100000"


def main() -> None:
    import django

    django.setup()

    import uvicorn
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from denvweb.auth import token_create
    from denvweb.local.embedded import free_port
    from tests.integration.rollouts_world import Demo

    call_command("migrate", interactive=False, verbosity=0)
    Demo().first()
    token, port = token_create(user=User.objects.create_superuser("root")), free_port()
    server = uvicorn.Server(uvicorn.Config("denvweb.asgi:application", port=port, lifespan="off", log_level="warning"))
    threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
    print(f"http://127.0.0.1:{port} {token}", flush=True)
    server.run()


def _end_with_stdin(server: object) -> None:
    sys.stdin.read()
    server.should_exit = True  # type: ignore[attr-defined]  # uvicorn's own way to be stopped from another thread


if __name__ == "__main__":
    main()
