"""Goodput beside the peers: requests that meet TTFT and ITL limits, through each router, on the same simulated engines and trace.

Every router gets the same requests at the same times, at shares of what the engines get through in a closed loop. They run at the same
moment, each in a world of its own (`goodput_worlds`), so ratios are of one run. `--loads` takes a part of the loads, and `--rows` keeps
what was measured, so that a run can be made in pieces; the table and the picture are of all rows there.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import msgspec

from denvweb.cli.replay.prompts import prompt_of
from denvweb.cli.replay.report import Tally
from denvweb.cli.replay.sender import Replay, Target, request_bytes
from denvweb.cli.replay.trace import TraceRequest, read_trace
from fleets.domain.types import Role
from tests.bench.goodput_plot import Line, plot
from tests.bench.goodput_worlds import MODEL, NIXL, OURS, PEERS, Engine, engines, world
from tests.bench.router import ROOT, found_bench, machine, prepared
from tests.integration.engine_peers import KEEP

TRACE = ROOT / "denvweb" / "local" / "data" / "mooncake_conversation.jsonl"
LOADS = (0.5, 0.7, 0.9, 1.0, 1.1, 1.3)
TTFT_LIMIT_S, ITL_LIMIT_S = 4.0, 0.05
LONGEST_TOKENS, ANSWER_TOKENS = 32_768, 512  # longer prompts keep a core busy for longer than a step takes; longer answers are cut
WINDOW_S, TAIL_S = 65.0, 45.0  # requests begin in the window; what is not over at the end of the tail has missed its limits
CLOSED_CLIENTS, CLOSED_S, CLOSED_WARM_S = 48, 40.0, 12.0


@dataclass(frozen=True, slots=True)
class Row:
    """One router at one load."""

    router: str
    load: float
    offered_per_s: float
    sent: int
    good: int
    completed: int
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p99_s: float  # of the requests' means
    cpus_busy: float  # of the machine, while all routers ran
    late_s: float  # how far the client fell behind its schedule
    failures: dict[str, int]

    @property
    def share(self) -> float:
        """Of all requests that were sent, those that met both limits."""
        return self.good / self.sent


def requests_of(count: int, rate_per_s: float) -> list[TraceRequest]:
    """The trace's first requests that are not too long, their gaps stretched alike to the rate."""
    found = [one for one in read_trace(TRACE) if one.input_tokens <= LONGEST_TOKENS][:count]
    if len(found) < count:
        raise SystemExit(f"the trace has only {len(found)} requests of up to {LONGEST_TOKENS} tokens, and {count} are needed")
    factor = (count - 1) / (found[-1].at_s - found[0].at_s) / rate_per_s
    return [replace(one, at_s=(one.at_s - found[0].at_s) * factor, output_tokens=min(ANSWER_TOKENS, one.output_tokens)) for one in found]


# -- what the engines get through --


async def capacity() -> float:
    """Requests a second that the engines complete without a router: prefill and decode by turns, all clients busy all the time."""
    turn, done_at = itertools.count(), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        async with engines(NIXL, Path(folder)) as made, httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as client:
            sides = [[engine for engine in made if engine.role is role] for role in (Role.PREFILL, Role.DECODE)]
            requests = itertools.cycle(requests_of(600, 1.0))

            async def ask_on() -> None:
                while True:
                    at = next(turn)
                    prefill, decode = (side[at % len(side)] for side in sides)
                    await _handed_over(client, prefill, decode, next(requests))
                    done_at.append(time.monotonic())

            start_s = time.monotonic()
            clients = [asyncio.create_task(ask_on()) for _ in range(CLOSED_CLIENTS)]
            await asyncio.wait(clients, timeout=CLOSED_S, return_when=asyncio.FIRST_EXCEPTION)
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
    counted = [at for at in done_at if at - start_s >= CLOSED_WARM_S]
    return len(counted) / (CLOSED_S - CLOSED_WARM_S)


