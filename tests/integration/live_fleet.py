"""A fleet of real programs on machines whose cables can be cut: agents, simulated engines and a router, around the web process of the test.

Only the control plane's clock is the test's: it says when the reconciler looks, and how long a node has been silent.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import uvicorn
from django.contrib.auth.models import User
from django.utils import timezone

from denvweb.auth import token_create
from denvweb.local.embedded import free_port, wait_for_port
from denvweb.models import ApiToken
from fleets.domain.placement import place_unit
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.types import NodeState, UnitPlacement
from fleets.models import Fleet, Node, Rank
from fleets.reconcile import reconcile
from fleets.selectors import fleet_views, units_view
from fleets.services import join_token_create, routing_set, unit_create, unit_set_routable
from tests.e2e.instance import ROOT
from tests.integration.fleets_world import RELEASE, STAGE, unit_spec
from tests.machines import Bridge, Machine, agent_argv

FLEET = "live"
HUNG_AFTER_S = 2.5
T = TypeVar("T")


class Web:
    """The web process, as a thread that can be stopped and started."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen; returns when it does."""
        config = uvicorn.Config(
            "denvweb.asgi:application",
            port=self.port,
            lifespan="off",
            log_level="error",
            ws="websockets-sansio",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        until(lambda: self._server is not None and self._server.started, "the web process listens")

    def stop(self) -> None:
        """Cut every connection, and listen no more."""
        assert self._server is not None and self._thread is not None
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()


def until(holds: Callable[[], T | None], what: str, timeout_s: float = 20.0) -> T:
    """The first true value."""
    deadline = time.monotonic() + timeout_s
    while not (value := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.05)
    return value


class LiveFleet:
    """Three machines of four GPUs, two units of one machine each, a router, and whatever the test does to them."""

    def __init__(self, machines: list[Machine], folder: Path) -> None:
        self.machines, self.folder = machines, folder
        self.web = Web(free_port())
        self.bridge = Bridge(machines, self.web.port)
        self.router_port = free_port()

    @property
    def endpoint(self) -> str:
        """Where clients ask."""
        return f"http://127.0.0.1:{self.router_port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Everything up and in service; everything gone afterwards."""
        self.web.start()
        router = None
        try:
            with self.bridge.carrying():
                for machine in self.machines:
                    self.start_agent(machine, join_token_create(fleet=FLEET, created_by="tests"))
                until(lambda: Node.objects.filter(state=NodeState.READY).count() == len(self.machines), "the machines joined")
                router = self._start_router()
                self._serve()
                yield
        finally:
            if router is not None:
                router.kill()
                router.wait()
            self.web.stop()

    def start_agent(self, machine: Machine, token: str = "") -> None:
        """Start an agent on a machine; the state of one before is taken over."""
        argv = agent_argv(
            machine, fleet=FLEET, nodes=len(self.machines), gpus=4, port=self.web.port, port_base=21_000, token=token,
            state=self.folder / f"agent{machine.number}", more=("--hung-after-s", str(HUNG_AFTER_S)),
        )  # fmt: skip
        machine.start(argv, {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}, self.folder / f"agent{machine.number}.log")

    def _start_router(self) -> subprocess.Popen[bytes]:
        token = self.folder / "router.token"
        token.write_text(token_create(user=User.objects.create_superuser("root"), scope=ApiToken.Scope.ROUTER), encoding="utf-8")
        argv = [sys.executable, "-m", "fleets.router.main", "--stage", STAGE, "--control", f"http://127.0.0.1:{self.web.port}"]
        argv += ["--token-file", str(token), "--state-dir", str(self.folder / "router"), "--port", str(self.router_port)]
        argv += ["--hung-after-s", str(HUNG_AFTER_S), "--gauge-every-s", "0.25"]
        with (self.folder / "router.log").open("ab") as out:
            return subprocess.Popen(argv, stdout=out, stderr=out, cwd=ROOT)

    def _serve(self) -> None:
        units = []
        for slot in (1, 2):
            spec = unit_spec(prefill=(2, 1), decode=(2, 1))
            placed = place_unit(spec, fleet_views(names=[FLEET]))
            assert isinstance(placed, UnitPlacement), placed
            units.append(unit_create(spec=spec, placement=placed, slot=slot))
        self.until_complete()
        for unit in units:
            unit_set_routable(unit=unit, routable=True)
        conditional = ConditionalPolicy(local_prefill_below=100)
        routing_set(stage=STAGE, model="ds-flash", weights={RELEASE: 10_000}, conditional=conditional, alarms=())
        wait_for_port(self.router_port)
        until(lambda: self.ask().status_code == 200, "the router serves")

    # ---- looking ----

    def look_until(self, holds: Callable[[], bool], what: str) -> None:
        """Until it holds, while the reconciler looks."""

        def look() -> bool:
            reconcile()
            return holds()

        until(look, what)

    def until_complete(self) -> None:
        """Both units stand, by the control plane; the reconciler looks meanwhile."""

        def complete() -> bool:
            views = [view for view in units_view(stage=STAGE, now=timezone.now()) if not view.stopping]
            return len(views) == (2 if views and views[-1].slot == 2 else 1) and all(view.complete for view in views)

        self.look_until(complete, "the units are complete")

    def ask(self, words: int = 20, timeout_s: float = 30.0, **more: Any) -> httpx.Response:
        """One request through the router."""
        body = {"model": "ds-flash", "messages": [{"role": "user", "content": "word " * words}], "max_tokens": 4, **more}
        return httpx.post(f"{self.endpoint}/v1/chat/completions", json=body, timeout=timeout_s, trust_env=False)

    def held(self) -> list[Machine]:
        """Machines with engines, by the database."""
        names = set(Rank.objects.exclude(state=None).values_list("node_id", flat=True))
        return [machine for machine in self.machines if machine.name in names]

    def spare(self) -> Machine:
        """The one without."""
        (machine,) = (machine for machine in self.machines if machine not in self.held())
        return machine

    def engines(self, machine: Machine) -> dict[str, psutil.Process]:
        """Engine processes of a machine by role."""
        found = {}
        for process in machine.processes():
            try:
                words = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            if "fleets.engines.sim" in words and process.status() != psutil.STATUS_ZOMBIE:
                role = "decode" if '"role":"decode"' in words[-1] else "prefill"
                assert role not in found, f"two {role} engines on {machine.name}"
                found[role] = process
        return found

    def rank(self, machine: Machine, role: str) -> Rank:
        """The control plane's rank of a role there."""
        return Rank.objects.select_related("replica").filter(node_id=machine.name, replica__role=role).latest("replica__attempt")

    # ---- doing ----

    def fault(self, machine: Machine, role: str, **faults: Any) -> None:
        """Have an engine misbehave."""
        url = f"http://{machine.address}:{self.rank(machine, role).port}/sim/faults"
        assert httpx.post(url, json=faults, timeout=5, trust_env=False).status_code == 200

    def age(self, *machines: Machine, silent_s: float) -> None:
        """The control plane's clock has moved on so far since these nodes reported, and somebody watched all the while."""
        now = timezone.now()
        Fleet.objects.update(watched_at=now, watched_since=now - timedelta(seconds=120))
        names = [machine.name for machine in machines]
        Node.objects.filter(name__in=names).update(last_report_at=now - timedelta(seconds=silent_s))
        reconcile()
