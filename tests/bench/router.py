"""The router beside vllm-router, sglang-router and smg: the same engines, the same load, one after the other.

Needs the load generator and the peers of `shared/bench/router` (beside this repository, or where DENV_ROUTER_BENCH says). They are
built and installed once, in a folder of their own under DENV_ROUTER_BENCH_CACHE or the system's folder for temporary files.
CPU time for each request and chunk is the figure to compare; on a machine with other work the rest moves with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denvweb.core import wire
from fleets.domain.protocol import ConditionalPolicy, RouteReplica, RouterTable, RouteUnit
from fleets.domain.types import Role
from metrics.domain.types import AlarmSpec
from tests.integration.router_bench import FakeControl

ROOT = Path(__file__).resolve().parents[2]
PLAIN_PORT, PREFILL_PORT, DECODE_PORT = 9001, 9003, 9004  # the engines of run_bench.py
PEERS = ("vllm-router", "sglang-router", "smg")
# Each group starts its targets anew: run_bench.py restarts the engines when their pace changes, and a router that sees that
# takes them out for a moment, as it should.
PLAIN_TESTS = (("ns32", "sreq32"), ("st8",), ("s800",))
PD_TESTS = ("ns32",)
ROUNDS = 2  # all targets in turn, so that what else the machine does falls on each of them; the best round counts
BUDGET_S = 460.0
ALARMS = (AlarmSpec("ttft-p99", "ttft", 0.01, 1.5), AlarmSpec("itl-p99", "itl", 0.01, 0.05), AlarmSpec("error-rate", "error-rate", 0.01))


@dataclass(frozen=True)
class Row:
    """One run of one test on one target."""

    target: str
    test: str
    cpu_us_per_request: float
    cpu_us_per_chunk: float
    ttft_p50_us: float
    ttft_p99_us: float
    requests_per_s: float
    chunks_per_s: float
    rss_mb: float
    errors: int


def bench_table(*, pd: bool) -> RouterTable:
    """The table that our router gets: one unit, all prefill remote where there are roles, and the usual alarms."""
    model, release = "fake-model", "fake-model@1"
    roles = ((Role.PREFILL, PREFILL_PORT), (Role.DECODE, DECODE_PORT)) if pd else ((Role.AGGREGATED, PLAIN_PORT),)
    replicas = tuple(RouteReplica(f"r-{role.value}", role, release, "127.0.0.1", port, engine_id=f"e-{role.value}") for role, port in roles)
    unit = RouteUnit("u-1", release, release, release, "c", True, False, "vllm-nixl" if pd else "none", replicas)
    return RouterTable(
        stage="fake-model/bench",
        model=model,
        epoch=1,
        generation=1,
        weights={release: 10_000},
        units=(unit,),
        conditional=ConditionalPolicy(local_prefill_below=0, prefill_queue_above=1_000_000),
        alarms=ALARMS,
    )


class Control:
    """A control plane in a thread of its own: gives the table, takes the reports and forgets them."""

    def __init__(self, table: RouterTable) -> None:
        self._table = table
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._fake = FakeControl()
        self.reports = self._fake.reports

    @property
    def url(self) -> str:
        return self._fake.url

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._fake.start(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._fake.put, self._table)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._fake.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


def found_bench() -> Path | None:
    """The folder of the load generator and the peers' set-up."""
    given = os.environ.get("DENV_ROUTER_BENCH")
    places = [Path(given)] if given else [ROOT.parent / "shared" / "bench" / "router"]
    return next((place for place in places if (place / "run_bench.py").exists()), None)


def prepared(source: Path) -> Path:
    """A copy that was built, with the peers installed; made once."""
    made = Path(os.environ.get("DENV_ROUTER_BENCH_CACHE") or Path(tempfile.gettempdir()) / f"denv-bench-router-{os.getuid()}")
    made.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file():
            shutil.copy2(file, made / file.name)
    done = subprocess.run(["bash", "setup.sh"], cwd=made, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        print(f"the set-up of the peers ended with status {done.returncode}: {(done.stderr or done.stdout)[-400:]}", flush=True)
    return made


@contextmanager
def ours(made: Path) -> Iterator[Path]:
    """Our router as two more targets of run_bench.py; gives the file that names them."""
    controls: list[Control] = []
    targets: dict[str, Any] = {}
    try:
        for name, pd in (("denv", False), ("denv-pd", True)):
            control = Control(bench_table(pd=pd))
            control.start()
            controls.append(control)
            state = made / f"state-{name}"
            state.mkdir(exist_ok=True)
            (state / "table-fake-model_bench.json").write_bytes(wire.encode(bench_table(pd=pd)))
            command = [sys.executable, "-m", "fleets.router.main", "--stage", "fake-model/bench", "--port", "7200"]
            command += ["--state-dir", str(state), "--control", control.url]
            targets[name] = [command, 7200, {"PYTHONPATH": str(ROOT)}]
        file = made / "ours.json"
        file.write_text(json.dumps(targets))
        yield file
    finally:
        for control in controls:
            control.stop()


def measured(made: Path, targets: Sequence[str], tests: Sequence[str], extra: Path, left_s: float) -> list[Row]:
    """Run the targets; what did not come to an end is left out."""
    out = made / "rows.jsonl"
    out.unlink(missing_ok=True)
    cpus = len(os.sched_getaffinity(0))
    env = {**os.environ, "EXTRA_TARGETS": str(extra), "PIN": "1" if cpus > 1 else "0"}
    command = [sys.executable, "run_bench.py", str(out), ",".join(targets), ",".join(tests), "1", "0.1"]
    raised = ["bash", "hp.sh", str(int(max(5.0, left_s)))]  # more than its neighbours' share of the machine, as far as it may
    process = subprocess.Popen([*raised, *command], cwd=made, env=env)
    try:
        process.wait(max(5.0, left_s))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)
    lines = out.read_text().splitlines() if out.exists() else []
    return [row for line in lines if (row := row_of(json.loads(line))) is not None]


