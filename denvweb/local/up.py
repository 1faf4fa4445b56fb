"""`denv up`: the whole of denv on one machine, as a supervisor of the same programs that a cluster runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType

import click
import httpx

from denvweb import env
from denvweb.cli.client import Access, Client, saved_access
from denvweb.core.errors import DenvError, UnavailableError
from denvweb.local import demo, embedded, programs
from denvweb.local.children import Children, end_leftovers
from denvweb.local.home import Home
from fleets.agent.cleanup import kill_leftovers
from fleets.domain.views import NodeStanding
from releases.domain.views import StageView

_ROUND_S = 0.25
_STAGES_EVERY_S = 3.0
_READY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class UpConfig:
    """The flags of `denv up`."""

    port: int = 8080
    demo: bool = False
    browser: bool = True


class _StopError(Exception):
    """Somebody asked for the end (raised by the signal handler)."""


class Up:
    """One run of `denv up`."""

    def __init__(self, config: UpConfig, home: Home) -> None:
        self.config, self.home = config, home
        self.url = f"http://127.0.0.1:{config.port}"
        self.children = Children(home.logs, home.run / "children.json")
        self.began_mono_s, self.began_at = time.monotonic(), datetime.now(UTC)
        self.client: Client | None = None

    def say(self, text: str) -> None:
        """One line of progress, with the seconds since the start."""
        click.echo(f"{time.monotonic() - self.began_mono_s:6.1f} s  {text}")

    def start(self) -> None:
        """Bring everything up, in the order in which it is needed."""
        env = self._servers()
        self._bootstrap(env)
        self.children.start(programs.web(env, self.config.port))
        self.children.start(programs.worker(env))
        self.children.start(programs.beat(env, self.home))
        self._wait_for_web()
        self.client = Client(Access(url=self.url, token=saved_access().token))
        for stage, port in self.home.remembered_ports("router ").items():
            self._start_router(stage, port)
        self.say(f"control plane ready: {self.url}")
        if self.config.demo:
            self._start_demo()

    def _servers(self) -> dict[str, str]:
        database_url, redis_url = os.environ.get("DATABASE_URL", ""), os.environ.get("REDIS_URL", "")
        if not redis_url:
            command = embedded.valkey_prepare(self.home.data / "valkey", self.home.port("valkey"))
            self.children.start(programs.valkey(command))
            redis_url = command.url
        if not database_url:
            command = embedded.postgres_prepare(self.home.data / "postgres")
            self.children.start(programs.postgres(command))
            embedded.postgres_create_database(command.url)
            database_url = command.url
        self.say("PostgreSQL and Valkey answer")
        return programs.environment(self.home, url=self.url, database_url=database_url, redis_url=redis_url)

    def _bootstrap(self, env: dict[str, str]) -> None:
        fleets = [fleet.name for fleet in demo.FLEETS] if self.config.demo else []
        argv = [sys.executable, "-m", "django", "bootstrap", "--url", self.url, *(f"--fleet={name}" for name in fleets)]
        result = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=False)
        if result.returncode:
            raise UnavailableError(f"the database could not be prepared:\n{result.stderr.strip()[-2000:]}")

    def _wait_for_web(self) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline:
            for sentence in self.children.check():
                self.say(sentence)
            try:
                if httpx.get(f"{self.url}/readyz", timeout=2, trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise UnavailableError(f"the web process is not ready after {_READY_TIMEOUT_S:.0f} s; its log is {self.home.logs / 'web.log'}")

    def _start_demo(self) -> None:
        port_base = self.home.port_range("agents", sum(fleet.port_count for fleet in demo.FLEETS))
        for fleet in demo.FLEETS:
            token = self.home.credentials / f"join-{fleet.name}.token"
            self.children.start(
                programs.simulated_agent(
                    self.home, fleet=fleet.name, control=self.url, simulated=fleet.simulated, port_base=port_base, token_file=token
                )
            )
            port_base += fleet.port_count
        self.say("agents of 58 simulated nodes started")

    def _demo_round(self, stages: list[StageView]) -> None:
        """Release the model once the fleets are there, and send traffic once it serves."""
        assert self.client is not None
        if not stages:
            try:
                self.client.post("releases", dict[str, object], {"yaml": demo.release_text(), "note": "the demo's first release"})
            except UnavailableError as error:
                self.say(f"could not release yet: {error.detail}")
            except DenvError:
                return  # the fleets have not joined yet; the next round tries again
            else:
                self.say("release 1 of ds-flash accepted; two serving units start")
            return
        view = next((stage for stage in stages if stage.stage == demo.STAGE), None)
        if view and view.endpoint and view.units_ready and view.releases and "traffic" not in self.children and self._reported():
            self.children.start(programs.replay(stage=demo.STAGE, trace=demo.trace_path(), speed=demo.SPEED, home=self.home))
            self.say(f"{demo.STAGE} serves at {view.endpoint}; a real trace is replayed against it (simulated engines)")

    def _reported(self) -> bool:
        """Whether every node that has something to run has said how it is since this start: what is known from before is over."""
        assert self.client is not None
        nodes = self.client.get_all("nodes", NodeStanding)
        return all(node.last_report_at is not None and node.last_report_at > self.began_at for node in nodes if node.used)

    def _start_router(self, stage: str, port: int) -> None:
        if f"router-{stage.replace('/', '-')}" not in self.children:
            token = self.home.credentials / "router.token"
            self.children.start(programs.router(self.home, stage=stage, control=self.url, port=port, token_file=token))

    def stages_round(self) -> None:
        """A router for every stage, and what the demo does next."""
        if self.client is None:
            return
        try:
            stages = self.client.get_list("stages", StageView)
        except DenvError:
            return  # the web process is on its way back
        for stage in stages:
            self._start_router(stage.stage, self.home.port(f"router {stage.stage}", self.config.port + 1))
        if self.config.demo:
            self._demo_round(stages)

    def loop(self) -> None:
        """Keep it all running until somebody asks for the end."""
        next_stages_s = 0.0
        while True:
            for sentence in self.children.check():
                self.say(sentence)
            if time.monotonic() >= next_stages_s:
                self.stages_round()
                next_stages_s = time.monotonic() + (1.0 if self.config.demo and "traffic" not in self.children else _STAGES_EVERY_S)
            time.sleep(_ROUND_S)


def _tidy(home: Home, say: Callable[[str], None]) -> None:
    """End what an earlier run left behind after a kill -9."""
    names = end_leftovers(home.run / "children.json")
    agents = home.root / "agents"
    engines = sum(kill_leftovers(folder) for folder in agents.iterdir()) if agents.exists() else 0
    if names or engines:
        say(f"ended what an earlier run left: {', '.join(names) or 'no program'}, {engines} engine processes")


def _greet(up: Up) -> None:
    password = up.home.credentials / "admin-password"
    click.echo(f"\n  Dashboard   {up.url}")
    click.echo(f"  Log in as   admin, password {_shown_password(password)}")
    click.echo(f"  Data, logs  {up.home.root}")
    click.echo("  Stop        Ctrl-C\n")
    if up.config.browser and (os.environ.get("DISPLAY") or sys.platform == "darwin"):
        webbrowser.open(up.url)


def _shown_password(path: Path) -> str:
    if not path.exists():
        return "as you set it"
    # On a terminal it is shown; a log that is kept gets the file's name only.
    return path.read_text(encoding="utf-8").strip() if sys.stdout.isatty() else f"in {path}"


def _on_signal(signum: int, frame: FrameType | None) -> None:
    raise _StopError


def run(config: UpConfig) -> int:
    """Start, supervise, and stop everything again; the exit status."""
    home = Home(env.home().resolve())
    home.prepare()
    lock = home.lock()
    click.echo(f"denv {version('denv')} from {home.root}")
    up = Up(config, home)
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)
    try:
        _tidy(home, up.say)
        up.start()
        _greet(up)
        up.loop()
    except _StopError:
        up.say("stopping")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        up.children.stop_all()
        lock.close()
    up.say("stopped; nothing of it runs any more")
    return 0
