"""Continuous batching in simulated time: each step decodes all running sequences and prefills what its token budget has room for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fleets.domain.hardware import GPUS
from fleets.domain.timing import mixed_step_s
from fleets.engines.sim.config import Config
from fleets.engines.sim.faults import FaultBox
from fleets.engines.sim.layout import KV_BYTES, ROOT, block_kv, chain_hashes
from fleets.engines.sim.metrics import Metrics
from fleets.engines.sim.pool import KvPool
from fleets.engines.sim.sequence import Finish, Phase, Sequence
from fleets.engines.sim.tokens import TOKEN_BYTES
from fleets.engines.sim.voice import Voice, kv_seed, natural_tokens

_CATCH_UP_S = 0.25  # a laptop that is busy may lag so far behind simulated time; then the clock is set anew
_TIMER_GRAIN_S = 0.001  # the event loop's timers count whole milliseconds


@dataclass(slots=True)
class Step:
    """What one step computes."""

    chunks: list[tuple[Sequence, int]]
    running: int
    duration_s: float


class Scheduler:
    """Owns the sequences and their blocks. `on_keep` takes over the blocks of a finished prefill that another engine will fetch."""

    def __init__(
        self,
        config: Config,
        pool: KvPool,
        faults: FaultBox,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        on_fetch: Callable[[Sequence], None],
        on_keep: Callable[[Sequence], None],
    ) -> None:
        self._config, self._pool, self._faults, self._metrics = config, pool, faults, metrics
        self._clock, self._on_fetch, self._on_keep = clock, on_fetch, on_keep
        self._gpu = GPUS[config.gpu_kind]
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.running: list[Sequence] = []
        self.fetching = 0
        self._context_tokens = 0  # of all running sequences
        self._timer: asyncio.Handle | None = None
        self._step: Step | None = None
        self._step_end_s = 0.0
        self._last_step_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether no sequence is here."""
        return not (self.waiting or self.prefilling or self.running or self.fetching)

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence."""
        sequence.arrived_s = self._clock()
        self.waiting.append(sequence)
        self._metrics.prefix_queries += sequence.prompt_tokens
        self.wake()

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence whose client has left, and free its blocks at once."""
        if sequence.phase is not Phase.DONE:
            self._remove(sequence)
            self._metrics.finished[Finish.ABORT.value] += 1
            self.wake()

    def kv_arrived(self, sequence: Sequence) -> None:
        """All KV of the prompt is in the blocks: it decodes from the next step on."""
        if sequence.phase is not Phase.FETCHING:
            return
        for index, block_hash in enumerate(sequence.hashes):
            self._pool.register(sequence.blocks[index], block_hash)
        self.fetching -= 1
        sequence.computed = sequence.prompt_tokens
        self._run(sequence)
        self.wake()

    def kv_failed(self, sequence: Sequence, detail: str) -> None:
        """The KV did not come: fail the request, or compute it here when told so."""
        if sequence.phase is Phase.DONE:
            return
        self._metrics.failed_transfers += 1
        if self._config.kv_load_failure == "recompute":
            self._set_back(sequence)
            sequence.remote = None
            self.waiting.appendleft(sequence)
        else:
            self._remove(sequence)
            self._metrics.finished[Finish.ERROR.value] += 1
            sequence.sink.failed(sequence, detail)
        self.wake()

    # ---- steps ----

    def wake(self) -> None:
        if self._step is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Plan the next step and set the timer for its end."""
        if self._step is not None:  # woken while a step was being ended, which went on by itself
            return
        self._timer = None
        self._admit()
        now = self._clock()
        step = self._plan()
        if step is None:
            self._step_end_s = 0.0
            return
        start_s = self._step_end_s if -_TIMER_GRAIN_S <= now - self._step_end_s < _CATCH_UP_S else now
        self._step, self._step_end_s = step, start_s + step.duration_s
        loop, wait_s = asyncio.get_running_loop(), self._step_end_s - now
        self._timer = loop.call_later(wait_s, self._end) if wait_s > _TIMER_GRAIN_S / 2 else loop.call_soon(self._end)

    def _plan(self) -> Step | None:
        batch = len(self.running)
        budget = self._config.max_batched_tokens - batch
        chunks: list[tuple[Sequence, int]] = []
        new_tokens, context = 0, 0.0
        for sequence in self.prefilling:
            tokens = min(budget, sequence.tokens - sequence.computed)
            if tokens <= 0:
                break
            chunks.append((sequence, tokens))
            budget -= tokens
            new_tokens += tokens
            context += tokens * (sequence.computed + tokens / 2)
        if not batch and not chunks:
            return None
        before = max(0, int(context / new_tokens - new_tokens / 2)) if new_tokens else 0
        seconds = mixed_step_s(self._config.shape, self._gpu, self._config.gpus, batch, self._context_tokens, new_tokens, before)
        self._metrics.iteration_tokens.observe(batch + new_tokens)
        return Step(chunks, batch, seconds * self._faults.now.slow_factor / self._config.speed)

    def _end(self) -> None:
        """Effects of the step: KV written, a token to each running sequence."""
        self._timer = None
        step, self._step = self._step, None
        if step is None:
            return
        now = self._clock()
        decoding = self.running[: step.running]
        gap_s, self._last_step_s = now - self._last_step_s, now
        even = sum(1 for sequence in decoding if self._decode(sequence, now, gap_s))
        if even:
            self._metrics.itl.observe(gap_s, even)
        for sequence, tokens in step.chunks:
            if sequence.phase is Phase.PREFILLING:
                self._prefilled(sequence, tokens, now)
        self._begin()

    def _decode(self, sequence: Sequence, now: float, gap_s: float) -> bool:
        """One token; True when its gap was the step's own."""
        if sequence.phase is not Phase.RUNNING:  # it left while the step ran
            return False
        gap = now - sequence.last_token_s
        first = not sequence.words
        if not self._emit(sequence, now) or first:
            return False
        if abs(gap - gap_s) < 1e-9:
            return True
        self._metrics.itl.observe(gap)
        return False

    def _emit(self, sequence: Sequence, now: float) -> bool:
        """Say the next word; False when there was no block for it and the sequence had to go back to the queue."""
        assert sequence.voice is not None
        if sequence.tokens + 1 > len(sequence.blocks) * self._config.block_tokens and not self._grow(sequence):
            return False
        words = sequence.words
        if not words:
            sequence.first_token_s = now
            self._metrics.ttft.observe(now - sequence.arrived_s)
        word = sequence.voice.next()
        words.append(word)
        sequence.last_token_s = now
        self._metrics.generation_tokens += 1
        self._context_tokens += 1
        finish = Finish.LENGTH if len(words) >= sequence.max_tokens else self._eos(sequence)
        stopped = sequence.sink.token(sequence, word, finish)
        if finish is not None or stopped:
            self._complete(sequence, finish or Finish.STOP, now)
        elif sequence.tokens % self._config.block_tokens == 0:
            self._seal(sequence)
        return True

    def _eos(self, sequence: Sequence) -> Finish | None:
        """A model that nobody limits ends by itself."""
        if sequence.limited or sequence.ignore_eos:
            return None
        assert sequence.voice is not None
        return Finish.STOP if len(sequence.words) >= max(sequence.min_tokens, natural_tokens(sequence.voice.seed)) else None

    # ---- admission, prefill, memory ----

    def _admit(self) -> None:
        """First come, first served: the head of the queue waits for blocks, and so do all behind it."""
        ahead = sum(sequence.tokens - sequence.computed for sequence in self.prefilling)
        while self.waiting and len(self.running) + len(self.prefilling) + self.fetching < self._config.max_sequences:
            sequence = self.waiting[0]
            if (sequence.remote is None and ahead >= self._config.max_batched_tokens) or not self._place(sequence):
                return
            ahead += 0 if sequence.remote else sequence.tokens - sequence.computed
            self.waiting.popleft()
            if not sequence.admitted_s:
                sequence.admitted_s = self._clock()
            if sequence.remote is not None and not sequence.words:
                sequence.phase = Phase.FETCHING
                self.fetching += 1
                self._on_fetch(sequence)
            else:
                sequence.phase = Phase.PREFILLING
                self.prefilling.append(sequence)

    def _place(self, sequence: Sequence) -> bool:
        """Give it blocks: known ones for its prefix, but never for its last token, which has to be computed to go on."""
        known = self._pool.match(sequence.hashes[: (sequence.tokens - 1) // self._config.block_tokens])
        fresh = self._pool.allocate(sequence.blocks_needed - len(known))
        if fresh is None:
            self._pool.release(known)
            return False
        sequence.blocks = known + fresh
        sequence.computed = len(known) * self._config.block_tokens
        if not sequence.words:
            sequence.cached = sequence.computed
            self._metrics.prefix_hits += sequence.cached
        return True

    def _prefilled(self, sequence: Sequence, tokens: int, now: float) -> None:
        """Write the chunk's KV; behind the last one, the first token."""
        size, start = self._config.block_tokens, sequence.computed
        sequence.computed += tokens
        packed = sequence.packed_from(0) if sequence.words else sequence.packed
        for index in range(start // size, -(-sequence.computed // size)):
            parent = sequence.hashes[index - 1] if index else ROOT
            end = min((index + 1) * size, sequence.computed)
            self._pool.write(sequence.blocks[index], block_kv(parent, packed[index * size * TOKEN_BYTES : end * TOKEN_BYTES]))
            if end == (index + 1) * size:
                self._pool.register(sequence.blocks[index], sequence.hashes[index])
        if sequence.computed >= sequence.tokens:
            self.prefilling.remove(sequence)
            self._run(sequence)
            self._emit(sequence, now)

    def _run(self, sequence: Sequence) -> None:
        """Find its voice in the KV bytes that are really there, and decode from now on."""
        size, tokens = self._config.block_tokens, sequence.prompt_tokens
        whole, rest = divmod(tokens, size)
        parts = [self._pool.read(block) for block in sequence.blocks[:whole]]
        if rest:
            parts.append(self._pool.read(sequence.blocks[whole])[: rest * KV_BYTES])
        sequence.voice = Voice(kv_seed(parts, sequence.choice))
        sequence.voice.skip(len(sequence.words))
        sequence.phase = Phase.RUNNING
        self.running.append(sequence)
        self._context_tokens += sequence.tokens

    def _seal(self, sequence: Sequence) -> None:
        """A block has been filled with generated tokens: write its KV behind what the prompt left in it, and let others find it."""
        size = self._config.block_tokens
        index = sequence.tokens // size - 1
        block, kept = sequence.blocks[index], max(0, sequence.prompt_tokens - index * size) * KV_BYTES
        parent = sequence.hashes[index - 1] if index else ROOT
        packed = sequence.packed_from(index * size)
        fresh = block_kv(parent, packed)
        self._pool.write(block, self._pool.read(block)[:kept] + fresh[kept:] if kept else fresh)
        if index == len(sequence.hashes):
            sequence.hashes += chain_hashes(packed, size, parent)
        self._pool.register(block, sequence.hashes[index])

    def _grow(self, sequence: Sequence) -> bool:
        """One more block; when there is none the youngest sequence is set back, be it this one."""
        while (fresh := self._pool.allocate(1)) is None:
            victim = self.running[-1]
            self.running.pop()
            self._context_tokens -= victim.tokens
            self._set_back(victim)
            self._metrics.preemptions += 1
            self.waiting.appendleft(victim)
            if victim is sequence:
                return False
        sequence.blocks += fresh
        return True

    def _set_back(self, sequence: Sequence) -> None:
        if sequence.phase is Phase.FETCHING:
            self.fetching -= 1
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._pool.release(sequence.blocks)
        sequence.blocks, sequence.computed, sequence.phase = [], 0, Phase.WAITING

    def _complete(self, sequence: Sequence, finish: Finish, now: float) -> None:
        self.running.remove(sequence)
        self._context_tokens -= sequence.tokens
        sequence.phase = Phase.DONE
        self._count(sequence, finish, now)
        if sequence.keep_kv:
            self._on_keep(sequence)
        else:
            self._pool.release(sequence.blocks)
        sequence.blocks = []

    def _remove(self, sequence: Sequence) -> None:
        if sequence.phase is Phase.WAITING and sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence.phase is Phase.FETCHING:
            self.fetching -= 1
        elif sequence.phase is Phase.PREFILLING:
            self.prefilling.remove(sequence)
        elif sequence.phase is Phase.RUNNING:
            self.running.remove(sequence)
            self._context_tokens -= sequence.tokens
        sequence.phase = Phase.DONE
        self._pool.release(sequence.blocks)
        sequence.blocks = []

    def _count(self, sequence: Sequence, finish: Finish, now: float) -> None:
        metrics, prompt, said = self._metrics, sequence.prompt_tokens, len(sequence.words)
        external = prompt - sequence.cached if sequence.remote is not None else 0
        metrics.finished[finish.value] += 1
        metrics.prompt_tokens += prompt
        metrics.prompt_tokens_cached += sequence.cached + external
        metrics.prompt_tokens_by_source["local_cache_hit"] += sequence.cached
        metrics.prompt_tokens_by_source["external_kv_transfer"] += external
        metrics.prompt_tokens_by_source["local_compute"] += prompt - sequence.cached - external
        metrics.request_prompt.observe(prompt)
        metrics.request_generation.observe(said)
        metrics.request_computed.observe(prompt - sequence.cached - external)
        metrics.request_max_tokens.observe(sequence.max_tokens)
        metrics.e2e.observe(now - sequence.arrived_s)
        metrics.queue_time.observe(sequence.admitted_s - sequence.arrived_s)
        metrics.inference_time.observe(now - sequence.admitted_s)
        metrics.prefill_time.observe(sequence.first_token_s - sequence.admitted_s)
        metrics.decode_time.observe(now - sequence.first_token_s)
        if said > 1:
            metrics.time_per_token.observe((now - sequence.first_token_s) / (said - 1))
