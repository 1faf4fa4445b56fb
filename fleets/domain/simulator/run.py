"""`simulate`: a stage, its arrivals, and what users would have seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop
from typing import Any

from fleets.domain.simulator.replica import Clock, Replica
from fleets.domain.simulator.stage import Stage, Unit
from fleets.domain.simulator.tally import Tally
from fleets.domain.simulator.types import Arrival, Failure, PoolShape, PoolUse, Result, Run, StageShape
from fleets.domain.timing import StepTimes, kv_transfer_s
from fleets.domain.types import Role

_NO_RUN = Run()


class World:
    """The parts of one simulation, wired."""

    def __init__(self, shape: StageShape, run: Run) -> None:
        self.shape, self.run = shape, run
        self.clock, self.itl = Clock(), Tally()
        self.stage = self.make_stage()
        self.replicas: dict[Role, list[Replica]] = {pool.role: [] for pool in shape.pools}
        self._times = {pool.role: StepTimes(shape.model, shape.gpu, pool.gpus, shape.calibration) for pool in shape.pools}
        for _ in range(shape.units):
            made = {pool.role: [self.make_replica(pool) for _ in range(pool.replicas)] for pool in shape.pools}
            for role, replicas in made.items():
                self.replicas[role] += replicas
            prefills = made.pop(Role.PREFILL, [])
            self.stage.units.append(Unit(prefills, [replica for replicas in made.values() for replica in replicas]))
        self.stage.notice()
        for replica in self._decoding():
            self._warm(replica)

    def make_stage(self) -> Stage:
        """The router's side."""
        return Stage(self.shape.conditional, self.run.router, self.run.limits)

    def make_replica(self, pool: PoolShape) -> Replica:
        """One more replica of a pool, up at once."""
        model, gpu, near = self.shape.model, self.shape.gpu, self.shape.same_domain

        def transfer_s(tokens: int) -> float:
            return kv_transfer_s(tokens * model.kv_bytes_per_token, gpu, near) * self.shape.calibration.scale

        kv_tokens = self.shape.kv_tokens(pool)
        return Replica(self.clock, pool, self._times[pool.role], kv_tokens, self.itl, transfer_s, self.stage.done, self.stage.lost)

    def _decoding(self) -> list[Replica]:
        return [replica for unit in self.stage.units for replica in unit.all_decodes]

    def _warm(self, replica: Replica) -> None:
        """Sequences at every stage of their answers: as many as the load keeps there."""
        run = self.run
        for index in range(run.warm_batch):
            left = max(1, round(run.warm_output_tokens * (index + 0.5) / run.warm_batch))
            replica.warm(Arrival(0.0, run.warm_input_tokens, run.warm_output_tokens), left)
        if run.warm_batch:
            replica.start(0.0)

    def fail(self, now: float, failure: Failure) -> None:
        """One replica dies."""
        units = self.stage.units
        replica = units[failure.unit].replica(failure.role, failure.ordinal) if failure.unit < len(units) else None
        if replica is not None and replica.up:
            replica.up = False  # first, so that what it loses is not sent back to it
            self.stage.notice()
            replica.fail(now)
            self.clock.at(now + failure.down_s, self._revive, replica)

    def _revive(self, now: float, replica: Replica) -> None:
        """It is back, empty."""
        replica.up = True
        self.stage.notice()

    def play(self, arrivals: Iterable[Arrival]) -> None:
        """All arrivals, then until the last answer has ended."""
        events, stage = self.clock.events, self.stage
        arrive: Callable[[float, Arrival], None] = stage.arrive
        self.clock.at(0.0, self._look, None)
        for failure in self.run.failures:
            self.clock.at(failure.at_s, self.fail, failure)
        for arrival in arrivals:
            at_s = arrival.at_s
            while events and events[0][0] <= at_s:
                now, _, call, argument = heappop(events)
                call(now, argument)
            arrive(at_s, arrival)
        self.open = False
        self.clock.run()

    open = True

    def _look(self, now: float, _: Any) -> None:
        """The router asks the engines for their KV use, once a second while requests come."""
        self.stage.look()
        if self.open or self.stage.inflight:
            self.clock.at(now + self.run.router.gauge_every_s, self._look, None)

    def result(self) -> Result:
        """What users saw, once all is over."""
        stage = self.stage
        done = max(1, stage.completed)
        return Result(
            requests=stage.arrived,
            completed=stage.completed,
            rejected=stage.rejected,
            failed=stage.arrived - stage.completed - stage.rejected,
            span_s=stage.last_s,
            input_tokens=stage.input_tokens,
            output_tokens=stage.output_tokens,
            ttft=stage.ttft.quantiles(),
            itl=self.itl.quantiles(),
            tpot=stage.tpot.quantiles(),
            e2e=stage.e2e.quantiles(),
            phases_mean_s={phase.value: total / done for phase, total in stage.phases.items()},
            reasons={reason.value: count for reason, count in sorted(stage.reasons.items(), key=lambda item: -item[1])},
            cached_ratio=stage.cached_tokens / stage.input_tokens if stage.input_tokens else 0.0,
            goodput_ratio=stage.good / stage.arrived if stage.arrived else 0.0,
            kv_bytes_moved=stage.moved_tokens * self.shape.model.kv_bytes_per_token,
            pools=self.uses(stage.last_s),
        )

    def uses(self, span_s: float) -> tuple[PoolUse, ...]:
        """How busy each role was."""
        return tuple(self._use(pool, self.replicas[pool.role], span_s) for pool in self.shape.pools)

    def _use(self, pool: PoolShape, replicas: list[Replica], span_s: float) -> PoolUse:
        busy_s = sum(replica.busy_s for replica in replicas)
        return PoolUse(
            role=pool.role,
            replicas=len(replicas),
            busy_ratio=busy_s / (len(replicas) * span_s) if span_s else 0.0,
            kv_ratio_max=max(replica.kv_most / max(1, replica.kv_tokens) for replica in replicas),
            batch_mean=sum(replica.batch_s for replica in replicas) / busy_s if busy_s else 0.0,
            preemptions=sum(replica.preemptions for replica in replicas),
        )


def simulate(shape: StageShape, arrivals: Iterable[Arrival], run: Run = _NO_RUN) -> Result:
    """Play `arrivals` (in order of time) against a stage. Deterministic: the same input gives the same answer."""
    world = World(shape, run)
    world.play(arrivals)
    return world.result()