async def _handed_over(client: httpx.AsyncClient, prefill: Engine, decode: Engine, request: TraceRequest) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": prompt_of(request), "ignore_eos": True}
    kept = await client.post(f"{prefill.url}/v1/completions", json=body | {"max_tokens": 1, "kv_transfer_params": KEEP})
    kv = kept.raise_for_status().json()["kv_transfer_params"]
    answer = await client.post(f"{decode.url}/v1/completions", json=body | {"max_tokens": request.output_tokens, "kv_transfer_params": kv})
    answer.raise_for_status()


# -- what comes through a router --


async def played(url: str, requests: Sequence[TraceRequest], start_s: float) -> tuple[list[Tally], float]:
    """Send all on time, wait for the tail; a tally of each, and how late the latest was sent."""
    target, tallies, tasks, late_s = Target(url, MODEL, chat=False), list[Tally](), list[asyncio.Task[None]](), 0.0
    for request in requests:
        payload = request_bytes(target, request)
        await asyncio.sleep(max(0.0, start_s + request.at_s - time.perf_counter()))
        late_s = max(late_s, time.perf_counter() - start_s - request.at_s)
        tallies.append(Tally())
        tasks.append(asyncio.create_task(Replay(target, tallies[-1]).send(payload)))
    _, left = await asyncio.wait(tasks, timeout=max(0.1, start_s + requests[-1].at_s + TAIL_S - time.perf_counter()))
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return tallies, late_s


def itl_s(tally: Tally) -> float:
    """Mean time between the tokens of one answer; 0 for an answer of one token."""
    return (tally.e2e.sum - tally.ttft.sum) / (tally.output_tokens - 1) if tally.output_tokens > 1 else 0.0


def met(tally: Tally) -> bool:
    """Whether the request was answered within both limits."""
    return tally.done == 1 and tally.ttft.sum <= TTFT_LIMIT_S and itl_s(tally) <= ITL_LIMIT_S


def row_of(router: str, load: float, rate: float, tallies: Sequence[Tally], late_s: float, busy: float) -> Row:
    """All requests of one router at one load."""
    done = [tally for tally in tallies if tally.done]
    ttfts = sorted(tally.ttft.sum if tally.ttft.count else math.inf for tally in tallies)
    failures: dict[str, int] = {}
    for reason, count in (item for tally in tallies for item in tally.failures.items()):
        failures[reason] = failures.get(reason, 0) + count
    return Row(
        router, load, round(rate, 3), len(tallies), sum(map(met, tallies)), len(done),
        _at(ttfts, 0.5), _at(ttfts, 0.99), _at(sorted(map(itl_s, done)), 0.99), round(busy, 2), round(late_s, 3), failures,
    )  # fmt: skip


def _at(values: Sequence[float], q: float) -> float:
    """The quantile; a minute for what has not come."""
    found = values[min(len(values) - 1, int(q * len(values)))] if values else math.inf
    return round(min(60.0, found), 4)


async def at_load(names: Sequence[str], load: float, per_s: float, seconds: float, programs: Path) -> list[Row]:
    """Every router at one load, all at the same moment."""
    rate = load * per_s
    requests = requests_of(round(rate * seconds), rate)
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(world(name, programs, Path(folder) / name)) for name in names]
            start_s, before = time.perf_counter() + 1.0, _busy_s()
            results = await asyncio.gather(*(played(url, requests, start_s) for url in urls))
            busy = (_busy_s() - before) / (time.perf_counter() - start_s)
    return [row_of(name, load, rate, tallies, late_s, busy) for name, (tallies, late_s) in zip(names, results, strict=True)]


def _busy_s() -> float:
    """CPU seconds that the whole machine has spent."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return (sum(map(int, words)) - int(words[3]) - int(words[4])) / os.sysconf("SC_CLK_TCK")


# -- what is said of it --


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Ours to the best peer's, by load."""
    found: dict[str, float] = {}
    for load in sorted({row.load for row in rows}):
        good = {row.router: row.share for row in rows if row.load == load}
        best = max((share for name, share in good.items() if name != OURS), default=0.0)
        if OURS in good and best:
            found[f"{load:g}"] = round(good[OURS] / best, 3)
    return found


