"""The router and the control plane: tables, reports, probes, and life without it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fleets.domain.protocol import RouterReport, RouterTable
from fleets.router.table import TableKeeper
from metrics.domain.types import AlarmSpec
from tests.integration.fake_engine import WORDS, engines
from tests.integration.router_bench import STAGE, FakeControl, chat, control_plane, message, pd_unit, plain_unit, router, table


async def _until(control: FakeControl, true: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not true():
            control.reported.clear()
            await control.reported.wait()


async def test_table_is_followed_confirmed_and_kept(tmp_path: Path) -> None:
    async with control_plane() as control, engines("a") as (a,), router(tmp_path, control=control.url, report_every_s=0.02) as bench:
        await _until(control, lambda: len(control.reports) > 0)
        assert control.reports[-1].table_generation == 0
        control.put(table(plain_unit([a]), generation=4))
        await _until(control, lambda: control.reports[-1].table_generation == 4)
        assert control.reports[-1].url == bench.app.url and control.reports[-1].router == "router-1"
        assert (await bench.ask(chat())).status == 200
        control.down = True
        assert (await bench.ask(chat())).status == 200
    async with engines("a") as (_,), router(tmp_path) as again:  # the control plane is gone: the table of the disk serves
        assert again.app.table.generation == 4


async def test_older_tables_and_those_of_others_are_refused(tmp_path: Path) -> None:
    taken: list[RouterTable] = []
    keeper = TableKeeper(stage=STAGE, path=tmp_path / "x" / "table.json", apply=taken.append)
    async with engines("a") as (a,):
        new = table(plain_unit([a]), generation=5)
    assert keeper.take(new)
    assert not keeper.take(replace(new, generation=4)) and not keeper.take(new)
    assert not keeper.take(replace(new, epoch=0, generation=9)) and not keeper.take(replace(new, stage="other/one", generation=9))
    assert keeper.take(replace(new, epoch=2, generation=1))
    assert [held.generation for held in taken] == [5, 1]
    again = TableKeeper(stage=STAGE, path=tmp_path / "x" / "table.json", apply=taken.append)
    assert again.load() and again.current == keeper.current
    (tmp_path / "x" / "table.json").write_text("{half")
    assert not TableKeeper(stage=STAGE, path=tmp_path / "x" / "table.json", apply=taken.append).load()


async def test_swap_drops_nothing_in_flight(tmp_path: Path) -> None:
    async with engines("a", "b") as (a, b), router(tmp_path, table(plain_unit([a], unit="u-a"))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat("DPAUSE")))
        await raw.reader.readuntil(b" three")
        bench.app.table.take(table(plain_unit([b], unit="u-b", release="ds-flash@2"), generation=2))
        assert (await bench.ask(chat())).status == 200 and len(b.posts) == 1
        assert bench.app.stage.inflight == {"ds-flash@1": 1}
        a.release.set()
        rest = await raw.reader.readuntil(b"0\r\n\r\n")
        assert b"[DONE]" in rest and bench.app.stage.inflight == {}
        assert bench.counters()["requests"] == 2


async def test_every_request_is_reported_once_though_acks_are_lost(tmp_path: Path) -> None:
    alarms = [AlarmSpec("error-rate", "error-rate", 0.01)]
    async with control_plane() as control, engines("a") as (a,):
        control.put(table(plain_unit([a]), generation=1, alarms=alarms))
        async with router(tmp_path, control=control.url, report_every_s=0.01) as bench:
            await _until(control, lambda: bool(control.reports) and control.reports[-1].table_generation == 1)
            control.lose_acks = 2
            for _ in range(5):
                await bench.ask(chat())
            control.down = True
            for _ in range(5):
                await bench.ask(chat("D500"))
            control.down = False
        by_seq: dict[int, RouterReport] = {}
        for report in control.reports:
            assert by_seq.setdefault(report.seq, report) == report  # the same number, the same content
        assert len({report.boot for report in control.reports}) == 1
        counters: dict[str, int] = {}
        evidence = 0
        for report in by_seq.values():
            for delta in report.series:
                for name, count in delta.counters.items():
                    counters[name] = counters.get(name, 0) + count
                evidence += delta.alarms["error-rate"].n if delta.alarms else 0
        assert counters["requests"] == evidence == 10 and counters["errors.decode"] == 5
        assert counters["tokens.out"] == 5 * len(WORDS)


async def test_unit_is_probed_end_to_end_and_never_in_users_figures(tmp_path: Path) -> None:
    async with control_plane() as control, engines("p", "q", "d") as (p, q, d):
        unit = pd_unit([p, q], [d], routable=False, probe=True)
        control.put(table(unit, weights={}))
        async with router(tmp_path, control=control.url, report_every_s=0.02) as bench:
            await _until(control, lambda: any(report.probes for report in control.reports))
            (probe,) = next(report.probes for report in control.reports if report.probes)
            assert probe.ok and probe.unit == "u-1" and set(probe.engines) == {"e-p", "e-q", "e-d"}
            assert len(p.posts) == len(q.posts) == 1 and len(d.posts) == 2
            assert d.posts[0].kv["remote_engine_id"] == "p"
            await _until(control, lambda: any(report.series for report in control.reports))
            assert all(delta.key.probe for report in control.reports for delta in report.series)
            assert (await bench.ask(chat())).status == 503


async def test_failing_probe_says_why_and_is_repeated(tmp_path: Path) -> None:
    async with control_plane() as control, engines("p", "d") as (p, d):
        await p.stop()
        control.put(table(pd_unit([p], [d], routable=False, probe=True), weights={}))
        async with router(tmp_path, control=control.url, report_every_s=0.02):
            await _until(control, lambda: sum(len(report.probes) for report in control.reports) >= 2)
            probes = [probe for report in control.reports for probe in report.probes]
            assert not any(probe.ok for probe in probes) and "takes no connection" in probes[0].detail and "r-p" in probes[0].detail


async def test_process_drains_on_sigterm_and_ignores_sighup(tmp_path: Path) -> None:
    async with control_plane() as control, engines("a") as (a,):
        control.put(table(plain_unit([a]), generation=3))
        (tmp_path / "token").write_text("router-x.secret")
        flags = [
            "--stage",
            STAGE,
            "--port",
            "0",
            "--control",
            control.url,
            "--token-file",
            str(tmp_path / "token"),
            "--state-dir",
            str(tmp_path),
        ]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fleets.router.main", *flags, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await _until(control, lambda: bool(control.reports) and control.reports[-1].table_generation == 3)
            host, port = control.reports[-1].url.removeprefix("http://").split(":")
            os.kill(process.pid, signal.SIGHUP)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(message(chat("DPAUSE")))
            await reader.readuntil(b" three")
            process.terminate()
            await asyncio.sleep(0.1)
            a.release.set()
            assert b"[DONE]" in await reader.read()
            assert await asyncio.wait_for(process.wait(), 5) == 0
        finally:
            if process.returncode is None:
                process.kill()
        assert sum(delta.counters.get("requests", 0) for report in control.reports for delta in report.series) == 1


async def test_processes_share_a_port_report_by_name_and_come_back(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with control_plane() as control, engines("a") as (a,):
        control.put(table(plain_unit([a]), generation=3))
        flags = ["--stage", STAGE, "--port", str(port), "--control", control.url, "--state-dir", str(tmp_path), "--processes", "2"]
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fleets.router.main", *flags, "--name", "edge", stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await _until(control, lambda: {f"edge-{index}" for index in range(2)} <= _confirmed(control, 3))
            for _ in range(8):  # the kernel gives each connection to one of the two
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(message(chat(stream=False)))
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
                writer.close()
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            assert len(children) == 2
            boots = {report.boot for report in control.reports}
            os.kill(int(children[0]), signal.SIGKILL)
            await _until(control, lambda: len({report.boot for report in control.reports}) > len(boots))
            parent.terminate()
            assert await asyncio.wait_for(parent.wait(), 10) == 0
        finally:
            if parent.returncode is None:
                parent.kill()


def _confirmed(control: FakeControl, generation: int) -> set[str]:
    return {report.router for report in control.reports if report.table_generation == generation}
