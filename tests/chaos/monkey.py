"""Breaks things at random, by a seed: kill -9, SIGSTOP for some seconds, cut database connections, an emptied Valkey."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil
import psycopg
import redis

from tests.e2e.instance import Instance

PROGRAMS = ("worker", "beat", "web", "valkey", "postgres", "agent-gb200-use1", "router-ds-flash-prod-us")
ROUTER = "router-ds-flash-prod-us"
ENGINES = ("--role=decode", "--role=prefill", "follower.py")
LONGEST_PAUSE_S = 6.0
ENGINE_EVERY_S = 20.0  # a gang of 16 takes its time to form again


@dataclass(frozen=True, slots=True)
class Injury:
    """One thing that was done. `serves`: requests may fail by it, because it is a router or an engine."""

    at: float  # seconds since the epoch
    act: str  # `kill`, `pause`, `cut`, `empty`
    what: str
    serves: bool
    lasted_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.act} {self.what}" + (f" for {self.lasted_s:.1f} s" if self.lasted_s else "")


@dataclass
class Monkey:
    """A thread that injures an instance until it is told to stop; everything that it stopped then goes on."""

    instance: Instance
    rng: random.Random
    mean_gap_s: float = 3.0
    injuries: list[Injury] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _engine_at: float = 0.0

    @contextmanager
    def loose(self) -> Iterator[None]:
        """Injures while the block runs."""
        thread = threading.Thread(target=self._run, name="monkey")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _run(self) -> None:
        acts: list[tuple[float, Callable[[], Injury | None]]] = [
            (5, self._kill_program),
            (3, self._pause_program),
            (2, self._kill_engine),
            (1, self._pause_engine),
            (2, self._cut_connections),
            (1, self._empty_valkey),
        ]
        while not self._over.wait(self.rng.uniform(0.3, 2 * self.mean_gap_s)):
            act = self.rng.choices([act for _, act in acts], [weight for weight, _ in acts])[0]
            try:
                injury = act()
            except (OSError, psutil.Error, psycopg.Error, redis.RedisError, ValueError, KeyError):
                continue  # it was not there, or was being started
            if injury is not None:
                self.injuries.append(injury)

    def _program(self) -> tuple[str, int]:
        name = self.rng.choice(PROGRAMS)
        return name, self.instance.pids()[name]

    def _kill_program(self) -> Injury:
        name, pid = self._program()
        at = time.time()
        os.kill(pid, signal.SIGKILL)
        return Injury(at, "kill", name, serves=name == ROUTER)

    def _pause_program(self) -> Injury:
        name, pid = self._program()
        return self._pause(psutil.Process(pid), name, serves=name == ROUTER)

    def _pause(self, process: psutil.Process, name: str, *, serves: bool) -> Injury:
        began, wanted_s = time.time(), self.rng.uniform(0.5, LONGEST_PAUSE_S)
        process.suspend()
        try:
            self._over.wait(wanted_s)
        finally:
            process.resume()
        return Injury(began, "pause", name, serves, time.time() - began)

    def _engine(self) -> tuple[str, psutil.Process] | None:
        if time.time() - self._engine_at < ENGINE_EVERY_S:
            return None
        self._engine_at = time.time()
        kind = self.rng.choice(ENGINES)
        found = sorted(self.instance.engines(kind=kind), key=lambda process: process.pid)
        return (f"engine {kind}", self.rng.choice(found)) if found else None

    def _kill_engine(self) -> Injury | None:
        if (found := self._engine()) is None:
            return None
        at = time.time()
        found[1].kill()
        return Injury(at, "kill", found[0], serves=True)

    def _pause_engine(self) -> Injury | None:
        if (found := self._engine()) is None:
            return None
        return self._pause(found[1], found[0], serves=True)

    def _cut_connections(self) -> Injury:
        at = time.time()
        with psycopg.connect(database_url(self.instance), autocommit=True, connect_timeout=2) as connection:
            others = "FROM pg_stat_activity WHERE datname = 'denv' AND pid <> pg_backend_pid()"
            connection.execute(f"SELECT pg_terminate_backend(pid) {others} AND random() < %s", [self.rng.choice((0.3, 1.0))])
        return Injury(at, "cut", "database connections", serves=False)

    def _empty_valkey(self) -> Injury:
        at = time.time()
        with redis.Redis.from_url(environment_of(self.instance)["REDIS_URL"], socket_timeout=2, socket_connect_timeout=2) as client:
            client.flushall()
        return Injury(at, "empty", "valkey", serves=False)


def database_url(instance: Instance) -> str:
    """The instance's own PostgreSQL."""
    return environment_of(instance)["DATABASE_URL"]


def environment_of(instance: Instance) -> dict[str, str]:
    """What the instance's programs are started with; of the worker, which is killed and started as any other."""
    return psutil.Process(instance.pids()["worker"]).environ()
