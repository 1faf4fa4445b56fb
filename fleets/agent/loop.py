"""One node's loop: sync -> diff -> act -> report. A process that stands for many nodes runs one of these for each."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from denvweb.core.backoff import Backoff
from denvweb.core.errors import DenvError, ForbiddenError, UnavailableError
from fleets.agent import state
from fleets.agent.gpus.base import GpuDriver
from fleets.agent.keeper import EngineTools, RankKeeper
from fleets.agent.link import ControlLink
from fleets.agent.processes import Marked
from fleets.agent.state import NodeState
from fleets.agent.tails import LogTails
from fleets.agent.threads import in_daemon_thread
from fleets.domain.protocol import AgentReport, GpuReport, NodeFacts, NodeSnapshot

log = logging.getLogger(__name__)

# Called with a node and its credential that was refused: True when it has another one now.
Rejoin = Callable[["NodeLoop", str], Awaitable[bool]]

_COALESCE_S = 0.1  # changes and pokes that come together are one sync
_GPUS_WAIT_S = 1.0  # a sync waits for its GPUs at most so long: a driver that hangs must not make the node look lost
_GPUS_HUNG_S = 60.0  # a look that takes longer is told as the GPUs' trouble
_FIRST_SYNC_EVERY_S = 4.0  # until a snapshot says otherwise
_SYNC_BACKOFF = Backoff(first_s=0.5, cap_s=8.0)


class NodeLoop:
    """Makes one node run what its snapshot says."""

    def __init__(
        self, facts: NodeFacts, driver: GpuDriver, kept: NodeState, *, boot: str, link: ControlLink, tools: EngineTools, rejoin: Rejoin
    ) -> None:
        self.facts = facts
        self.failures_total = 0  # errors that only the guard at the top of a loop caught
        self._driver = driver
        self._kept = kept
        self._snapshot = kept.snapshot
        self._boot = boot
        self._link = link
        self._tools = tools
        self._rejoin = rejoin
        self._gpus: tuple[GpuReport, ...] = ()
        self._gpus_at_s = -math.inf
        self._gpus_look: asyncio.Task[None] | None = None  # under way
        self._facts_told = False
        self._sync_failures = 0
        self._sync_due = asyncio.Event()
        self.keeper = RankKeeper(facts, dict(kept.runs), tools, on_change=self._sync_due.set, devices=driver.devices)

        self.keeper.supplies.given = kept.snapshot.secrets if kept.snapshot else {}
        self._tails = LogTails(tools.state_path, link, lambda: self.credential, self.keeper.secret_values)

    @property
    def credential(self) -> str:
        """The node's own `id.secret`; empty before it has joined."""
        return self._kept.credential

    def poke(self) -> None:
        """Sync soon."""
        self._sync_due.set()

    def joined(self, credential: str) -> None:
        """Keep a new credential for good."""
        self._kept = replace(self._kept, credential=credential)
        self._facts_told = False
        self._save(durable=True)

    async def run(self, found: Sequence[Marked]) -> None:
        """Take over what runs, then loop until cancelled.

        One sync is tried before anything is started: after a long stop the snapshot on disk may name ranks that live elsewhere by now.
        """
        self.keeper.adopt(found, self._snapshot)
        await self._guarded_sync()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._act_forever())
            group.create_task(self._sync_forever())

    async def close(self, *, stop_engines: bool) -> None:
        """After `run` was cancelled: leave the engines running, or end them."""
        await self.keeper.close()
        await self._tails.close()
        if self._gpus_look is not None:
            self._gpus_look.cancel()
        if stop_engines:
            await self.keeper.stop_engines()
        self._save()

    async def _act_forever(self) -> None:
        while True:
            try:
                self.keeper.act()
                self._save()
                await self.keeper.wait()
            except Exception:  # the top of the loop: the other ranks of the node must go on
                self.failures_total += 1
                log.exception("%s: acting failed (%d such failures)", self.facts.name, self.failures_total)
                await asyncio.sleep(1.0)

    async def _sync_forever(self) -> None:
        wait_s = random.uniform(0.0, self._every_s())  # nodes of one process spread over the period
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._sync_due.wait()
                await asyncio.sleep(_COALESCE_S)
            except TimeoutError:
                pass
            wait_s = await self._guarded_sync()

    def _every_s(self) -> float:
        return self._snapshot.sync_every_s if self._snapshot else _FIRST_SYNC_EVERY_S

    async def _guarded_sync(self) -> float:
        """One sync, come what may. Returns how long to wait for the next."""
        self._sync_due.clear()
        try:
            await self._sync()
        except UnavailableError:
            self._sync_failures += 1
            return _SYNC_BACKOFF.delay_s(self._sync_failures, random.random)
        except DenvError as error:
            log.warning("%s: the control plane refuses the report: %s", self.facts.name, error)
            return _SYNC_BACKOFF.cap_s
        except Exception:  # the top of the loop: a bug in one sync must not end the node
            self.failures_total += 1
            log.exception("%s: sync failed (%d such failures)", self.facts.name, self.failures_total)
            return _SYNC_BACKOFF.cap_s
        self._sync_failures = 0
        return self._every_s() * random.uniform(0.85, 1.1)

    async def _sync(self) -> None:
        await self._read_gpus()
        credential = self.credential
        try:
            snapshot = await self._link.sync(credential, self._report())
        except ForbiddenError:
            if not await self._rejoin(self, credential):
                raise
            self._sync_due.set()
            return
        self._facts_told = True
        if self._kept.boot != self._boot:
            self._kept = replace(self._kept, boot=self._boot)
            self._save(durable=True)
        if not snapshot.unchanged:
            self._take(snapshot)

    def _take(self, snapshot: NodeSnapshot) -> None:
        """A new snapshot: keep it on disk, act on it, and say so at once."""
        log.info("%s: generation %d with %d ranks", self.facts.name, snapshot.generation, len(snapshot.ranks))
        self._snapshot = snapshot
        self.keeper.take(snapshot)
        self._tails.want(snapshot.logs)
        self._save()
        self._sync_due.set()

    async def _read_gpus(self) -> None:
        now_s = time.monotonic()
        if self._gpus_look is None and now_s - self._gpus_at_s >= self._driver.every_s:
            self._gpus_at_s = now_s
            self._gpus_look = asyncio.create_task(self._look_at_gpus())
        if self._gpus_look is not None:
            await asyncio.wait({self._gpus_look}, timeout=_GPUS_WAIT_S)
        if self._gpus_look is not None and now_s - self._gpus_at_s > _GPUS_HUNG_S:
            self._gpus = self._all_gpus_bad(f"the GPU driver has not answered for {now_s - self._gpus_at_s:.0f} s")

    async def _look_at_gpus(self) -> None:
        sessions = {run.process.pid for run in self.keeper.runs.values() if run.process is not None}
        try:
            look = partial(self._driver.read, sessions)
            self._gpus = await in_daemon_thread(look) if self._driver.blocking else look()
        except UnavailableError as error:
            # A driver that does not answer is the node's trouble, and must not look like the control plane's.
            log.warning("%s: %s", self.facts.name, error)
            self._gpus = self._all_gpus_bad(error.detail)
        finally:
            self._gpus_look = None

    def _all_gpus_bad(self, why: str) -> tuple[GpuReport, ...]:
        return tuple(GpuReport(index=index, healthy=False, detail=why, unsure=True) for index in range(self.facts.gpus))

    def _report(self) -> AgentReport:
        return AgentReport(
            node=self.facts.name,
            boot=self._boot,
            observed_generation=self._snapshot.generation if self._snapshot else 0,
            clock_at=time.time(),
            facts=None if self._facts_told else self.facts,
            gpus=self._gpus,
            ranks=self.keeper.reports(),
            succeeds=self._kept.boot,
        )

    def _save(self, *, durable: bool = False) -> None:
        """Write what changed since the last write."""
        kept, runs = self._kept, self.keeper.runs
        if not durable and kept.runs == runs and kept.snapshot is self._snapshot:
            return
        self._kept = replace(kept, snapshot=self._snapshot, runs=dict(runs))
        state.save(self._tools.state_path, self._kept, durable=durable)
