"""Keeps the ranks of one node as they should be: starts, watches, ends and adopts their engines."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from denvweb.core.errors import DenvError, UnavailableError
from denvweb.core.ids import random_id
from fleets.agent import adoption, logs, ports, probes, ranks, state
from fleets.agent.diff import Forget, Kill, Replace, Start, Terminate, diff, next_due_s, take_desired, waiting_for
from fleets.agent.engines import AdapterFor, launch_order
from fleets.agent.gate import StartGate
from fleets.agent.http import HttpClient
from fleets.agent.launchers.base import Launcher
from fleets.agent.processes import Marked
from fleets.agent.ranks import Run
from fleets.agent.redact import redact
from fleets.agent.supplies import Supplies
from fleets.agent.weights.store import WeightsStore
from fleets.domain.protocol import NodeFacts, NodeSnapshot, RankReport
from fleets.domain.stall import SILENT_S
from fleets.domain.types import RankState
from fleets.engines.base import LaunchCommand, with_program

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineTools:
    """What all nodes of one agent process use to run engines."""

    state_path: Path
    client: HttpClient
    launcher: Launcher
    adapter_for: AdapterFor
    gate: StartGate
    speed: float = 1.0
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # this node's own commands by engine
    weights: WeightsStore | None = None  # None: engines find them themselves
    hung_after_s: float = SILENT_S  # of silence of an engine that was ready; 0: never


class RankKeeper:
    """The ranks of one node. `on_change` is called when a rank's state changed, so that the control plane hears of it."""

    def __init__(
        self,
        facts: NodeFacts,
        runs: dict[str, Run],
        tools: EngineTools,
        on_change: Callable[[], None],
        devices: Callable[[Sequence[int]], tuple[int, ...]] = tuple,
    ) -> None:
        """`devices` turns the node's numbers of GPUs into those that CUDA has for them now."""
        self.runs = runs
        self.failures_total = 0  # errors that only a guard caught
        self._facts = facts
        self._tools = tools
        self._on_change = on_change
        self._devices = devices
        self._strays: tuple[Marked, ...] = ()
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._places: dict[str, Callable[[], None]] = {}  # of the start gate, by rank id
        self._gauges: dict[str, dict[str, float]] = {}
        self._look = asyncio.Event()  # something may be to do
        self.supplies = Supplies(facts, tools.weights, self._look.set)
        self._acted_s = 0.0  # when `act` last looked: what came due since then must not be waited for in vain

    def take(self, snapshot: NodeSnapshot) -> None:
        """Work towards a new snapshot."""
        self.supplies.given = snapshot.secrets
        self.runs = take_desired(snapshot.ranks, self.runs, time.monotonic())
        if self._strays:
            self.adopt(self._strays, snapshot)
        self.act()
        self._look.set()  # the deadlines may be others now

    async def wait(self) -> None:
        """Until there may be something for `act`: an event, or a deadline."""
        due_s = next_due_s(self.runs, self._acted_s)
        try:
            async with asyncio.timeout(None if due_s == math.inf else max(0.01, due_s - time.monotonic())):
                await self._look.wait()
        except TimeoutError:
            pass
        self._look.clear()

    def act(self) -> None:
        """Do what the difference between wanted and running asks for now."""
        now_s = self._acted_s = time.monotonic()
        self._see_to_weights(now_s)
        for action in diff(self.runs, now_s, self._starting):
            run = self.runs[action.rank_id]
            match action:
                case Start():
                    self._starting[run.rank_id] = self._task(self._start(run.rank_id))
                case Terminate() if run.process is not None:
                    log.info("%s: ending %s (process %d)", self._facts.name, run.rank_id, run.process.pid)
                    self._tools.launcher.terminate(run.process)
                    self._set(ranks.terminated(run, now_s))
                case Kill(reason=reason) if run.process is not None:
                    self._kill(ranks.killed(run, reason))
                case Replace(reason=reason) if run.process is not None:
                    self._kill(ranks.hung(run, reason))
                case Forget():
                    del self.runs[run.rank_id]
                    state.drop_secrets(self._tools.state_path, run.rank_id)
                    self._on_change()

    def reports(self) -> tuple[RankReport, ...]:
        """Every rank as it is now."""
        now_s = time.monotonic()
        return tuple(
            RankReport(
                rank_id=run.rank_id,
                state=run.state,
                pid=run.process.pid if run.process else 0,
                engine_id=run.engine_id if run.process else "",
                restarts=run.restarts,
                since_s=round(now_s - run.since_s, 1),
                detail=self.supplies.sentence(run) or run.detail or waiting_for(run, self.runs),
                hung_engine=run.hung_engine,
                hung_why=run.hung_why,
                gauges=self._gauges.get(run.rank_id, {}),
            )
            for run in self.runs.values()
        )

    # ---- starting ----

    def _see_to_weights(self, now_s: float) -> None:
        for run in list(self.runs.values()):
            status = None if run.rank_id in self._starting else self.supplies.weights_for(run)
            if status is None:
                continue
            told = ranks.weights_told(run, ready=status.ready, failed=status.failed, now_s=now_s)
            if told is not run:
                self._set(told)

    def secret_values(self, rank_id: str) -> tuple[str, ...]:
        """What must not be seen in a rank's log."""
        return self.supplies.secret_values(self.runs.get(rank_id))

    async def _start(self, rank_id: str) -> None:
        """Start one engine when the gate has a place for it, if it is still wanted then."""
        try:
            place = await self._tools.gate.take()
            run = self.runs[rank_id]
            if run.wanted:
                self._places[rank_id] = place
                await self._launch(run)
            else:
                place()
        finally:
            del self._starting[rank_id]
            self._look.set()

    async def _launch(self, run: Run) -> None:
        rank_id, engine_id = run.rank_id, random_id("e")
        try:
            command = self._command(run, engine_id)
            secrets = self.supplies.secrets_for(run.spec)
            order = launch_order(command, run.spec, self._facts, engine_id, self._tools.state_path, secrets)
            await ports.require_free(run.spec.own_host, command.listens)
            if not self.runs[rank_id].wanted:
                self._give_place_back(rank_id)
                return
            offset = logs.prepare(order.log_path)
            process = await self._tools.launcher.launch(order, partial(self._ended, rank_id, engine_id))
        except (DenvError, OSError) as error:
            self._give_place_back(rank_id)
            self._set(ranks.launch_failed(self.runs[rank_id], str(error), time.monotonic(), random.random))
            log.warning("%s: %s was not started: %s", self._facts.name, rank_id, error)
            return
        self._set(ranks.launched(self.runs[rank_id], process, engine_id, time.monotonic(), offset))
        self._watch(self.runs[rank_id], command)

    def _command(self, run: Run, engine_id: str) -> LaunchCommand:
        adapter = self._tools.adapter_for(run.spec.engine.engine, self._facts.simulated)
        spec = replace(run.spec, gpus=self._devices(run.spec.gpus))
        if path := self.supplies.path_for(run.spec):  # where they are, so that every engine finds them, and asks no hub
            spec = replace(spec, engine=replace(spec.engine, weights=f"file://{path}"))
        if len(spec.gpus) < len(run.spec.gpus):
            raise UnavailableError(f"of GPU {', '.join(map(str, run.spec.gpus))} not all are on the bus")
        command = adapter.command(spec, speed=self._tools.speed, engine_id=engine_id)
        own = self._tools.programs.get(adapter.name, ())
        return replace(command, argv=with_program(command.argv, adapter.program, own))

    # ---- watching ----

    def _watch(self, run: Run, command: LaunchCommand) -> None:
        what = probes.Watch(
            spec=run.spec,
            command=command,
            log_path=state.log_path(self._tools.state_path, run.rank_id),
            log_offset=run.log_offset,
            map_metrics=self._tools.adapter_for(run.spec.engine.engine, self._facts.simulated).map_metrics,
            on_ready=partial(self._ready, run.rank_id, run.engine_id),
            on_gauges=partial(self._gauges.__setitem__, run.rank_id),
            on_hung=partial(self._hung, run.rank_id, run.engine_id),
            hung_after_s=self._tools.hung_after_s,
        )
        self._watches[run.rank_id] = self._task(probes.watch(self._tools.client, what, ready=run.ready_s is not None))

    def _ready(self, rank_id: str, engine_id: str) -> None:
        run = self.runs.get(rank_id)
        if run is not None and run.process is not None and run.engine_id == engine_id:
            self._give_place_back(rank_id)
            self._set(ranks.became_ready(run, time.monotonic()))

    def _hung(self, rank_id: str, engine_id: str, why: str) -> None:
        run = self.runs.get(rank_id)
        if run is not None and run.process is not None and run.engine_id == engine_id and run.state is RankState.READY:
            self._kill(ranks.hung(run, why))

    def _kill(self, run: Run) -> None:
        """End it by force; why is in the run."""
        assert run.process is not None
        log.warning("%s: killing %s (process %d): %s", self._facts.name, run.rank_id, run.process.pid, run.kill_reason)
        self._set(run)
        self._tools.launcher.kill(run.process)

    def _ended(self, rank_id: str, engine_id: str, code: int | None) -> None:
        run = self.runs.get(rank_id)
        if run is None or run.process is None or run.engine_id != engine_id:
            return
        if watch := self._watches.pop(rank_id, None):
            watch.cancel()
        self._gauges.pop(rank_id, None)
        self._give_place_back(rank_id)
        last_lines = redact(logs.tail(state.log_path(self._tools.state_path, rank_id)), self.secret_values(rank_id))
        ended = ranks.exited(run, code, last_lines, time.monotonic(), random.random)
        log.info("%s: %s is %s: %s", self._facts.name, rank_id, ended.state, ended.detail.partition("; its last log")[0])
        self._set(ended)

    def _give_place_back(self, rank_id: str) -> None:
        if place := self._places.pop(rank_id, None):
            place()

    def _set(self, run: Run) -> None:
        before = self.runs.get(run.rank_id)
        self.runs[run.rank_id] = run
        self._look.set()
        if before is None or before.state is not run.state:
            self._on_change()

    def _task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_failure)
        return task

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.failures_total += 1
            log.error("%s: a task failed (%d such failures)", self._facts.name, self.failures_total, exc_info=error)

    # ---- taking over, and leaving ----

    def adopt(self, found: Sequence[Marked], snapshot: NodeSnapshot | None) -> None:
        """Go on with the engines of the agent before; those that ended meanwhile count as dead.

        Engines that no file explains wait as strays for the first snapshot, which gives them back their ranks or ends them.
        """
        plan = adoption.plan(self.runs, snapshot, found, time.monotonic())
        self.runs, self._strays = dict(plan.runs), plan.strays
        for marked in plan.orphans:
            log.warning("%s: killing orphan %s (process %d)", self._facts.name, marked.rank_id, marked.process.pid)
            self._tools.launcher.kill(marked.process)
        for run in list(self.runs.values()):
            if run.process is None or run.rank_id in self._watches:
                continue
            if not self._tools.launcher.adopt(run.process, partial(self._ended, run.rank_id, run.engine_id)):
                self._ended(run.rank_id, run.engine_id, None)
                continue
            log.info("%s: adopted %s (process %d)", self._facts.name, run.rank_id, run.process.pid)
            try:
                self._watch(run, self._command(run, run.engine_id))
            except DenvError as error:
                log.warning("%s: %s runs, but cannot be watched: %s", self._facts.name, run.rank_id, error)

    async def close(self) -> None:
        """Stop starting and watching. The engines go on."""
        tasks = [*self._starting.values(), *self._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop_engines(self, deadline_s: float = 10.0) -> None:
        """End every engine, by force after `deadline_s`. To be called after `close`."""
        end_s = time.monotonic() + deadline_s
        for run in list(self.runs.values()):
            if run.process is not None:
                self._set(ranks.terminated(run, time.monotonic()))
                self._tools.launcher.terminate(run.process)
        while live := [run.process for run in self.runs.values() if run.process is not None]:
            self._look.clear()
            try:
                async with asyncio.timeout(end_s - time.monotonic()):
                    await self._look.wait()
            except TimeoutError:
                for process in live:
                    self._tools.launcher.kill(process)
                end_s = time.monotonic() + deadline_s
