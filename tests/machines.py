"""Machines of a simulated fleet, as far as one machine can play them: each in a network namespace of its own, whose cable can be cut."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_CURE = (
    "a node's network is cut here, which takes a network namespace: "
    "run this as root (or with CAP_NET_ADMIN and CAP_SYS_ADMIN), with iproute2"
)


class NoNamespaceError(AssertionError):
    """This machine cannot make a network namespace."""


def _ip(*words: str) -> str:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoNamespaceError(f"there is no `ip` command; {_CURE}") from None
    if done.returncode:
        raise NoNamespaceError(f"`ip {' '.join(words)}` says: {done.stderr.strip()}; {_CURE}")
    return done.stdout


@dataclass
class Machine:
    """One node: a namespace, the agent in it, and the cable to the rest (a veth pair, 10.x.y.1 here and 10.x.y.2 there)."""

    number: int  # of all machines of this process, 1 to 4
    name: str = ""
    process: subprocess.Popen[bytes] | None = None
    tag: str = field(default_factory=lambda: f"dv{os.getpid() % 100_000}")

    @property
    def net(self) -> str:
        """The namespace."""
        return f"{self.tag}n{self.number}"

    @property
    def gateway(self) -> str:
        """This side's address."""
        return self._address(1)

    @property
    def address(self) -> str:
        """The machine's address."""
        return self._address(2)

    def _address(self, last: int) -> str:
        block = os.getpid() % 6400  # of 4 networks each, so that several processes of tests do not meet
        return f"10.{128 + block // 64}.{block % 64 * 4 + self.number - 1}.{last}"

    def plug_in(self) -> None:
        """Make the namespace and its cable."""
        _ip("netns", "add", self.net)
        _ip("link", "add", f"{self.net}a", "type", "veth", "peer", "name", "eth0", "netns", self.net)
        _ip("addr", "add", f"{self.gateway}/30", "dev", f"{self.net}a")
        _ip("link", "set", f"{self.net}a", "up")
        _ip("-n", self.net, "addr", "add", f"{self.address}/30", "dev", "eth0")
        _ip("-n", self.net, "link", "set", "lo", "up")
        self.heal()

    def cut(self) -> None:
        """The cable is out: nothing is refused, nothing arrives."""
        _ip("-n", self.net, "link", "set", "eth0", "down")

    def heal(self) -> None:
        """The cable is in again."""
        _ip("-n", self.net, "link", "set", "eth0", "up")

    def start(self, argv: list[str], env: dict[str, str], log: Path) -> None:
        """Run a program there."""
        with log.open("ab") as out:
            words = ["ip", "netns", "exec", self.net, *argv]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True)

    def kill_agent(self) -> None:
        """kill -9 of the agent alone; `ip netns exec` has become it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def processes(self) -> list[psutil.Process]:
        """All that runs there."""
        pids = _ip("netns", "pids", self.net).split()
        return [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]

    def scrap(self) -> None:
        """End what runs there, and take the machine apart."""
        if self.net not in _ip("netns", "list").split():
            return
        for process in self.processes():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        if self.process is not None:
            self.process.wait()
        _ip("netns", "del", self.net)


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """So many, plugged in; they are gone afterwards."""
    found = [Machine(number) for number in range(1, count + 1)]
    try:
        for machine in found:
            machine.plug_in()
        yield found
    finally:
        for machine in found:
            machine.scrap()


class Bridge:
    """Carries TCP from the machines' side of each cable to a port of this machine's loopback, where the web process listens."""

    def __init__(self, found: list[Machine], port: int) -> None:
        self._hosts = [machine.gateway for machine in found]
        self.port = port
        self._over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._listens = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._broken = False

    @contextmanager
    def carrying(self) -> Iterator[Bridge]:
        """Carries while the block runs."""
        thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        thread.start()
        try:
            assert self._listens.wait(5)
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            thread.join()
            self._loop.close()

    async def _run(self) -> None:
        servers = [await asyncio.start_server(self._carry, host, self.port) for host in self._hosts]
        self._listens.set()
        await self._over.wait()
        for server in servers:
            server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()), return_exceptions=True)

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Carries nothing while the block runs: what is open ends, what is new is cut off."""
        self._loop.call_soon_threadsafe(self._break)
        try:
            yield
        finally:
            self._broken = False

    def _break(self) -> None:
        self._broken = True
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._broken:
            writer.transport.abort()
            return
        try:
            there, to = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, to}
        self._writers |= pair
        await asyncio.gather(_pump(reader, to), _pump(there, writer))
        self._writers -= pair


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def agent_argv(
    machine: Machine, *, fleet: str, nodes: int, gpus: int, port: int, port_base: int, token: str, state: Path, more: Sequence[str] = ()
) -> list[str]:
    """The agent of one node of a simulated fleet, on its machine."""
    suffix = f"d01-n{machine.number:02d}"
    machine.name = f"{fleet}-{suffix}"
    simulated = f"fleet={fleet},kind=GB200,domains=1,nodes={nodes},gpus={gpus},span,only={suffix}"
    argv = [sys.executable, "-m", "fleets.agent.main", "--control", f"http://{machine.gateway}:{port}", "--token", token]
    return [*argv, "--state-dir", str(state), "--simulated", simulated, "--host", machine.address, "--port-base", str(port_base), *more]
