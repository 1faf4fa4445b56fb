"""What sizing is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleets.domain.hardware import GpuKind
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.simulator.arrivals import Process
from fleets.domain.simulator.types import Arrival, Draws, Limits, Result, StageShape
from fleets.domain.timing import UNCALIBRATED, Calibration
from fleets.domain.types import ModelShape, Role

MakeDraws = Callable[[int], Draws]  # seed -> random numbers


@dataclass(frozen=True, slots=True)
class RoleBounds:
    """What a recipe asks of one role's replicas. `gpus_step` 0: powers of two."""

    min_gpus: int = 1
    max_gpus: int = 1024
    max_batched_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Serving:
    """A model on a GPU kind, and what its recipe allows. `disaggregates` is empty when it can; else the reason."""

    model: ModelShape
    gpu: GpuKind
    roles: Mapping[Role, RoleBounds]
    cannot_disaggregate: str = ""
    hetero_tensor_parallel: bool = True
    conditional: ConditionalPolicy = field(default_factory=ConditionalPolicy)
    calibration: Calibration = UNCALIBRATED
    domain_gpus: int = 0  # 0: the GPU kind's usual one

    @property
    def domain(self) -> int:
        """GPUs that a serving unit can have in one scale-up domain."""
        return self.domain_gpus or self.gpu.domain_gpus


@dataclass(frozen=True, slots=True)
class Need:
    """The traffic and what it is promised. With `arrivals` a trace is played as it is; `process` then is what was fitted to it."""

    process: Process
    limits: Limits
    arrivals: Sequence[Arrival] = ()
    requests: int | None = None  # that one simulation draws; None: enough for a p99 that can be relied on

    @property
    def tokens_per_day(self) -> float:
        """Prompt and output tokens."""
        return self.process.rate_per_s * (self.process.input_tokens + self.process.output_tokens) * 86_400


@dataclass(frozen=True, slots=True)
class Span:
    """A predicted figure in seconds, and what it becomes at both ends of the timing model's interval (`interval.py`)."""

    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What users would see, by simulation."""

    ttft_p50: Span
    ttft_p99: Span
    itl_p50: Span
    itl_p99: Span
    goodput_ratio: float  # requests within both limits
    goodput_per_gpu_s: float  # of them, for each GPU and second
    output_tokens_per_gpu_s: float
    meets: bool
    rejected_ratio: float
    result: Result


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool of the answer. `load_ratio` is its load over what it could carry within the limits, 1 at its bound."""

    role: Role
    replicas: int  # of one unit
    gpus: int  # of one replica
    max_sequences: int
    max_batched_tokens: int
    carries_per_s: float | None  # requests of the whole stage that its replicas could take; None: as many as come
    load_ratio: float


@dataclass(frozen=True, slots=True)
class KvNeed:
    """KV on its way from prefill to decode, bytes/s for one prefill replica: on average, while it computes, and what links give."""

    mean_bytes_per_s: float
    burst_bytes_per_s: float
    fabric_bytes_per_s: float
    network_bytes_per_s: float

    @property
    def fits_fabric(self) -> bool:
        """Whether the fabric keeps up with a prefill replica at full speed."""
        return self.burst_bytes_per_s <= self.fabric_bytes_per_s


@dataclass(frozen=True, slots=True)
class Cost:
    """Money, in the currency of the GPU price."""

    per_hour: float
    per_million_output_tokens: float
    per_million_tokens: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer of `denv size`."""

    shape: StageShape
    pools: tuple[PoolPlan, ...]
    gpus: int
    bottleneck: Role
    why: str
    forecast: Forecast
    kv: KvNeed | None
    local_prefill_below: int | None  # break-even: None for an aggregated shape
    cost: Cost | None
    notes: tuple[str, ...] = ()
