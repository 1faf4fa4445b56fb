"""A stage whose pools grow and shrink while it is simulated, as whoever is asked every few seconds wants them.

A new replica holds its GPUs from the moment it is asked for, and serves after its bring-up time. One that goes gets nothing new,
and holds its GPUs until it has finished. GPUs in use never exceed the budget: what does not fit waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleets.domain.routing import Reason
from fleets.domain.scaling.types import Knob, Signals
from fleets.domain.simulator.replica import Job, Replica
from fleets.domain.simulator.run import World
from fleets.domain.simulator.stage import Stage
from fleets.domain.simulator.tally import Tally
from fleets.domain.simulator.types import Arrival, Phase, Result, Run, StageShape
from fleets.domain.types import Role

RATE_S, WINDOW_S, SHARE_S = 10.0, 30.0, 60.0  # over which rates, percentiles and shares are taken


@dataclass(frozen=True, slots=True)
class Means:
    """What a planner that goes by means looks at, over the time since it last looked."""

    seconds: float
    requests_per_s: float
    input_tokens: float
    output_tokens: float
    ttft_s: float | None
    itl_s: float | None


@dataclass(frozen=True, slots=True)
class Wish:
    """Numbers of replicas of the one unit, and the local-prefill limit; None: as it is."""

    counts: Mapping[Knob, int]
    local_prefill_below: int | None = None


Control = Callable[[Signals, Means], Wish | None]


@dataclass(frozen=True, slots=True)
class Elastic:
    """How a stage may change. `budget` is of GPUs, those of replicas that come or go included."""

    control: Control
    budget: int
    bring_up_s: float
    every_s: float = 5.0


@dataclass(slots=True)
class Ledger:
    """What it took. `history` has (time, counts in force) at each change of them; `gpus_most` those in use at once."""

    gpu_s: float = 0.0
    gpus_most: int = 0
    fewest: dict[Knob, int] = field(default_factory=dict)
    history: list[tuple[float, dict[Knob, int]]] = field(default_factory=list)


class _Stage(Stage):
    """Also keeps how long prompts waited for a prefill place, and how much prefill was given."""

    waits: Tally
    prompt_tokens = 0  # given to prefill replicas, uncached
    prefilled_tokens = 0  # and computed by them

    def _prefill(self, now: float, job: Job) -> None:
        super()._prefill(now, job)
        if job.hands_over and job.tries == 0:
            self.waits.add(max(1e-6, now - job.arrival.at_s))
            self.prompt_tokens += job.owed

    def _leave_prefill(self, now: float, job: Job) -> None:
        self.prefilled_tokens += job.owed
        super()._leave_prefill(now, job)


@dataclass(frozen=True, slots=True)
class _Mark:
    """Running totals at one look."""

    at_s: float
    ttft: dict[int, int]
    itl: dict[int, int]
    waits: dict[int, int]
    arrived: int
    remote: int
    routed: int
    prompt_tokens: int
    prefilled_tokens: int
    input_tokens: int
    output_tokens: int
    completed: int
    ttft_s: float
    itl_s: float
    itl_n: int
    prefill_s: float
    phases_s: float


class ElasticWorld(World):
    """One unit whose pools change."""

    stage: _Stage

    def __init__(self, shape: StageShape, run: Run, elastic: Elastic) -> None:
        if shape.units != 1:
            raise ValueError("the pools of one unit are scaled")
        super().__init__(shape, run)
        self.elastic, self.ledger = elastic, Ledger()
        self._pools = {pool.role: pool for pool in shape.pools}
        self._counts = {Knob(pool.role.value): pool.replicas for pool in shape.pools}
        self._marks: deque[_Mark] = deque([self._mark(0.0)])
        self.ledger.history.append((0.0, dict(self._counts)))
        self._since_s = 0.0
        self._asked = self._marks[0]
        self.clock.at(elastic.every_s, self._control, None)

    def make_stage(self) -> Stage:
        """One that counts what a policy looks at."""
        stage = _Stage(self.shape.conditional, self.run.router, self.run.limits)
        stage.waits = Tally()
        return stage

    # ---- looking ----

    def _control(self, now: float, _: Any) -> None:
        if not self.open:
            return
        self._reap(now)
        mark = self._mark(now)
        self._marks.append(mark)
        while len(self._marks) > 2 and self._marks[1].at_s <= now - SHARE_S:
            self._marks.popleft()
        wish = self.elastic.control(self._signals(mark), self._means(mark))
        if wish is not None:
            self._asked = mark
            self._want(now, wish)
        self._fill(now)
        self.clock.at(now + self.elastic.every_s, self._control, None)

    def _mark(self, now: float) -> _Mark:
        stage = self.stage
        remote = stage.reasons.get(Reason.REMOTE, 0)
        prefill_s = stage.phases[Phase.QUEUE] + stage.phases[Phase.PREFILL]
        return _Mark(
            at_s=now,
            ttft=dict(stage.ttft.counts),
            itl=dict(self.itl.counts),
            waits=dict(stage.waits.counts),
            arrived=stage.arrived,
            remote=remote,
            routed=sum(stage.reasons.values()),
            prompt_tokens=stage.prompt_tokens,
            prefilled_tokens=stage.prefilled_tokens,
            input_tokens=stage.input_tokens,
            output_tokens=stage.output_tokens,
            completed=stage.completed,
            ttft_s=stage.ttft.total_s,
            itl_s=self.itl.total_s,
            itl_n=self.itl.n,
            prefill_s=prefill_s,
            phases_s=sum(stage.phases.values()),
        )

    def _before(self, now: float, span_s: float) -> _Mark:
        """The newest mark that is at least so old, or the oldest there is."""
        return next((mark for mark in reversed(self._marks) if mark.at_s <= now - span_s + 1e-9), self._marks[0])

    def _signals(self, now: _Mark) -> Signals:
        short, window, long = (self._before(now.at_s, span_s) for span_s in (RATE_S, WINDOW_S, SHARE_S))
        seconds, minute_s = (max(1e-9, now.at_s - mark.at_s) for mark in (short, long))
        share = (now.remote - long.remote) / max(1, now.routed - long.routed) if now.routed > long.routed else 1.0
        started = sum(now.waits.values()) - sum(long.waits.values())
        prompts_per_s = (now.arrived - long.arrived) / minute_s * share
        tokens = (now.prompt_tokens - long.prompt_tokens) / started if started else 0.0
        unit = self.stage.units[0]
        decodes = [replica for replica in unit.all_decodes if replica.up]
        phases_s = now.phases_s - window.phases_s
        return Signals(
            at_s=now.at_s,
            age_s=0.0,
            counts={Knob.UNITS: 1, **self._counts},
            ready={Knob.UNITS: 1, Knob.PREFILL: len(unit.prefills), Knob.DECODE: len(unit.decodes)},
            ttft_p99_s=_p99(now.ttft, window.ttft),
            queue_p99_s=_p99(now.waits, window.waits),
            itl_p99_s=_p99(now.itl, window.itl),
            prefill_share=(now.prefill_s - window.prefill_s) / phases_s if phases_s > 0 else None,
            prompts_per_s=prompts_per_s,
            prompt_tokens_per_s=prompts_per_s * tokens,
            burst_tokens_per_s=(now.arrived - short.arrived) / seconds * share * tokens,
            prefilled_tokens_per_s=(now.prefilled_tokens - short.prefilled_tokens) / seconds,
            prefill_queue=len(unit.waiting) + sum(len(replica.waiting) for replica in unit.prefills),
            sequences=float(sum(replica.running for replica in decodes)),
            kv_use=max((replica.held / replica.kv_tokens for replica in decodes), default=None),
        )

    def _means(self, now: _Mark) -> Means:
        then = self._asked
        seconds, done, gaps = max(1e-9, now.at_s - then.at_s), now.completed - then.completed, now.itl_n - then.itl_n
        arrived = now.arrived - then.arrived
        return Means(
            seconds=seconds,
            requests_per_s=arrived / seconds,
            input_tokens=(now.input_tokens - then.input_tokens) / arrived if arrived else 0.0,
            output_tokens=(now.output_tokens - then.output_tokens) / done if done else 0.0,
            ttft_s=(now.ttft_s - then.ttft_s) / done if done else None,
            itl_s=(now.itl_s - then.itl_s) / gaps if gaps else None,
        )

    # ---- changing ----

    def _want(self, now: float, wish: Wish) -> None:
        counts = {knob: wish.counts.get(knob, count) for knob, count in self._counts.items()}
        if wish.local_prefill_below is not None:
            self.stage.conditional = replace(self.stage.conditional, local_prefill_below=wish.local_prefill_below)
        if counts == self._counts:
            return
        self._counts = counts
        self.ledger.history.append((now, dict(counts)))
        for knob, count in counts.items():
            replicas = self._replicas(Role(knob.value))
            staying = [replica for replica in replicas if not replica.leaving]
            for replica in sorted(staying, key=lambda one: one.up)[: max(0, len(staying) - count)]:
                self._leave(now, replica)
        self._notice()

    def _leave(self, now: float, replica: Replica) -> None:
        replica.leaving = True
        if not replica.up:
            self._remove(now, replica)

    def _fill(self, now: float) -> None:
        """Recall those that were leaving, then make new ones while the budget lasts."""
        for knob, count in self._counts.items():
            role = Role(knob.value)
            for replica in self._replicas(role):
                if replica.leaving and self._staying(role) < count:
                    replica.leaving = False
            while self._staying(role) < count and self._gpus() + self._pools[role].gpus <= self.elastic.budget:
                self._account(now)
                replica = self.make_replica(self._pools[role])
                replica.up = False
                self._replicas(role).append(replica)
                self.replicas[role].append(replica)
                self.clock.at(now + self.elastic.bring_up_s, self._came_up, replica)
        self._notice()

    def _came_up(self, now: float, replica: Replica) -> None:
        if replica in self._replicas(replica.role):
            replica.up = True
            self._notice()

    def _reap(self, now: float) -> None:
        for pool in self._pools.values():
            for replica in list(self._replicas(pool.role)):
                if replica.leaving and replica.held <= 0 and not replica.running and not replica.waiting:
                    self._remove(now, replica)

    def _remove(self, now: float, replica: Replica) -> None:
        self._account(now)
        self._replicas(replica.role).remove(replica)

    def _notice(self) -> None:
        self.stage.notice()
        unit = self.stage.units[0]
        for knob, replicas in ((Knob.PREFILL, unit.prefills), (Knob.DECODE, unit.decodes)):
            self.ledger.fewest[knob] = min(self.ledger.fewest.get(knob, len(replicas)), len(replicas))

    def _replicas(self, role: Role) -> list[Replica]:
        unit = self.stage.units[0]
        return unit.all_prefills if role is Role.PREFILL else unit.all_decodes

    def _staying(self, role: Role) -> int:
        return sum(not replica.leaving for replica in self._replicas(role))

    def _gpus(self) -> int:
        return sum(pool.gpus * len(self._replicas(role)) for role, pool in self._pools.items())

    def _account(self, now: float) -> None:
        """GPU-seconds up to now, before the number of GPUs changes."""
        self.ledger.gpu_s += self._gpus() * (now - self._since_s)
        self._since_s = now
        self.ledger.gpus_most = max(self.ledger.gpus_most, self._gpus())

    def close(self, now: float) -> None:
        """The last request has come: what is used from here on is in nobody's account."""
        self._account(now)


def simulate_elastic(shape: StageShape, arrivals: Iterable[Arrival], elastic: Elastic, run: Run) -> tuple[Result, Ledger]:
    """Play `arrivals` against one unit that changes. GPU-seconds are counted until the last arrival."""
    world = ElasticWorld(shape, run, elastic)
    requests = list(arrivals)
    world.clock.at(requests[-1].at_s, lambda now, _: world.close(now), None)
    world.play(requests)
    return world.result(), world.ledger


def _p99(now: Mapping[int, int], before: Mapping[int, int]) -> float | None:
    tally = Tally()
    tally.counts = {index: count - before.get(index, 0) for index, count in now.items() if count != before.get(index, 0)}
    tally.n = sum(tally.counts.values())
    return tally.quantile(0.99)
