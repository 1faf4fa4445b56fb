"""`make chaos`: rollouts under traffic while everything is being broken at random, then a checker over all that was recorded.

python -m tests.chaos.run --minutes 10 --seed 7
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from denvweb.cli.client import Client
from denvweb.core.errors import DenvError
from metrics.domain.views import EventView
from releases.domain.views import RolloutView, StageView
from tests.chaos.checker import Journey, Record, violations
from tests.chaos.clients import Clients, Reader
from tests.chaos.monkey import Monkey
from tests.chaos.watch import Watch
from tests.e2e.instance import ROOT, Instance

STAGE = "ds-flash/prod-us"
POLICY = "rollout: { canary: 30%, steps: [100%], hold: 3s, bake: 4s, min-requests: 30, max-wait: 1m, deadline: 3m, keep-warm: 20s }"
ROLLOUT_MAX_S = 240.0  # with its deadlines, and with everything broken every few seconds
KINDS = ("good", "bad", "asked back")


@dataclass
class Chaos:
    """One run."""

    instance: Instance
    seed: int
    seconds: float
    record: Record = field(default_factory=Record)
    said: list[str] = field(default_factory=list)

    @cached_property
    def client(self) -> Client:
        """Of the REST API."""
        return self.instance.client()

    def run(self) -> list[str]:
        """Break, mend, stop, and check."""
        self.instance.start()
        try:
            self.instance.until(lambda: "a real trace is replayed" in self.instance.log(), timeout_s=300, what="the demo serves")
            self.instance.until(self._whole, timeout_s=300, what="the first rollout is over")
            self._under_fire()
        finally:
            self.instance.stop()
            self.record.left = [f"{process.pid} {' '.join(process.cmdline())[:80]}" for process in self.instance.processes()]
        return violations(self.record)

    def _under_fire(self) -> None:
        stage = self.client.get(f"stages/{STAGE}", StageView)
        rng = random.Random(self.seed)
        monkey = Monkey(self.instance, random.Random(rng.random()))
        clients, reader = Clients(stage.endpoint), Reader(self.client.access)
        watch = Watch(self.instance.home / "routers")
        first = self.client.get_list("events", EventView, limit=1)[0].seq
        with ExitStack() as stack:
            stack.enter_context(watch.watching())
            stack.enter_context(reader.following(first))
            stack.enter_context(clients.sending())
            with monkey.loose():
                self._rollouts(rng)
            self.instance.until(self._whole, timeout_s=180, what="the stage is whole again")
            time.sleep(2)
            self.record.journal = self._journal(first)
            self.instance.until(lambda: reader.seqs[-1] >= self.record.journal[0].seq, timeout_s=20, what="the reader has all")
        self.record.injuries, self.record.tables, self.record.sent = monkey.injuries, watch.tables, clients.sent
        self.record.read = reader.seqs

    def _whole(self) -> bool:
        stage = self.client.get(f"stages/{STAGE}", StageView)
        routers = stage.routers
        complete = sum(unit.complete and unit.routable for unit in stage.units if unit.release == f"ds-flash@{stage.release}")
        return stage.state == "steady" and complete >= stage.replicas and routers.live == 1 and routers.confirmed == routers.generation

    def _rollouts(self, rng: random.Random) -> None:
        """One after another until the time is over."""
        end, number = time.time() + self.seconds, 0
        while time.time() < end:
            number += 1
            kind = KINDS[number % len(KINDS)]
            journey = self._begin(kind, number)
            if journey is None:
                time.sleep(0.5)
                continue
            if self.record.journeys:
                self.record.journeys[-1].next_began_at = time.time() - 1
            self.record.journeys.append(journey)
            self._follow(journey, ask_back_after_s=rng.uniform(1, 25) if kind == "asked back" else None)

    def _begin(self, kind: str, number: int) -> Journey | None:
        change = "{ decode: { slow-factor: 3 } }" if kind == "bad" else ""
        lines = [f"  engine: {{ decode: {{ speculative-draft-length: {1 + number % 7} }} }}"]
        lines += [f"  simulated-faults: {change}"] if change else []
        try:
            before = self.client.get(f"stages/{STAGE}", StageView)
            began = self.client.post("releases", dict[str, Any], {"yaml": release_yaml(lines)})
        except (DenvError, OSError):
            return None
        rollout = began["rollouts"][0]
        return Journey(rollout["id"], f"ds-flash@{rollout['to_release']}", f"ds-flash@{before.release}", bad=kind == "bad")

    def _follow(self, journey: Journey, *, ask_back_after_s: float | None) -> None:
        began = time.time()
        while time.time() - began < ROLLOUT_MAX_S:
            time.sleep(0.3)
            view = self._view(journey)
            if view is not None and not view.active:
                journey.ended, journey.ended_at = view, time.time()
                self.said.append(
                    f"{journey.release} {'bad' if journey.bad else 'good'}: {view.state} after {time.time() - began:.0f} s, {view.why}"
                )
                return
            due = ask_back_after_s is not None and time.time() - began > ask_back_after_s
            if due and journey.rollback_acknowledged_at is None and self._ask_back():
                journey.rollback_acknowledged_at = time.time()
        view = self._view(journey)
        self.said.append(f"{journey.release}: has not ended, {view and view.state}: {view and view.why}")

    def _view(self, journey: Journey) -> RolloutView | None:
        try:
            return self.client.get(f"rollouts/{journey.id}", RolloutView)
        except (DenvError, OSError):
            return None

    def _ask_back(self) -> bool:
        try:
            self.client.post(f"stages/{STAGE}/rollback", RolloutView, {"reason": "chaos"})
        except (DenvError, OSError):
            return False
        return True

    def _journal(self, after: int) -> list[EventView]:
        rows: list[EventView] = []
        while not rows or rows[-1].seq > after:
            params = {"before": rows[-1].seq} if rows else {}
            page = self.client.get_list("events", EventView, limit=200, **params)
            if not page:
                break
            rows += page
        return [row for row in rows if row.seq > after]

    def summary(self) -> dict[str, object]:
        """In numbers."""
        record = self.record
        failed = Counter(sent.error[:60] for sent in record.sent if sent.error)
        return {
            "seed": self.seed,
            "injuries": len(record.injuries),
            "rollouts": len(record.journeys),
            "ended": Counter(journey.ended.state if journey.ended else "not" for journey in record.journeys),
            "requests": len(record.sent),
            "failed_by_a_hurt_engine_or_router": sum(failed.values()),
            "tables": len(record.tables),
            "journal_rows": len(record.journal),
        }


def release_yaml(lines: list[str]) -> str:
    """The demo's release with these lines, and holds of seconds."""
    text = (ROOT / "denvweb/local/data/demo.yaml").read_text(encoding="utf-8")
    whole = [f"    {POLICY}" if line.strip().startswith("rollout:") else line for line in text.splitlines()]
    at = next(index for index, line in enumerate(whole) if line.startswith("stages:"))
    return "\n".join([*whole[:at], *lines, *whole[at:]]) + "\n"


def main() -> None:
    """Print what was done and what was violated; status 1 when anything was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="denv-chaos-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs under an account of its own
        chaos = Chaos(Instance(Path(folder) / "home", demo=True), options.seed, options.minutes * 60)
        found = chaos.run()
    began = chaos.record.injuries[0].at if chaos.record.injuries else 0.0
    print("\n".join(f"{injury.at - began:6.1f} s  {injury}" for injury in chaos.record.injuries))
    print("\n".join(chaos.said))
    print("\n".join(f"VIOLATED: {sentence}" for sentence in found) or "nothing was violated")
    print(json.dumps({**chaos.summary(), "violations": len(found)}))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
