"""A denv of its own and a real node beside it, with vLLM in the place of GPUs' work."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from fleets.domain.ports import EVENTS, SIDE_CHANNEL
from fleets.domain.types import Role
from fleets.domain.views import FleetMap, ReplicaState
from fleets.engines.prometheus import samples
from releases.domain.views import RolloutView, StageView
from tests.e2e.instance import DENV, ROOT, Instance
from tests.vllm.client import ask, said

FLEET = "lab"
NODE = "lab-1"
PLACES = 8  # as many engines as the node takes at once
START_S = 420.0  # of a stage, on a machine that does other things too
LEASE_S = 8.0  # how long prefill keeps KV that nobody fetches; the recipe has 30 s
# The stages that tests share: topology, and options of the engines.
_APART = (
    "{ mode: disaggregated, prefill: { gpus: 1, replicas: 1 }, decode: { gpus: 1, replicas: 1 }, "
    "conditional: { local-prefill-below: 1, prefill-queue-above: 64 } }"
)
_SHORT_LEASE = f"{{ prefill: {{ kv-lease-s: {LEASE_S:g} }}, decode: {{ kv-lease-s: {LEASE_S:g} }} }}"
WHOLE, TINY, PUSH = "tiny-whole", "tiny", "tiny-push"
STAGES = {
    WHOLE: ("{ mode: aggregated, gpus: 1, replicas: 1 }", ""),
    TINY: (_APART, _SHORT_LEASE),
    PUSH: (_APART, _SHORT_LEASE),
}
_RECIPES = {PUSH: "tiny/vllm-cpu-push@1"}  # of the others tiny/vllm-cpu@1
# What the engines inherit from their agent: everything on loopback, nothing from the network.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "lo",
}


@dataclass(frozen=True, slots=True)
class Tools:
    """vLLM's own environment."""

    folder: Path

    @property
    def vllm(self) -> Path:
        """Its command."""
        return self.folder / "bin" / "vllm"

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.folder / "bin" / "python"

    @property
    def weights(self) -> str:
        """The tiny model as a release names it."""
        model = self.folder / "models" / "tiny-llama"
        digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
        return f"file://{model}@sha256-{digest[:16]}"


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine as its node runs it."""

    unit: str
    release: str
    role: Role
    replica: str
    pid: int
    url: str

    @property
    def side_port(self) -> int:
        """Where it answers KV handshakes."""
        return int(self.url.rpartition(":")[2]) + SIDE_CHANNEL

    @property
    def events_port(self) -> int:
        """Where it tells what it caches, if its release asks for that."""
        return int(self.url.rpartition(":")[2]) + EVENTS

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All of its processes stand still meanwhile; its sockets take what comes."""
        os.killpg(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            self.thaw()

    def thaw(self) -> None:
        """Let it go on, if it stands still."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        os.killpg(self.pid, signal.SIGKILL)

    def fetching(self) -> float:
        """Requests whose KV is on its way to it."""
        page = httpx.get(f"{self.url}/metrics", timeout=20).text
        wanted = [line for line in page.splitlines() if "kv_fetch_by_stage{" in line and 'stage="in_progress"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in wanted)

    def figures(self) -> dict[str, float]:
        """What its metrics page says of KV and tokens, by short names."""
        page = httpx.get(f"{self.url}/metrics", timeout=20).text
        found = samples(page, [*_FIGURES.values()])
        by_source = {
            line.partition('source="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
            for line in page.splitlines()
            if line.startswith("vllm:prompt_tokens_by_source_total{")
        }
        return {short: found.get(name, 0.0) for short, name in _FIGURES.items()} | by_source


_FIGURES = {
    "kv_use": "vllm:kv_cache_usage_perc",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "bytes": "vllm:nixl_bytes_transferred_sum",
    "failed": "vllm:nixl_num_failed_transfers_total",
    "expired": "vllm:nixl_num_kv_expired_reqs_total",
    "prompt": "vllm:prompt_tokens_total",
    "generated": "vllm:generation_tokens_total",
}


class Lab:
    """The instance, its agent, and what tests do with them."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self.folder, self.tools = folder, tools
        self.denv = Instance(folder / "home", demo=False)
        self.took_s: dict[str, float] = {}
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the instance, then the node."""
        self.denv.start()
        self.denv.until(lambda: (self.denv.home / "credentials" / "cli.json").exists(), timeout_s=90, what="denv is up")
        self.denv.until(lambda: self.denv.client().get_list("fleets", FleetMap) == [], timeout_s=60, what="its API answers")
        token = self.denv.run("token", "join", FLEET, "--json")
        assert token.status == 0, token.err
        argv = [*DENV, "agent", "--control", f"http://127.0.0.1:{self.denv.port}", "--token", token.json()["token"]]
        argv += ["--fleet", FLEET, "--name", NODE, "--gpus", str(PLACES), "--gpu-kind", "CPU", "--host", "127.0.0.1"]
        argv += [
            "--port-base",
            str(_port_base()),
            "--engine-command",
            f"vllm={self.tools.vllm}",
            "--stop-engines-on-exit",
            "--port-count",
            str(12 * PLACES),
        ]
        argv += ["--state-dir", str(self.denv.home / "agent-lab")]
        argv += ["--hung-after-s", "0"]  # tests freeze engines, and a step takes long on a processor
        with (self.folder / "agent.log").open("ab") as out:
            self._agent = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.denv.env | QUIET, cwd=ROOT)
        self.denv.until(lambda: self.denv.client().get_list("fleets", FleetMap), timeout_s=30, what="the node joined")

    def stop(self) -> None:
        """Agent first: it ends its engines."""
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)
            self._agent.wait(60)
        self.denv.stop()

    # ---- releases ----

    def release(self, model: str, *, engine: str = "", policy: str = "", kv_cache: str = "") -> str:
        """Create a release of one of `STAGES`, with other engine options if given; returns its rollout's id."""
        topology, usual = STAGES[model]
        engine = engine or usual
        rollout = policy or "{ canary: 50%, steps: [100%], hold: 1s, bake: 1s, min-requests: 1, max-wait: 30s }"
        text = (
            f"release:\n  model: {model}\n  weights: {self.tools.weights}\n  recipe: {_RECIPES.get(model, 'tiny/vllm-cpu@1')}\n"
            f"  topology: {topology}\n{f'  engine: {engine}{chr(10)}' if engine else ''}"
            f"{f'  kv-cache: {kv_cache}{chr(10)}' if kv_cache else ''}"
            f"stages:\n  lab:\n    fleets: [{FLEET}]\n    replicas: 1\n"
            f"    alarms: {{ ttft-p99: 20s, error-rate: 10% }}\n    rollout: {rollout}\n"
        )
        path = self.folder / f"{model}.yaml"
        path.write_text(text, encoding="utf-8")
        done = self.denv.run("release", "-f", str(path), "--json")
        assert done.status == 0, done.out + done.err
        created: str = done.json()["rollouts"][0]["id"]
        return created

    def stage(self, model: str) -> StageView:
        """How it stands."""
        return self.denv.client().get(f"stages/{model}/lab", StageView)

    def rollout(self, rollout: str) -> RolloutView:
        """How it goes."""
        return self.denv.client().get(f"rollouts/{rollout}", RolloutView)

    def serving(self, model: str) -> StageView:
        """Have one of `STAGES` serve, and wait until it does."""
        began_s = time.monotonic()
        if model not in self.took_s:
            rollout = self.release(model)
            self.denv.until(lambda: self._over(rollout), timeout_s=START_S, what=f"{model} serves")
            assert self.rollout(rollout).state == "succeeded", self.rollout(rollout)
            self.took_s[model] = time.monotonic() - began_s
            print(f"{model}: from release to steady in {self.took_s[model]:.1f} s")
        return self.stage(model)

    def _over(self, rollout: str) -> bool:
        return not self.rollout(rollout).active

    # ---- engines ----

    def engines(self, model: str, role: Role | None = None) -> list[Engine]:
        """Ready engines of a stage."""
        running = self._running()
        return [
            Engine(unit.unit, unit.release, replica.role, replica.replica, *running[replica.ranks[0].rank_id])
            for unit in self.stage(model).units
            for pool in unit.pools
            for replica in pool.replicas
            if replica.state is ReplicaState.READY and role in (None, replica.role) and replica.ranks[0].rank_id in running
        ]

    def _running(self) -> dict[str, tuple[int, str]]:
        """Pid and address of every engine that the agent started, by rank."""
        found = {}
        for process in psutil.process_iter():
            try:
                environ, words = process.environ(), process.cmdline()
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
            mine = environ.get("DENV_AGENT_STATE", "").startswith(str(self.denv.home))
            if mine and "serve" in words and os.getsid(process.pid) == process.pid:
                found[environ["DENV_RANK_ID"]] = (process.pid, f"http://127.0.0.1:{words[words.index('--port') + 1]}")
        return found

    def engine(self, model: str, role: Role) -> Engine:
        """The only ready one of its role, of the release that serves; a unit of another one may be warm beside it."""
        release = f"{model}@{self.stage(model).release}"
        (found,) = [engine for engine in self.engines(model, role) if engine.release == release]
        return found

    def router(self, model: str) -> str:
        """Where clients reach the stage."""
        stage = self.stage(model)
        assert stage.routers.urls, stage.routers
        url: str = stage.routers.urls[0]
        return url

    @contextmanager
    def frozen_agent(self) -> Iterator[None]:
        """The node's agent stands still meanwhile; its engines go on."""
        assert self._agent is not None
        self._agent.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._agent.send_signal(signal.SIGCONT)

    def gauges(self, model: str, role: Role) -> dict[str, float]:
        """What the control plane shows of the figures of its first replica of that role."""
        pools = [pool for unit in self.stage(model).units for pool in unit.pools if pool.role is role]
        return pools[0].replicas[0].gauges

    def routed(self, model: str, name: str, **labels: str) -> float:
        """One of its router's counters or gauges, `denv_router_` left out, over all series with these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = httpx.get(f"{self.router(model)}/metrics", timeout=20).text.splitlines()
        found = [line for line in lines if line.startswith(f"denv_router_{name}{{") and all(pair in line for pair in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def all_free(self, model: str) -> bool:
        """Whether none of its engines computes anything or keeps KV."""
        figures = [engine.figures() for engine in self.engines(model)]
        return bool(figures) and all(now["kv_use"] == now["running"] == now["waiting"] == 0 for now in figures)

    def alone(self, tokens: list[int]) -> list[int]:
        """What one engine alone says to a prompt."""
        return said(ask(self.engine(WHOLE, Role.AGGREGATED).url, WHOLE, tokens))

    def until(self, look: Any, *, timeout_s: float, what: str) -> Any:
        """As Instance.until."""
        return self.denv.until(look, timeout_s=timeout_s, what=what)


def _port_base() -> int:
    """The first of the ports that the node gives to its engines: below those that the kernel hands out, and free now."""
    start = random.randrange(20_000, 30_000, 100)
    for base in range(start, start + 2_000, 100):
        if all(_is_free(port) for port in range(base, base + 12 * PLACES)):
            return base
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
