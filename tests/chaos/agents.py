"""`make chaos-agents`: what can befall nodes, under traffic and in real time: about six minutes. As root.

Each act says what it found; status 1 when anything is not as it should be.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from fleets.domain.views import FleetMap
from metrics.domain.views import EventView
from tests.chaos.clients import Clients
from tests.e2e.site import STAGE, Site


class Acts:
    """What is done to a site, one after another."""

    def __init__(self, site: Site, *, cut_s: float, web_down_s: float) -> None:
        self.site, self.cut_s, self.web_down_s = site, cut_s, web_down_s
        self.wrong: list[str] = []

    def run(self) -> None:
        """All of them; each begins with a stage that is whole."""
        acts: list[Callable[[], None]] = [self.agent_killed, self.engine_stopped, self.cable_cut, self.nobody_heard, self.web_down]
        for act in acts:
            began_s = time.monotonic()
            act()
            self.site.until_steady()
            print(f"{act.__name__.replace('_', ' '):<16} done after {time.monotonic() - began_s:5.1f} s", flush=True)

    def check(self, holds: bool, what: str) -> None:
        """Say what was found."""
        print(f"  {'ok   ' if holds else 'WRONG'} {what}", flush=True)
        if not holds:
            self.wrong.append(what)

    @contextmanager
    def traffic(self, failures_max: int) -> Iterator[None]:
        """Requests while the block runs."""
        clients = Clients(self.site.stage.endpoint)
        with clients.sending():
            yield
        failed = [sent.error for sent in clients.sent if sent.error]
        self.check(
            len(failed) <= failures_max, f"{len(failed)} of {len(clients.sent)} requests failed (at most {failures_max}) {failed[:1]}"
        )

    def agent_killed(self) -> None:
        """Its engines go on and are adopted."""
        machine = self.site.held()[0]
        with self.traffic(0):
            before = self.site.engines(machine)
            machine.kill_agent()
            time.sleep(8)
            self.site.start_agent(machine)
            time.sleep(12)
            self.check(self.site.engines(machine) == before, "the same engines run")
        self.check(self.site.ready_nodes("live") == len(self.site.machines), "the node reports")

    def engine_stopped(self) -> None:
        """Found within 15 s of its first stuck request."""
        machine = self.site.held()[0]
        engine = self.site.engines(machine)[-1]
        with self.traffic(24):  # what is in it when it stops, or is sent to it before it is out
            engine.send_signal(signal.SIGSTOP)
            began_s = time.monotonic()
            self.site.instance.until(lambda: not engine.is_running(), timeout_s=60, what="it is replaced")
            took_s = time.monotonic() - began_s
            self.site.until_steady()
        self.check(took_s <= 15.0, f"found and ended after {took_s:.1f} s (at most 15)")
        self.check("replica.hung" in self._kinds(), "the journal has it")

    def cable_cut(self) -> None:
        """For a while: the unit is replaced, and when the cable is in again nothing runs twice."""
        machine = self.site.held()[-1]
        with self.traffic(24):
            machine.cut()
            time.sleep(self.cut_s)
            self.check(len(self.site.engines(machine)) > 0, "what is cut off runs on")
            self.site.until_steady()
            machine.heal()
            self.site.instance.until(lambda: not self.site.engines(machine), timeout_s=60, what="its old engines have ended")
        # Its agent says a moment later that they have: then their GPUs are free and the old replica's rows go.
        self.site.instance.until(lambda: self._where_claimed(), timeout_s=30, what="engines run where GPUs are claimed, and nowhere else")
        count = sum(len(self.site.engines(found)) for found in self.site.machines)
        self.check(count == 4, f"{count} engines run (two units of two)")

    def _where_claimed(self) -> bool:
        return self.site.held() == [found for found in self.site.machines if self.site.engines(found)]

    def nobody_heard(self) -> None:
        """All agents at once, for a minute: nothing is withdrawn, and pages and commands say so."""
        before = self.site.query("SELECT id FROM fleets_replica ORDER BY id")
        with self.traffic(0):
            with self.site.bridge.broken():
                self.site.instance.until(lambda: self._frozen(), timeout_s=90, what="it is said")
                time.sleep(20)
                self.check("went silent at once" in self.site.instance.run("fleets").out, "`denv fleets` says so")
                self.check("went silent at once" in self.site.instance.run("stages").out, "`denv stages` says so")
            self.site.instance.until(lambda: not self._frozen(), timeout_s=60, what="healing goes on")
        self.check(self.site.query("SELECT id FROM fleets_replica ORDER BY id") == before, "nothing was replaced")

    def _frozen(self) -> bool:
        return any(fleet.frozen for fleet in self.site.client.get_list("fleets", FleetMap))

    def web_down(self) -> None:
        """For a while: requests are served, and a dead engine is started anew."""
        web = psutil.Process(self.site.instance.pids()["web"])
        machine = self.site.held()[0]
        before = self.site.engines(machine)
        with self.traffic(12):  # what is in the engine that dies
            web.suspend()
            try:
                time.sleep(20)
                before[0].kill()
                time.sleep(self.web_down_s - 20)
                after = self.site.engines(machine)
                self.check(len(after) == len(before) and after != before, "its agent started another")
            finally:
                web.resume()

    def _kinds(self) -> set[str]:
        return {event.kind for event in self.site.client.get_list(f"stages/{STAGE}/events", EventView, limit=50)}


def main() -> None:
    """All acts on a site of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cut-s", type=float, default=60.0, help="how long a cable is out; over 35, so that the node is lost")
    parser.add_argument("--web-down-s", type=float, default=120.0, help="how long the web process is away; over 20")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="denv-chaos-") as folder:
        Path(folder).chmod(0o755)
        site = Site(Path(folder))
        with site.running():
            acts = Acts(site, cut_s=options.cut_s, web_down_s=options.web_down_s)
            acts.run()
        left = [process.pid for process in site.instance.processes()]
        acts.check(not left, f"nothing outlived it {left or ''}")
    print("\n".join(f"WRONG: {sentence}" for sentence in acts.wrong) or "all as it should be")
    sys.exit(1 if acts.wrong else 0)


if __name__ == "__main__":
    main()
