"""`make bench-rollouts`: how soon an alarm and a click are at the routers, and what a look at 500 rollouts takes.

Prints a table, then one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from denvweb.cli.client import Client
from releases.domain.views import RolloutView, StageView
from tests.bench.many import setup, tick_s
from tests.chaos.run import STAGE, release_yaml
from tests.chaos.watch import Watch
from tests.e2e.instance import Instance

_BURST = 100  # requests at once: a third goes to the canary, whose tokens are all late; its one probe says nothing of that


def quantile(values: list[float], share: float) -> float:
    """The smallest that at least this share is not over."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Bench:
    """A denv of real processes without traffic but the bench's own."""

    def __init__(self, folder: Path) -> None:
        self.instance = Instance(folder / "home", demo=True)
        self.watch = Watch(self.instance.home / "routers")
        self.number = 0

    def start(self) -> None:
        """Up, with the demo's traffic asleep: the bench says when a request ends."""
        self.instance.start()
        self.instance.until(lambda: "a real trace is replayed" in self.instance.log(), timeout_s=300, what="the demo serves")
        self.instance.until(self._steady, timeout_s=300, what="steady")
        self.client: Client = self.instance.client()
        self.endpoint = self.client.get(f"stages/{STAGE}", StageView).endpoint
        self.traffic = psutil.Process(self.instance.pids()["traffic"])
        self.traffic.suspend()

    def stop(self) -> None:
        """Everything."""
        self.traffic.resume()
        self.instance.stop()

    def _steady(self) -> bool:
        stage = self.instance.client().get(f"stages/{STAGE}", StageView)
        return stage.state == "steady" and stage.units_ready >= stage.replicas and stage.rollout is not None and not stage.rollout.active

    def canary(self, *faults: str) -> str:
        """Bring a release to its canary's share; its key."""
        self.number += 1
        lines = [f"  engine: {{ decode: {{ speculative-draft-length: {1 + self.number % 7} }} }}", *faults]
        yaml = release_yaml(lines).replace("hold: 3s", "hold: 10m")
        began = self.client.post("releases", dict[str, Any], {"yaml": yaml})
        release = f"ds-flash@{began['rollouts'][0]['to_release']}"
        self.instance.until(lambda: release in self.watch.tables[-1].weights, timeout_s=200, what=f"{release} has its share")
        return release

    def gone_at(self, release: str) -> float:
        """When the router had a table without this release's share."""
        try:
            self.instance.until(lambda: release not in self.watch.tables[-1].weights, timeout_s=60, what=f"{release} has lost its share")
        except AssertionError as error:  # such as: the baseline was late too, on a machine that does something else beside
            rollout = self.client.get(f"stages/{STAGE}", StageView).rollout
            raise AssertionError(f"{rollout.why if rollout else 'there is no rollout'}\n{error}") from error
        at = next(seen.at for seen in reversed(self.watch.tables) if release in seen.weights)
        gone = next(seen.at for seen in self.watch.tables if seen.at > at and release not in seen.weights)
        self.instance.until(self._steady, timeout_s=120, what="steady again")
        return gone

    def alarm_s(self) -> float:
        """From the end of the last request of a burst, of which those on the canary are slow, to the changed weights."""
        release = self.canary("  simulated-faults: { decode: { slow-factor: 4 } }")
        time.sleep(1.5)  # the table before has been confirmed, and nothing else is going on
        asyncio.run(self._burst())
        ended = time.time()
        return self.gone_at(release) - ended

    async def _burst(self) -> None:
        body = {"model": "ds-flash", "messages": [{"role": "user", "content": "a short question"}], "max_tokens": 8, "stream": True}
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            await asyncio.gather(*(client.post(f"{self.endpoint}/v1/chat/completions", json=body) for _ in range(_BURST)))

    def click_s(self) -> float:
        """From the call to all traffic on the release before, whose units are up."""
        release = self.canary()
        time.sleep(1.5)
        began = time.time()
        self.client.post(f"stages/{STAGE}/rollback", RolloutView, {"reason": "bench"})
        return self.gone_at(release) - began


def real(rounds: int) -> dict[str, list[float]]:
    """Both journeys on real processes, so many times."""
    with tempfile.TemporaryDirectory(prefix="denv-bench-") as folder:
        Path(folder).chmod(0o755)
        bench = Bench(Path(folder))
        try:
            bench.start()
            with bench.watch.watching():
                bench.instance.until(lambda: bool(bench.watch.tables), timeout_s=10, what="the router has a table")
                return {"alarm": list(_told("alarm", bench.alarm_s, rounds)), "click": list(_told("click", bench.click_s, rounds))}
        finally:
            bench.stop()


def _told(name: str, journey: Callable[[], float], rounds: int) -> Iterator[float]:
    """So many journeys, each told when it is done; seconds."""
    for number in range(1, rounds + 1):
        took_s = journey()
        print(f"{name} {number} of {rounds}: {took_s:.2f} s", file=sys.stderr, flush=True)
        yield took_s


def main() -> None:
    """`--rounds` of each journey; `--tick` is what it calls itself with, for servers of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tick", type=int, default=0)
    options = parser.parse_args()
    if options.tick:
        setup()
        print(json.dumps(tick_s(options.tick)))
        return
    argv = [sys.executable, "-m", "tests.bench.rollouts", "--tick", "500"]
    wall_s, core_s = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    found = real(options.rounds)
    for name, what in (
        ("alarm", "last request of the evidence to the router's weights"),
        ("click", "rollback asked for to all traffic on a warm release"),
    ):
        values = found[name]
        print(f"{what:<56} median {quantile(values, 0.5):5.2f} s   p99 {quantile(values, 0.99):5.2f} s   of {len(values)}")
    print(f"{'a look at 500 rollouts, each with new figures':<56} {wall_s:5.2f} s by the clock, {core_s:5.2f} s of the reconciler's core")
    figures = {
        "alarm_to_weights_p99_s": quantile(found["alarm"], 0.99),
        "rollback_warm_p99_s": quantile(found["click"], 0.99),
        "tick_500_s": wall_s,
    }
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
