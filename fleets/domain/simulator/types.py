"""What a simulation is told, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from fleets.domain.hardware import GpuKind
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.timing import UNCALIBRATED, Calibration, memory_fit
from fleets.domain.types import PREFILL_TOKENS, ModelShape, Role

BLOCK_TOKENS = 512  # of the prompt blocks that a trace names; Mooncake's


class Draws(Protocol):
    """Random numbers; `random.Random` is one. Handed in, so that a run can be repeated."""

    def random(self) -> float:
        """Uniform in [0, 1)."""

    def expovariate(self, lambd: float) -> float:
        """Exponential with rate `lambd`."""

    def gammavariate(self, alpha: float, beta: float) -> float:
        """Gamma with mean `alpha * beta`."""

    def lognormvariate(self, mu: float, sigma: float) -> float:
        """Log-normal: exp of a normal with mean `mu` and deviation `sigma`."""


@dataclass(slots=True)
class Arrival:
    """One request. `blocks` name its prompt in blocks of 512 tokens, equal ids for equal prefixes.

    Without `blocks`, `shared_tokens` of the prompt are a prefix that every replica has held all along.
    Not frozen: a million are made, and a frozen one takes three times as long.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PoolShape:
    """One role's replicas in each unit, as their engines run. `kv_tokens` None: what the GPUs' memory has room for."""

    role: Role
    replicas: int
    gpus: int  # of one replica
    max_sequences: int = 256
    max_batched_tokens: int = 8192  # of one step
    kv_tokens: int | None = None
    block_tokens: int = 64  # KV is given out in blocks of so many tokens


@dataclass(frozen=True, slots=True)
class StageShape:
    """What serves: `units` alike, each with prefill and decode pools or one aggregated pool."""

    model: ModelShape
    gpu: GpuKind
    units: int
    pools: tuple[PoolShape, ...]
    conditional: ConditionalPolicy = field(default_factory=ConditionalPolicy)
    same_domain: bool = True  # prefill and decode of a unit share a scale-up fabric
    calibration: Calibration = UNCALIBRATED

    @property
    def gpus(self) -> int:
        """GPUs of all units."""
        return self.units * sum(pool.gpus * pool.replicas for pool in self.pools)

    @property
    def text(self) -> str:
        """`2 units of 2P1D`."""
        shape = "".join(f"{pool.replicas}{pool.role.value[0].upper()}" for pool in self.pools)
        return f"{self.units} unit{'s' if self.units != 1 else ''} of {shape}"

    def kv_tokens(self, pool: PoolShape) -> int:
        """KV that one replica of a pool has room for, in tokens."""
        return memory_fit(self.model, self.gpu, pool.gpus, role=pool.role).kv_tokens if pool.kv_tokens is None else pool.kv_tokens


@dataclass(frozen=True, slots=True)
class RouterShape:
    """The router's bounds, with its own defaults; `hop_s` is what a request spends in it for each leg."""

    prefill_inflight: int = 16
    prefill_tokens: int = PREFILL_TOKENS  # a prefill replica with so many to compute gets no more
    queue_limit: int = 512
    queue_deadline_s: float = 30.0
    gauge_every_s: float = 1.0
    hop_s: float = 0.0005


@dataclass(frozen=True, slots=True)
class Failure:
    """One replica that dies at `at_s`, loses its KV, and is back after `down_s`."""

    at_s: float
    unit: int
    role: Role
    ordinal: int
    down_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What a user is promised, at the 99th percentile. None: no such limit."""

    ttft_s: float | None = None
    itl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """How to simulate: `warm_batch` sequences are already being decoded on each replica, for a start in the steady state."""

    limits: Limits = field(default_factory=Limits)
    router: RouterShape = field(default_factory=RouterShape)
    failures: Sequence[Failure] = ()
    warm_batch: int = 0
    warm_input_tokens: int = 0
    warm_output_tokens: int = 0


class Phase(StrEnum):
    """The parts of TTFT."""

    QUEUE = "queue"  # in the router and in the engine, until prefill starts
    PREFILL = "prefill"
    TRANSFER = "kv"  # from the end of prefill until decode holds the KV
    FIRST_STEP = "first-step"  # decode's first step


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds, to within 1%; None without a sample."""

    n: int
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How busy one role's replicas were. `busy_ratio` of time; `kv_ratio_max` of one replica's memory."""

    role: Role
    replicas: int
    busy_ratio: float
    kv_ratio_max: float
    batch_mean: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class Result:
    """What users would have seen. Ratios are of the requests that arrived."""

    requests: int
    completed: int
    rejected: int  # 429: the prefill queue was full, or the wait in it too long
    failed: int
    span_s: float
    input_tokens: int
    output_tokens: int
    ttft: Quantiles
    itl: Quantiles
    tpot: Quantiles  # one value a request
    e2e: Quantiles
    phases_mean_s: dict[str, float]
    reasons: dict[str, int]
    cached_ratio: float  # of prompt tokens
    goodput_ratio: float  # requests within both limits: TTFT, and mean gap within `itl_s`
    kv_bytes_moved: float
    pools: tuple[PoolUse, ...]

    @property
    def output_tokens_per_s(self) -> float:
        """Over the whole span."""
        return self.output_tokens / self.span_s if self.span_s else 0.0

    def meets(self, limits: Limits) -> bool:
        """Every request answered, and both p99 within their limits. Missing either by a hair is missing it."""
        if self.completed < self.requests:
            return False
        pairs = ((self.ttft.p99_s, limits.ttft_s), (self.itl.p99_s, limits.itl_s))
        return all(limit is None or (value is not None and value <= limit) for value, limit in pairs)