def markdown(rows: Sequence[Row]) -> str:
    """A line for each router at each load."""
    lines = [
        "| load | requests/s | router | met both limits | completed | TTFT p50 s | TTFT p99 s | ITL p99 ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row.load:g} | {row.offered_per_s:.2f} | {row.router} | {row.share:.1%} ({row.good} of {row.sent}) | {row.completed} "
        f"| {row.ttft_p50_s:.2f} | {row.ttft_p99_s:.2f} | {row.itl_p99_s * 1000:.1f} |"
        for row in sorted(rows, key=lambda row: row.load)
    ]
    return "\n".join(lines)


def lines_of(rows: Sequence[Row]) -> Iterator[Line]:
    """Goodput over load, for the picture."""
    for name in dict.fromkeys(row.router for row in rows):
        points = sorted((row.load, row.good / row.sent * row.offered_per_s) for row in rows if row.router == name)
        yield Line(name, tuple(points), main=name == OURS)


def read_rows(path: Path) -> list[Row]:
    """What earlier pieces of this run measured."""
    return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()] if path.exists() else []


def flags() -> argparse.Namespace:
    """The command's flags."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="shares of the engines' capacity; empty: only draw")
    parser.add_argument("--capacity", type=float, help="requests a second, as an earlier piece found; it is measured otherwise")
    parser.add_argument("--seconds", type=float, default=WINDOW_S, help="how long requests begin, at each load")
    parser.add_argument("--routers", default=",".join((OURS, *PEERS)))
    parser.add_argument("--rows", type=Path, help="file that keeps the rows of all pieces")
    parser.add_argument("--picture", type=Path, help="SVG to write")
    return parser.parse_args()


async def measure(given: argparse.Namespace) -> list[Row]:
    """Rows of the loads that are asked for; each is told when it is there."""
    loads = [float(word) for word in given.loads.split(",") if word]
    if not loads:
        return []
    source = found_bench()
    programs = prepared(source) / "peers" / "bin" if source else Path("nowhere")
    names = [name for name in given.routers.split(",") if name == OURS or (programs / name).exists()]
    missing = set(given.routers.split(",")) - set(names)
    if missing:
        print(f"could not be installed, and are left out: {', '.join(sorted(missing))}", flush=True)
    per_s = given.capacity or await capacity()
    print(f"the engines complete {per_s:.2f} requests/s in a closed loop of {CLOSED_CLIENTS}", flush=True)
    rows: list[Row] = []
    for load in loads:
        made = await at_load(names, load, per_s, given.seconds, programs)
        rows += made
        print(json.dumps({row.router: round(row.share, 3) for row in made} | {"load": load, "cpus": made[0].cpus_busy}), flush=True)
        for row in made:
            if row.failures:
                print(f"  {row.router}: {row.failures}", flush=True)
    return rows


def main() -> int:
    """Measure, print the table, and end with one JSON object."""
    given = flags()
    fresh = asyncio.run(measure(given))
    kept = read_rows(given.rows) if given.rows else []
    taken = {(row.router, row.load) for row in fresh}
    rows = sorted([*(row for row in kept if (row.router, row.load) not in taken), *fresh], key=lambda row: row.load)
    if given.rows:
        given.rows.parent.mkdir(parents=True, exist_ok=True)
        given.rows.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    if given.picture and rows:
        given.picture.write_text(plot(tuple(lines_of(rows)), x="offered load / capacity of the engines", y="requests/s within both limits"))
    print(f"\n{machine()}\n")
    print(markdown(rows), end="\n\n")
    found = ratios(rows)
    print(json.dumps({"goodput_vs_best_peer": found, "goodput_vs_best_peer_min": min(found.values(), default=None)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
