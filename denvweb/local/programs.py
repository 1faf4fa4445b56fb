"""What `denv up` runs: each program of denv as a child, with its environment."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from denvweb.local.children import ChildSpec
from denvweb.local.embedded import ServerCommand
from denvweb.local.home import Home

_PYTHON = sys.executable
_DENV = (_PYTHON, "-m", "denvweb.cli.main")


def environment(home: Home, *, url: str, database_url: str, redis_url: str) -> dict[str, str]:
    """What every program of the control plane reads."""
    return {
        "DJANGO_SETTINGS_MODULE": "denvweb.settings",
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "DENV_HOME": str(home.root),
        "DENV_PUBLIC_URL": os.environ.get("DENV_PUBLIC_URL", url),
        "DENV_SECRET_KEY": home.secret("secret-key"),
        "PYTHONUNBUFFERED": "1",
        "MALLOC_ARENA_MAX": "2",  # glibc keeps an arena a thread otherwise: tens of megabytes in a process with a thread pool
    }


def postgres(command: ServerCommand) -> ChildSpec:
    """The embedded PostgreSQL; SIGINT is its fast shutdown."""
    return ChildSpec("postgres", command.argv, env={"LC_ALL": "C"}, user=command.user, stop_signal=signal.SIGINT, stop_timeout_s=15)


def valkey(command: ServerCommand) -> ChildSpec:
    """The embedded Valkey."""
    return ChildSpec("valkey", command.argv)


def web(env: dict[str, str], port: int) -> ChildSpec:
    """Pages, API, and what agents and routers call."""
    argv = (
        _PYTHON, "-m", "uvicorn", "denvweb.asgi:application", "--host", "127.0.0.1", "--port", str(port), "--loop", "uvloop",
        "--http", "httptools", "--ws", "websockets-sansio", "--lifespan", "off", "--log-level", "warning", "--no-access-log",
        "--timeout-graceful-shutdown", "2",
    )  # fmt: skip
    return ChildSpec("web", argv, env={**env, "DENV_DB_POOL": "12"})


def worker(env: dict[str, str]) -> ChildSpec:
    """Celery's worker. Threads and not processes: its tasks wait for the database, and a process more is 60 MB more."""
    argv = (
        _PYTHON, "-m", "celery", "-A", "denvweb.celery", "worker", "--pool", "threads", "--concurrency", "2", "--loglevel", "warning",
        "--without-gossip", "--without-mingle", "--without-heartbeat",
    )  # fmt: skip
    return ChildSpec("worker", argv, env=env, stop_timeout_s=10)


def beat(env: dict[str, str], home: Home) -> ChildSpec:
    """Celery's clock."""
    schedule = str(home.run / "beat-schedule")
    return ChildSpec(
        "beat", (_PYTHON, "-m", "celery", "-A", "denvweb.celery", "beat", "--schedule", schedule, "--pidfile", "", "-l", "warning"), env=env
    )


def router(home: Home, *, stage: str, control: str, port: int, token_file: Path) -> ChildSpec:
    """The router of one stage."""
    name = f"router-{stage.replace('/', '-')}"
    argv = (
        *_DENV, "router", "--stage", stage, "--port", str(port), "--control", control, "--token-file", str(token_file),
        "--state-dir", str(home.router_state()), "--name", name,
    )  # fmt: skip
    return ChildSpec(name, argv, env={"PYTHONUNBUFFERED": "1"})


def simulated_agent(home: Home, *, fleet: str, control: str, simulated: str, port_base: int, token_file: Path) -> ChildSpec:
    """One agent process that stands for all nodes of a simulated fleet."""
    argv = (
        *_DENV, "agent", "--control", control, "--token-file", str(token_file), "--state-dir", str(home.agent_state(fleet)),
        "--simulated", simulated, "--port-base", str(port_base), "--stop-engines-on-exit",
    )  # fmt: skip
    return ChildSpec(f"agent-{fleet}", argv, env={"PYTHONUNBUFFERED": "1"}, stop_timeout_s=20)


def replay(*, stage: str, trace: Path, speed: float, home: Home) -> ChildSpec:
    """The demo's traffic: a real trace, over and over."""
    argv = (*_DENV, "replay", str(trace), "--stage", stage, "--speed", str(speed), "--loop", "--json")
    return ChildSpec("traffic", argv, env={"DENV_HOME": str(home.root)}, stop_timeout_s=1)
