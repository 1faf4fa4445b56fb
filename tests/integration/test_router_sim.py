"""The router in front of real simulated engines: their text depends on the KV that really moved."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fleets.domain.protocol import RouteReplica, RouterTable, RouteUnit
from fleets.domain.types import Role
from metrics.domain.types import Metric
from tests.integration.engine_support import free_base, until_healthy
from tests.integration.router_bench import MODEL, Answer, Bench, chat, message, router, table


@dataclass(frozen=True)
class Sim:
    """A simulated engine's process."""

    role: Role
    port: int
    process: asyncio.subprocess.Process


def _free_bases(count: int) -> list[int]:
    """First ports of runs of three that nobody has, and that are apart from each other."""
    found: list[int] = []
    while len(found) < count:
        base = free_base()
        if all(abs(base - other) >= 3 for other in found):
            found.append(base)
    return found


@asynccontextmanager
async def _sims(*roles: Role, protocol: str = "vllm-nixl") -> AsyncIterator[list[Sim]]:
    made: list[Sim] = []
    try:
        for role, port in zip(roles, _free_bases(len(roles)), strict=True):
            flags = [
                "--port",
                str(port),
                "--role",
                role.value,
                "--protocol",
                protocol,
                "--model",
                MODEL,
                "--speed",
                "4",
                "--replica",
                f"r-{port}",
                "--engine-id",
                f"e-{port}",
            ]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fleets.engines.sim", *flags, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
            )
            made.append(Sim(role, port, process))
        for sim in made:
            await until_healthy(sim.port)
        yield made
    finally:
        for sim in made:
            if sim.process.returncode is None:
                sim.process.kill()
            await sim.process.wait()


def _table(sims: Sequence[Sim], generation: int = 1, handover: str = "vllm-nixl") -> RouterTable:
    replicas = tuple(
        RouteReplica(f"r-{sim.port}", sim.role, "ds-flash@1", "127.0.0.1", sim.port, engine_id=f"e-{sim.port}") for sim in sims
    )
    protocol = "none" if sims[0].role is Role.AGGREGATED else handover
    unit = RouteUnit(f"u-{sims[0].port}", "ds-flash@1", "ds-flash@1", "ds-flash@1", "c", True, True, protocol, replicas)
    return table(unit, generation=generation)


async def test_remote_local_and_aggregated_give_the_same_text_and_gaps_agree_with_the_client(tmp_path: Path) -> None:
    async with _sims(Role.PREFILL, Role.DECODE, Role.AGGREGATED) as (prefill, decode, whole), router(tmp_path, _table([whole])) as bench:
        text = "the quick brown fox jumps over the lazy dog " * 200
        body = chat(text, stream=False, max_tokens=24, temperature=0)
        aggregated = (await bench.ask(body)).json
        bench.app.table.take(_table([prefill, decode], generation=2))
        remote = (await bench.ask(body)).json
        cached = (await bench.ask(body)).json
        texts = {answer["choices"][0]["message"]["content"] for answer in (aggregated, remote, cached)}
        assert len(texts) == 1 and aggregated["usage"]["completion_tokens"] == 24
        counters = bench.counters()
        assert counters["reason.aggregated"] >= 1 and counters["reason.remote"] >= 1 and counters["reason.cached"] == 1
        assert "kv.failed" not in counters and "kv.recomputed" not in counters and "errors" not in counters

        differences = [1.0]
        while min(differences) >= 0.03 and len(differences) < 9:  # a machine that stalls between the two reads is no fault of either
            differences.append(await _gap_difference(bench, f"fresh {len(differences)} {text}"))
        assert min(differences) < 0.03, differences


async def _gap_difference(bench: Bench, text: str) -> float:
    """By how much the mean gap of one stream that the router counted is off what its client saw."""
    bench.deltas()
    raw = await bench.connect()
    raw.writer.write(message(chat(text, max_tokens=120)))
    gaps: list[float] = []
    last_s = 0.0
    while b"[DONE]" not in (data := await raw.reader.read(65536)):
        if b'"content":"' in data and b'"content":""' not in data:
            now_s = time.perf_counter()
            if last_s:
                gaps.append(now_s - last_s)
            last_s = now_s
    while bench.app.stage.inflight:  # the last gaps are counted when the request ends
        await asyncio.sleep(0)
    users = [delta for delta in bench.deltas() if not delta.key.probe]
    histogram = users[0].histograms[Metric.ITL]
    assert histogram.count > 50
    mean_s = sum(gaps) / len(gaps)
    return abs(histogram.sum / histogram.count - mean_s) / mean_s


async def test_probe_through_simulated_engines(tmp_path: Path) -> None:
    async with _sims(Role.PREFILL, Role.DECODE) as sims, router(tmp_path, _table(sims)) as bench:
        result = await bench.app.prober.probe(bench.app.stage.units[f"u-{sims[0].port}"])
        assert result.ok, result.detail
        assert set(result.engines) == {f"e-{sim.port}" for sim in sims}
        sims[0].process.kill()
        await sims[0].process.wait()
        result = await bench.app.prober.probe(bench.app.stage.units[f"u-{sims[0].port}"])
        assert not result.ok and f"r-{sims[0].port}" in result.detail
        assert json.loads((await bench.ask(chat("x " * 3000, stream=False))).body)["choices"]  # decode does it alone
        assert bench.counters()["reason.no-prefill"] == 1


async def test_sglangs_legs_meet_in_their_room(tmp_path: Path) -> None:
    """Both are sent at once; short prompts go the same way, for a decode does nothing alone. The text shows that the KV moved."""
    protocol = "sglang-bootstrap"
    async with (
        _sims(Role.PREFILL, Role.DECODE, Role.AGGREGATED, protocol=protocol) as (prefill, decode, whole),
        router(tmp_path, _table([whole])) as bench,
    ):
        bodies = [chat("the quick brown fox " * words, stream=stream, max_tokens=24) for words in (4, 900) for stream in (False, True)]
        alone = [await bench.ask(body) for body in bodies]
        bench.deltas()
        bench.app.apply(_table([prefill, decode], generation=2, handover=protocol))
        together = [await bench.ask(body) for body in bodies]
        assert [answer.status for answer in together] == [200] * 4
        for one, two in zip(alone, together, strict=True):
            assert _words(one) == _words(two) != ""
        batch = {"model": MODEL, "prompt": ["one two", "three four"], "max_tokens": 5}
        answer = await bench.ask(batch, path="/v1/completions")
        assert len({choice["text"] for choice in answer.json["choices"]}) == 2
        counters = bench.counters()
        assert counters["reason.remote"] >= 5 and "errors" not in counters and "kv.failed" not in counters
        result = await bench.app.prober.probe(bench.app.stage.units[f"u-{prefill.port}"])
        assert result.ok and set(result.engines) == {f"e-{prefill.port}", f"e-{decode.port}"}, result
        prefill.process.kill()
        await prefill.process.wait()
        refused = await bench.ask(bodies[0])
        assert refused.status in (502, 503)
        await _until_idle(bench)
        assert bench.app.stage.inflight == {} and bench.app.stage.replicas[f"r-{decode.port}"].running == 0


def _words(answer: Answer) -> str:
    if answer.headers["content-type"].startswith("text/event-stream"):
        return answer.text
    content: str = answer.json["choices"][0]["message"]["content"]
    return content


async def _until_idle(bench: Bench) -> None:
    async with asyncio.timeout(5):
        while bench.app.pipeline.jobs or bench.app.stage.inflight:
            await asyncio.sleep(0.01)
