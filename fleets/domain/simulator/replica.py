"""One replica: continuous batching as the simulated engine does it, but by epochs in which the batch stays the same.

A step that prefills is one event. Steps that only decode are run through together until the first sequence ends or a new one comes:
step times grow linearly with the context, so the length of k steps is a sum in closed form. A request costs a handful of events,
whatever its length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil, sqrt
from typing import Any

from fleets.domain.simulator.cache import PrefixCache
from fleets.domain.simulator.tally import Tally
from fleets.domain.simulator.types import Arrival, PoolShape
from fleets.domain.timing import StepTimes
from fleets.domain.types import Role

Events = list[tuple[float, int, Callable[[float, Any], None], Any]]


class Clock:
    """The event queue. Events of one instant happen in the order in which they were asked for."""

    __slots__ = ("events", "serial")

    def __init__(self) -> None:
        self.events: Events = []
        self.serial = 0

    def at(self, at_s: float, call: Callable[[float, Any], None], argument: object) -> None:
        """Call `call(at_s, argument)` at `at_s`."""
        self.serial += 1
        heappush(self.events, (at_s, self.serial, call, argument))

    def run(self) -> None:
        """Let everything happen that is still to come."""
        events = self.events
        while events:
            now, _, call, argument = heappop(events)
            call(now, argument)


class Job:
    """One request on its way; times are simulated seconds."""

    __slots__ = (
        "admitted_s", "arrival", "boot", "cached", "decode", "done", "first_s", "hands_over", "kv_s", "left_at", "output", "owed",
        "prefill", "prefill_boot", "prefilled_s", "prompt", "remote", "said", "todo", "tries", "unit",
    )  # fmt: skip

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.prompt = arrival.input_tokens
        self.output = arrival.output_tokens
        self.remote = False  # its KV comes from a prefill replica
        self.hands_over = False  # it is on its prefill replica now
        self.said = 0  # tokens that it had said when it was set back
        self.left_at = 0  # tokens that its replica had freed by then
        self.todo = 0  # tokens to prefill
        self.done = 0  # tokens whose KV is there
        self.cached = 0  # tokens that its prefill found
        self.boot = self.prefill_boot = 0  # of the replicas that took it: another one now means that they died
        self.tries = 0
        self.owed = 0  # tokens that the router counts on the replica for it
        self.unit: Any = None
        self.prefill: Any = None
        self.decode: Any = None
        self.admitted_s = self.prefilled_s = self.kv_s = self.first_s = 0.0


class Replica:
    """An engine. `on_done(now, job)` is told of prefills that hand over and of finished requests; `on_lost` of those that died with it.

    `running`, `tokens`, `kv_use` and `used_seq` are the router's view of it, kept by the router's side.
    """

    def __init__(
        self, clock: Clock, pool: PoolShape, steps: StepTimes, kv_tokens: int, itl: Tally,
        transfer_s: Callable[[int], float], on_done: Callable[[float, Job], None], on_lost: Callable[[float, Job], None],
    ) -> None:  # fmt: skip
        self.role: Role = pool.role
        self.running, self.tokens, self.used_seq = 0, 0, 0
        self.kv_use: float | None = None
        self.up = True
        self.leaving = False  # it finishes what it has, and gets nothing new
        self.kv_tokens = kv_tokens
        self.cache = PrefixCache(kv_tokens)
        self.waiting: deque[Job] = deque()
        self.busy_s, self.batch_s, self.preemptions, self.kv_most = 0.0, 0.0, 0, 0
        self._clock, self._steps, self._itl = clock, steps, itl
        self._transfer_s, self._on_done, self._on_lost = transfer_s, on_done, on_lost
        self._budget, self._most = pool.max_batched_tokens, pool.max_sequences
        self._block = pool.block_tokens
        self._spare = pool.block_tokens // 2  # of its last block a sequence leaves half unused on average
        self._prefilling: list[Job] = []
        self._fetching = 0
        self._ends: list[tuple[int, int, Job]] = []  # (step count at its end, order of coming, job)
        self._fresh: list[Job] = []  # those whose first token the next step will make
        self._context = 0  # tokens of the running ones
        self.held = 0  # tokens of KV in use, block ends included
        self._freed = 0  # tokens of KV that have been given back so far
        self._step_count = 0
        self._order = 0
        self.boot = 0
        self._begin_s = 0.0  # of the epoch under way
        self._epoch = 0  # steps in it; 0: idle
        self._version = 0
        self._first_step_s = self._growth_s = self._epoch_s = 0.0
        self._gaps = 0  # sequences whose gap the epoch's first step is
        self._chunks: list[tuple[Job, int]] = []

    # ---- from outside ----

    def add(self, now: float, job: Job) -> None:
        """Queue a request."""
        job.boot = self.boot
        self.waiting.append(job)
        self._look(now)

    def let_go(self, now: float, tokens: int) -> None:
        """A handed-over prompt has been fetched: its KV is free."""
        self._free(tokens)
        if self.waiting:
            self._look(now)

    def warm(self, arrival: Arrival, left_tokens: int) -> None:
        """Put a sequence in the middle of its answer, with `left_tokens` to go. It is in nobody's figures."""
        job = Job(arrival)
        job.boot, job.kv_s, job.first_s = self.boot, -1.0, -1.0
        job.prompt, job.output = arrival.input_tokens + arrival.output_tokens - left_tokens, left_tokens
        self.held += job.prompt + self._spare
        self._run(job, left_tokens)

    def start(self, now: float) -> None:
        """Go on with what is there."""
        self._look(now)

    def fail(self, now: float) -> None:
        """It dies: all that it had is lost."""
        lost = [*self.waiting, *self._prefilling, *self._fresh, *(job for _, _, job in self._ends)]
        self.waiting.clear()
        self._prefilling, self._ends, self._fresh, self._chunks = [], [], [], []
        self._fetching = self._context = self.held = self._epoch = 0
        self.boot += 1
        self._version += 1
        self.up = False
        self.cache.clear()
        for job in lost:
            self._on_lost(now, job)

    # ---- steps ----

    def _look(self, now: float) -> None:
        """Something came: begin when idle; else end the epoch with the step under way, so that it can join."""
        if self._epoch == 0:
            self._begin(now)
        elif self._epoch > 1 and not self._chunks:
            if self._growth_s > 0:
                half = self._first_step_s - self._growth_s / 2
                steps = (sqrt(half * half + 2 * self._growth_s * max(0.0, now - self._begin_s)) - half) / self._growth_s
            else:
                steps = (now - self._begin_s) / self._first_step_s
            count = max(1, ceil(steps - 1e-9))
            if count < self._epoch:
                self._schedule(count)

    def _schedule(self, count: int) -> None:
        self._epoch = count
        self._epoch_s = count * self._first_step_s + self._growth_s * count * (count - 1) / 2
        self._version += 1
        self._clock.at(self._begin_s + self._epoch_s, self._end, self._version)

    def _begin(self, now: float) -> None:
        if not self.up:
            return
        for job in self._fresh:
            self._run(job, job.output)
        if self.waiting:
            self._admit(now)
        batch = len(self._ends)
        while batch > 1 and self.held + batch > self.kv_tokens:
            self._set_back_youngest()
            batch -= 1
        self._begin_s, count = now, 1
        if self._prefilling:
            self._first_step_s, self._growth_s = self._plan_chunks(batch), 0.0
        elif batch:
            self._first_step_s = self._steps.base_s(batch) + self._steps.context_s * self._context
            self._growth_s = self._steps.context_s * batch
            count = max(1, min(self._ends[0][0] - self._step_count, (self.kv_tokens - self.held) // batch))
        else:
            self._epoch = 0
            return
        self._gaps = batch - len(self._fresh)
        if self._fresh:
            for job in self._fresh:
                job.first_s = now + self._first_step_s
            self._fresh = []
        self._schedule(count)

    def _plan_chunks(self, batch: int) -> float:
        """Take from the prompts what one step has room for; its seconds."""
        budget, new, pairs = self._budget - batch, 0, 0.0
        chunks: list[tuple[Job, int]] = []
        for job in self._prefilling:
            tokens = job.todo if job.todo < budget else budget
            if tokens <= 0:
                break
            chunks.append((job, tokens))
            budget -= tokens
            new += tokens
            pairs += tokens * (job.done + tokens / 2)
        self._chunks = chunks
        steps = self._steps
        seconds = steps.base_s(batch) + steps.context_s * self._context if batch else steps.alone_s
        if not new:
            return seconds
        return seconds + steps.prefill_part_s(new, max(0.0, pairs / new - new / 2))

    def _end(self, now: float, version: int) -> None:
        if version != self._version:
            return
        count, batch = self._epoch, len(self._ends)
        self.busy_s += self._epoch_s
        if batch:
            self.batch_s += batch * self._epoch_s
            if self._gaps:
                self._itl.add(self._first_step_s if count == 1 else self._epoch_s / count, self._gaps)
            if count > 1:
                self._itl.add(self._epoch_s / count, (count - 1) * batch)
            self._step_count += count
            self._context += count * batch
            self.held += count * batch
            ends = self._ends
            while ends and ends[0][0] <= self._step_count:
                self._finish(now, heappop(ends)[2])
        if self._chunks:
            self._prefilled(now)
        if self.held > self.kv_most:
            self.kv_most = self.held
        self._begin(now)

    def _prefilled(self, now: float) -> None:
        chunks, self._chunks = self._chunks, []
        for job, tokens in chunks:
            job.todo -= tokens
            job.done += tokens
            if job.todo > 0:
                continue
            self._prefilling.remove(job)
            if job.hands_over:
                self._on_done(now, job)
                continue
            if not job.said:
                job.first_s = job.prefilled_s = job.kv_s = now
            self.held += 1
            left = job.output - job.said - 1
            if left > 0:
                self._run(job, left)
                self._context += 1
            else:
                self._context += job.prompt + job.output
                self._finish(now, job)

    def _run(self, job: Job, steps: int) -> None:
        """Decode from the next step on, for so many steps."""
        self._order += 1
        self._context += job.prompt + job.said
        heappush(self._ends, (self._step_count + steps, self._order, job))

    def _finish(self, now: float, job: Job) -> None:
        size = job.prompt + job.output
        self._context -= size
        self._free(size)
        self._on_done(now, job)

    def _free(self, tokens: int) -> None:
        tokens += self._spare
        self.held -= tokens
        self._freed += tokens

    # ---- admission and memory ----

    def _admit(self, now: float) -> None:
        """First come, first served: the head of the queue waits for memory, and so do all behind it."""
        waiting = self.waiting
        ahead = sum([job.todo for job in self._prefilling])
        while waiting and len(self._ends) + len(self._prefilling) + self._fetching < self._most:
            job = waiting[0]
            need = job.prompt + job.said + self._spare
            fetches = job.remote and not job.hands_over and not job.kv_s
            if (not fetches and ahead >= self._budget) or (self.held + need > self.kv_tokens and self.held):
                return
            waiting.popleft()
            self.held += need
            held = self.cache.held_tokens(job.arrival) if job.arrival.blocks else job.arrival.shared_tokens
            if job.arrival.blocks:
                self.cache.add(job.arrival)
            if fetches:
                self._fetching += 1
                self._clock.at(now + self._transfer_s(job.prompt - held), self._fetched, job)
                continue
            total = job.prompt + job.said
            if job.said:
                held = max(held, self._survived(job))
            job.done = min(held, total - 1) // self._block * self._block
            job.todo = total - job.done
            job.cached = job.done
            job.admitted_s = now
            ahead += job.todo
            self._prefilling.append(job)

    def _fetched(self, now: float, job: Job) -> None:
        """The KV is here: it decodes from the next step on, which makes its first token."""
        if job.boot != self.boot:
            self._on_lost(now, job)
            return
        self._fetching -= 1
        if job.prefill.boot != job.prefill_boot:  # died in the meantime, and its KV with it
            self._free(job.prompt)
            self._on_lost(now, job)
            return
        job.kv_s = now
        job.prefill.let_go(now, job.prompt)
        self._fresh.append(job)  # and into the batch when the step under way has ended
        self._look(now)

    def _set_back_youngest(self) -> None:
        """No room for the next tokens: the sequence that came last is computed anew later."""
        entry = max(self._ends, key=lambda item: item[1])
        self._ends.remove(entry)
        self._ends.sort()
        end, _, job = entry
        said = job.output - (end - self._step_count)
        size = job.prompt + said
        self._context -= size
        if job in self._fresh:
            self._fresh.remove(job)
        job.said, job.left_at = said, self._freed
        self._free(size)
        self.preemptions += 1
        self.waiting.appendleft(job)

    def _survived(self, job: Job) -> int:
        """Tokens of a sequence that was set back whose KV is still there.

        Free blocks wait in line with what they hold until they are taken: those freed first are taken first, and of one sequence its
        tail before its head. `held + freed` is what has been taken so far; its own place (`need`) has been taken just now.
        """
        size = job.prompt + job.said
        taken = self.held + self._freed - size - self._spare
        return max(0, min(size, self.kv_tokens + job.left_at + size - taken))
