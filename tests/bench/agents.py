"""`make bench-agents`: a thousand nodes against one web process and PostgreSQL; what they cost, and how soon one that dies is noticed.

Prints a table, then one JSON object. As root: the node that dies does so in a network namespace, where nothing answers any more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.bench.rollouts import quantile
from tests.chaos.clients import Clients
from tests.chaos.monkey import environment_of
from tests.e2e.instance import ROOT
from tests.e2e.site import Site

CROWD = (50, 20)  # domains, and nodes of each
_TOUCHES = 3


class Bench(Site):
    """One run."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder)
        self.seconds = seconds
        self.figures: dict[str, float] = {}

    def run(self) -> None:
        """Everything, one after another."""
        with self.running(), self._crowd():
            self._quiet()
            self._generations()
            clients = Clients(self.stage.endpoint)
            with clients.sending():
                self._death()
            failed = [sent for sent in clients.sent if sent.error]
            self.say("requests meanwhile", f"{len(clients.sent)}, of which {len(failed)} failed")

    def say(self, what: str, figure: str) -> None:
        """One line of the table."""
        print(f"{what:<64} {figure}", flush=True)

    @contextmanager
    def _crowd(self) -> Iterator[None]:
        """The thousand."""
        domains, nodes = CROWD
        self.notes, state = self.folder / "crowd.notes", self.folder / "crowd"
        simulated = f"fleet=crowd,kind=GB200,domains={domains},nodes={nodes},gpus=4,span"
        argv = [sys.executable, "-m", "tests.bench.crowd", str(self.notes), "--control", f"http://127.0.0.1:{self.instance.port}"]
        argv += ["--token", self.token("crowd"), "--state-dir", str(state), "--simulated", simulated, "--port-base", "33000"]
        argv += ["--port-count", "4"]
        with (self.folder / "crowd.log").open("wb") as out:
            process = subprocess.Popen(argv, stdout=out, stderr=out, env=self.instance.env, cwd=ROOT)
        try:
            self.crowd = psutil.Process(process.pid)
            self.instance.until(lambda: self.ready_nodes("crowd") == domains * nodes, timeout_s=120, what="the crowd joined")
            yield
        finally:
            process.terminate()
            process.wait(60)

    def _syncs(self, after: float) -> list[tuple[float, float, str]]:
        """(seconds since the epoch, milliseconds, node) of each sync of the crowd after a time."""
        rows = [line.split() for line in self.notes.read_text(encoding="utf-8").splitlines()[:-1]]
        return [(float(at), float(ms), node) for at, ms, node, _ in rows if float(at) >= after]

    # ---- what is measured ----

    def _quiet(self) -> None:
        """Nothing happens; the nodes only say that they are there."""
        time.sleep(8)
        postgres = psutil.Process(self.instance.pids()["postgres"])
        programs = {"web": [psutil.Process(self.instance.pids()["web"])], "the crowd": [self.crowd]}
        began, before = time.time(), {name: _cpu_s(found) for name, found in programs.items()}
        postgres_s, blocks = _cpu_s([postgres, *postgres.children()]), self._writes()
        time.sleep(self.seconds)
        took_s = time.time() - began
        for name, found in programs.items():
            share = (_cpu_s(found) - before[name]) / took_s
            self.say(f"CPU of {name}", f"{share:6.1%} of a core")
            self.figures.setdefault("web_cpu_ratio", share)
        self.say("CPU of PostgreSQL", f"{(_cpu_s([postgres, *postgres.children()]) - postgres_s) / took_s:6.1%} of a core")
        updates, hot = (after - before for after, before in zip(self._writes(), blocks, strict=True))
        self.say("row updates of nodes", f"{updates / took_s:6.1f} a second, {hot / max(1, updates):.0%} of them HOT")
        syncs = self._syncs(began)
        took_ms = [ms for _, ms, _ in syncs]
        self.say("syncs", f"{len(syncs) / took_s:6.1f} a second")
        self.say("snapshot, p50 and p99", f"{quantile(took_ms, 0.5):6.1f} ms, {quantile(took_ms, 0.99):.1f} ms")
        self.figures["snapshot_p99_ms"] = quantile(took_ms, 0.99)

    def _writes(self) -> tuple[int, int]:
        found = self.query("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'fleets_node'")
        return int(found[0][0]), int(found[0][1])

    def _generations(self) -> None:
        """A new generation for every node, and one for two of them."""
        names = [name for (name,) in self.query("SELECT name FROM fleets_node WHERE domain_id LIKE 'crowd/%' ORDER BY name")]
        took = []
        for _ in range(_TOUCHES):
            began = self._touch(names)
            wanted: dict[str, int] = dict(self.query("SELECT name, generation FROM fleets_node"))
            self.instance.until(lambda wanted=wanted: self._observed(wanted, names), timeout_s=60, what="all have it", every_s=0.05)  # type: ignore[misc]  # a lambda with a default
            took.append(time.time() - began)
            time.sleep(5)
        each = ", ".join(f"{one:.2f}" for one in sorted(took))
        self.say("a new generation with all 1,000 agents", f"{max(took):6.2f} s (the slowest of {each})")
        self.figures["generation_all_s"] = max(took)
        quiet = len(self._syncs(time.time() - 4))
        began = self._touch(names[:2])
        time.sleep(2)
        syncs = [node for at, _, node in self._syncs(began) if at < began + 1.0]
        self.say("syncs in the second after a poke for two nodes", f"{len(syncs):6.0f} (else {quiet / 4:.0f})")
        first = [at for at, _, node in self._syncs(began) if node in names[:2]]
        self.say("until those two asked", f"{first[0] - began:6.2f} s" if first else "not within 2 s")

    def _observed(self, wanted: dict[str, int], names: list[str]) -> bool:
        rows = dict(self.query("SELECT name, observed_generation FROM fleets_node WHERE name = ANY(%s)", names))
        return all(rows[name] >= wanted[name] for name in names)

    def _touch(self, names: list[str]) -> float:
        """Draw a generation for these nodes as a service does; when that was committed."""
        env = environment_of(self.instance)
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.touch"],
            input="\n".join(names),
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(done.stderr)
        return float(done.stdout)

    def _death(self) -> None:
        """The network of a machine with a unit is gone, and stays so."""
        time.sleep(5)
        machine = self.held()[0]
        replicas = {name for (name,) in self.query("SELECT replica_id FROM fleets_rank WHERE node_id = %s", machine.name)}
        machine.cut()
        began = time.time()
        self.instance.until(lambda: self._unrouted(replicas), timeout_s=60, what="the routers left it", every_s=0.1)
        self.figures["unrouted_s"] = time.time() - began
        self.instance.until(
            lambda: self.query("SELECT 1 FROM fleets_node WHERE name = %s AND state = 'lost'", machine.name),
            timeout_s=90,
            what="lost",
            every_s=0.1,
        )
        self.figures["lost_s"] = time.time() - began
        self.until_steady()
        self.say("until no router sends to a dead node", f"{self.figures['unrouted_s']:6.1f} s")
        self.say("until it is LOST", f"{self.figures['lost_s']:6.1f} s")
        self.say("until its unit serves elsewhere", f"{time.time() - began:6.1f} s")

    def _unrouted(self, replicas: set[str]) -> bool:
        """Whether each of these is out by the router's own report, or gone from its table."""
        ((gauges,),) = self.query("SELECT gauges FROM fleets_router")
        return replicas <= {name for gauge in gauges for name in gauge["ejected"]}


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes if process.is_running())


def main() -> None:
    """`--seconds` of quiet, then generations, then a death."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="denv-bench-") as folder:
        Path(folder).chmod(0o755)
        bench = Bench(Path(folder), options.seconds)
        print(f"1,000 nodes for {options.seconds:.0f} s; load of this machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        bench.run()
    print(json.dumps({key: round(value, 3) for key, value in bench.figures.items()}))


if __name__ == "__main__":
    main()
