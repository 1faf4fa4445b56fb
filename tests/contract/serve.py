"""A web process on servers of its own, with a stage in service; prints its URL and an administrator's token."""

from __future__ import annotations

import os
import socket
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
    from tests.integration.rollouts_world import Demo

    call_command("migrate", interactive=False, verbosity=0)
    Demo().first()
    token = token_create(user=User.objects.create_superuser("root"))
    server = uvicorn.Server(uvicorn.Config("denvweb.asgi:application", lifespan="off", log_level="warning"))
    threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as listening:  # before the URL is known to anybody: who connects early waits
        print(f"http://127.0.0.1:{listening.getsockname()[1]} {token}", flush=True)
        server.run(sockets=[listening])


def _end_with_stdin(server: object) -> None:
    sys.stdin.read()
    server.should_exit = True  # type: ignore[attr-defined]  # uvicorn's own way to be stopped from another thread


if __name__ == "__main__":
    main()