def row_of(line: dict[str, Any]) -> Row | None:
    """A line of run_bench.py."""
    if "cpu_us_per_req" not in line:
        return None
    ttft = line.get("ttft_us", {})
    return Row(
        line["target"],
        line["test"],
        line["cpu_us_per_req"],
        line["cpu_us_per_chunk"],
        ttft.get("p50", 0.0),
        ttft.get("p99", 0.0),
        line["rps"],
        line["chunks_s"],
        line["rss_mb"],
        line["errors"] + line["short"],
    )


def best(rows: Sequence[Row], target: str, test: str, field: str) -> float | None:
    """The lowest value of the rounds that went without an error."""
    values = [getattr(row, field) for row in rows if row.target == target and row.test == test and not row.errors]
    return min(values, default=None)


def ratio(value: float | None, other: float | None) -> float | None:
    """Rounded; None when one of them was not measured."""
    return round(value / other, 3) if value is not None and other else None


def ttft_ratio(rows: Sequence[Row], field: str) -> float | None:
    """Ours to the best peer's, at 8 paced streams and at 800; the worse of the two."""
    found: list[float] = []
    for test in ("st8", "s800"):
        peers = [value for peer in PEERS if (value := best(rows, peer, test, field))]
        made = ratio(best(rows, "denv", test, field), min(peers, default=None))
        if made is None:
            return None
        found.append(made)
    return max(found)


def summary(rows: Sequence[Row]) -> dict[str, float | None]:
    """The figures that count."""
    memory = [row.rss_mb for row in rows if row.target.startswith("denv")]
    return {
        "plain_cpu_vs_vllm_router": ratio(
            best(rows, "denv", "ns32", "cpu_us_per_request"), best(rows, "vllm-router", "ns32", "cpu_us_per_request")
        ),
        "pd_cpu_vs_vllm_router": ratio(
            best(rows, "denv-pd", "ns32", "cpu_us_per_request"), best(rows, "vllm-router-pd", "ns32", "cpu_us_per_request")
        ),
        "chunk_cpu_vs_vllm_router": ratio(
            best(rows, "denv", "sreq32", "cpu_us_per_chunk"), best(rows, "vllm-router", "sreq32", "cpu_us_per_chunk")
        ),
        "ttft_p50_vs_best_peer": ttft_ratio(rows, "ttft_p50_us"),
        "ttft_p99_vs_best_peer": ttft_ratio(rows, "ttft_p99_us"),
        "rss_mb": max(memory, default=None),
    }


def markdown(rows: Sequence[Row]) -> str:
    """The best round of each target as a table."""
    lines = [
        "| target | test | CPU us/request | CPU us/chunk | TTFT p50 us | TTFT p99 us | requests/s | chunks/s | MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for target, test in dict.fromkeys((row.target, row.test) for row in rows):
        mine = [row for row in rows if (row.target, row.test) == (target, test)]
        lowest = [f"{best(rows, target, test, field) or 0:.1f}" for field in ("cpu_us_per_request", "cpu_us_per_chunk")]
        times = [f"{best(rows, target, test, field) or 0:.0f}" for field in ("ttft_p50_us", "ttft_p99_us")]
        rates = [f"{max(row.requests_per_s for row in mine):.0f}", f"{max(row.chunks_per_s for row in mine):.0f}"]
        lines.append("| " + " | ".join([target, test, *lowest, *times, *rates, f"{max(row.rss_mb for row in mine):.0f}"]) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print the table, and end with one JSON object."""
    source = found_bench()
    if source is None:
        print("the side-by-side is not here: set DENV_ROUTER_BENCH to the folder that has run_bench.py, setup.sh and loadgen.c")
        print(json.dumps(summary([])))
        return 1
    until_s = time.monotonic() + BUDGET_S
    made = prepared(source)
    missing = [peer for peer in PEERS if not (made / "peers" / "bin" / peer).exists()]
    if missing:
        print(f"could not be installed, and are left out: {', '.join(missing)}", flush=True)
    plain = ["denv", *(peer for peer in PEERS if peer not in missing)]
    pd = ["denv-pd", *(f"{peer}-pd" for peer in PEERS[:1] if peer not in missing)]
    rows: list[Row] = []
    with ours(made) as extra:
        for _ in range(ROUNDS):
            for tests in PLAIN_TESTS:
                rows += measured(made, plain, tests, extra, until_s - time.monotonic())
            rows += measured(made, pd, PD_TESTS, extra, until_s - time.monotonic())
    print(f"\n{machine()}\n")
    print(markdown(rows), end="\n\n", flush=True)
    print(json.dumps(summary(rows)))
    return 0


def machine() -> str:
    """When and where this was measured, and how busy it is there."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} x {cpu}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
