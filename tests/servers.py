"""A real PostgreSQL and a real Valkey for the whole test run, from the same wheels that `denv up` uses."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from denvweb.local import embedded


def _stop(process: subprocess.Popen[bytes], sig: int) -> None:
    if process.poll() is None:
        process.send_signal(sig)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def start_servers() -> None:
    """Start what the environment does not name, and put the URLs there; they stop with this process."""
    home = Path(tempfile.mkdtemp(prefix="denv-test-"))
    home.chmod(0o755)
    os.environ["DENV_HOME"] = str(home / "home")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    if "DATABASE_URL" not in os.environ:
        command = embedded.postgres_prepare(home / "pg")
        postgres = embedded.start(command, home / "pg.log")
        atexit.register(_stop, postgres, signal.SIGINT)
        embedded.postgres_create_database(command.url)
        os.environ["DATABASE_URL"] = command.url
    if "REDIS_URL" not in os.environ:
        port = embedded.free_port()
        command = embedded.valkey_prepare(home / "valkey", port)
        valkey = embedded.start(command, home / "valkey.log")
        atexit.register(_stop, valkey, signal.SIGTERM)
        embedded.wait_for_port(port)
        os.environ["REDIS_URL"] = command.url
