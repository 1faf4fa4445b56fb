"""A whole denv whose fleet runs on machines with cables that can be cut: agents in network namespaces, everything else as users run it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg

from denvweb.cli.client import Client
from releases.domain.views import StageView
from tests.chaos.monkey import database_url
from tests.e2e.instance import Instance
from tests.machines import Bridge, Machine, agent_argv, machines

STAGE = "ds-flash/prod-us"
MACHINES = 4  # of eight GPUs: two units of one machine each, and room for others

RELEASE = """
release:
  model: ds-flash
  weights: hf://deepseek-ai/DeepSeek-V4.1-Flash-1017@c41a7e2
  recipe: deepseek-v4.1-flash/deepinfer@3
  topology:
    mode: disaggregated
    prefill: { gpus: 4, replicas: 1 }
    decode: { gpus: 4, replicas: 1 }
    placement: same-domain
stages:
  prod-us:
    fleets: [live]
    replicas: 2
    alarms: { error-rate: 5% }
    rollout: { canary: 50%, steps: [100%], hold: 3s, bake: 3s, min-requests: 1, max-wait: 1m }
"""


class Site:
    """`denv up` and the machines of its fleet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.instance = Instance(folder / "home", demo=False)
        self.machines: list[Machine] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """A stage in service; all is gone afterwards."""
        with ExitStack() as stack:
            self.machines = stack.enter_context(machines(MACHINES))
            self.instance.start()
            stack.callback(self.instance.stop)
            self.instance.until(lambda: "control plane ready" in self.instance.log(), timeout_s=120, what="the control plane is ready")
            self.bridge = stack.enter_context(Bridge(self.machines, self.instance.port).carrying())
            for machine in self.machines:
                self.start_agent(machine, self.token("live"))
            self.instance.until(lambda: self.ready_nodes("live") == MACHINES, timeout_s=60, what="the machines joined")
            self.client.post("releases", dict[str, Any], {"yaml": RELEASE})
            self.until_steady()
            yield

    def start_agent(self, machine: Machine, token: str = "") -> None:
        """Start a machine's agent; the state of one before is taken over."""
        argv = agent_argv(
            machine, fleet="live", nodes=MACHINES, gpus=8, port=self.instance.port, port_base=21_000, token=token,
            state=self.folder / f"agent{machine.number}",
        )  # fmt: skip
        machine.start(argv, self.instance.env, self.folder / f"agent{machine.number}.log")

    @property
    def client(self) -> Client:
        """Of the REST API."""
        return self.instance.client()

    @property
    def stage(self) -> StageView:
        """The stage as its page shows it."""
        return self.client.get(f"stages/{STAGE}", StageView)

    def until_steady(self, timeout_s: float = 180.0) -> None:
        """Until the stage is whole."""
        self.instance.until(self._steady, timeout_s=timeout_s, what="the stage is whole")

    def _steady(self) -> bool:
        stage = self.stage
        complete = sum(unit.complete and unit.routable for unit in stage.units)
        return stage.state == "steady" and complete == stage.replicas and stage.routers.live == 1

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows, straight from the database."""
        with psycopg.connect(database_url(self.instance), autocommit=True) as connection:
            return connection.execute(sql, values or None).fetchall()

    def token(self, fleet: str) -> str:
        """A join token."""
        made: dict[str, Any] = self.client.post("join-tokens", dict[str, Any], {"fleet": fleet})
        return str(made["token"])

    def ready_nodes(self, fleet: str) -> int:
        """How many nodes of a fleet report."""
        return int(self.query("SELECT count(*) FROM fleets_node WHERE domain_id LIKE %s AND state = 'ready'", f"{fleet}/%")[0][0])

    def held(self) -> list[Machine]:
        """Machines with claimed GPUs."""
        names = {name for (name,) in self.query("SELECT DISTINCT node_id FROM fleets_gpuclaim")}
        return [machine for machine in self.machines if machine.name in names]

    def engines(self, machine: Machine) -> list[psutil.Process]:
        """Engine processes there, by pid."""
        found = [process for process in machine.processes() if "fleets.engines" in " ".join(process.cmdline())]
        return sorted((process for process in found if process.status() != psutil.STATUS_ZOMBIE), key=lambda process: process.pid)
