"""The simulated engine's own scheduler on a clock that jumps from event to event: real code, real KV bytes, no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleets.domain.hardware import GPUS
from fleets.domain.simulator.types import Arrival
from fleets.domain.timing import kv_transfer_s
from fleets.domain.types import Role
from fleets.engines.sim.config import Config
from fleets.engines.sim.faults import FaultBox
from fleets.engines.sim.metrics import Metrics
from fleets.engines.sim.pool import KvPool
from fleets.engines.sim.scheduler import Scheduler
from fleets.engines.sim.sequence import Finish, Remote
from fleets.engines.sim.sequence import Sequence as Running
from fleets.engines.sim.tokens import TOKEN_BYTES

BEGIN_S = 1000.0  # an engine takes a step that ended at 0 for none


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time stands still while something can be done, and then jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = BEGIN_S

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]  # asyncio's own, untyped
            self._now_s = max(self._now_s, self._scheduled[0]._when)  # type: ignore[attr-defined]  # asyncio's own, untyped
        super()._run_once()  # type: ignore[misc]  # asyncio's own, untyped


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end on a virtual clock."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


@dataclass
class Seen:
    """What clients saw."""

    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    preemptions: int = 0


class _Sink:
    """Notes the tokens of one request."""

    def __init__(self, stage: VirtualStage, arrival: Arrival, serial: int) -> None:
        self.stage, self.arrival, self.serial = stage, arrival, serial
        self.last_s: float | None = None

    def kv_ready(self, sequence: Running) -> None:
        """Nothing to do."""

    def failed(self, sequence: Running, detail: str) -> None:
        raise AssertionError(detail)

    def token(self, sequence: Running, word: int, finish: Finish | None) -> bool:
        if sequence.keep_kv:
            return False
        now_s = self.stage.loop.time()
        if self.last_s is None:
            self.stage.seen.ttft_s.append(now_s - BEGIN_S - self.arrival.at_s)
        else:
            self.stage.seen.gaps_s.append(now_s - self.last_s)
        self.last_s = now_s
        if finish is not None:
            self.stage.finished()
        return False


class VirtualStage:
    """One aggregated scheduler, or one of prefill and one of decode; every request goes through all that there are."""

    def __init__(self, configs: Sequence[Config], arrivals: Sequence[Arrival]) -> None:
        self.loop = asyncio.get_running_loop()
        self.seen, self._left, self._done = Seen(), len(arrivals), self.loop.create_future()
        self._decode_config = configs[-1]
        self._metrics = [Metrics() for _ in configs]
        self._pools = [
            KvPool(blocks=c.kv_blocks, block_tokens=c.block_tokens, tensor_parallel=1, caching=c.prefix_caching) for c in configs
        ]
        self._schedulers = [self._scheduler(*parts) for parts in zip(configs, self._pools, self._metrics, strict=True)]
        self._leases: dict[int, list[int]] = {}
        for serial, arrival in enumerate(arrivals):
            self.loop.call_at(BEGIN_S + arrival.at_s, self._arrive, arrival, serial)

    def _scheduler(self, config: Config, pool: KvPool, metrics: Metrics) -> Scheduler:
        return Scheduler(
            config, pool, FaultBox(config.faults), metrics, clock=self.loop.time, on_fetch=self._fetch, on_keep=self._hand_over
        )

    def _sequence(self, sink: _Sink, **fields: Any) -> Running:
        packed = b"".join((sink.serial * 100_003 + index).to_bytes(TOKEN_BYTES, "little") for index in range(sink.arrival.input_tokens))
        return Running(sink=sink, packed=packed, block_tokens=self._decode_config.block_tokens, ignore_eos=True, **fields)

    def _arrive(self, arrival: Arrival, serial: int) -> None:
        apart = len(self._schedulers) == 2
        sink = _Sink(self, arrival, serial)
        self._schedulers[0].add(self._sequence(sink, max_tokens=1 if apart else arrival.output_tokens, keep_kv=apart))

    def _hand_over(self, sequence: Running) -> None:
        """Prefill is done: on to decode, which fetches."""
        sink = sequence.sink
        assert isinstance(sink, _Sink)
        self._leases[sink.serial] = sequence.blocks
        remote = Remote("", 0, "", str(sink.serial), tuple(sequence.blocks), sequence.prompt_tokens, 1, 0)
        self._schedulers[1].add(self._sequence(sink, max_tokens=sink.arrival.output_tokens, remote=remote))

    def _fetch(self, sequence: Running) -> None:
        config = self._decode_config
        seconds = kv_transfer_s(sequence.prompt_tokens * config.shape.kv_bytes_per_token, GPUS[config.gpu_kind], True)
        self.loop.call_later(seconds, self._fetched, sequence)

    def _fetched(self, sequence: Running) -> None:
        sink = sequence.sink
        assert isinstance(sink, _Sink)
        self._pools[0].release(self._leases.pop(sink.serial))
        self._schedulers[0].wake()
        self._schedulers[1].kv_arrived(sequence)

    def finished(self) -> None:
        """One request has its last token."""
        self._left -= 1
        if not self._left:
            self._done.set_result(None)

    async def end(self) -> Seen:
        """Until all are answered."""
        await self._done
        self.seen.preemptions = sum(metrics.preemptions for metrics in self._metrics)
        return self.seen


def engine_sees(roles: Sequence[Role], arrivals: Sequence[Arrival], **fields: Any) -> Seen:
    """What the simulated engine makes of the arrivals; `fields` are its configuration."""
    found: list[Seen] = []

    async def work() -> None:
        configs = [Config(role=role, **fields) for role in roles]
        found.append(await VirtualStage(configs, arrivals).end())

    run_virtually(work())
    return found[0]
