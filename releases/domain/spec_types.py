"""The spec file as values: what a release asks for, and how its stages take it up."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.types import Faults, PlacementRule, Role
from metrics.domain.types import AlarmSpec


class Mode(StrEnum):
    """How a unit divides the work."""

    DISAGGREGATED = "disaggregated"  # a prefill pool and a decode pool
    AGGREGATED = "aggregated"  # one pool whose replicas do both


class Approval(StrEnum):
    """Who lets a rollout pass its canary."""

    AUTO = "auto"  # the alarms alone decide
    MANUAL = "manual"  # a person does, once the alarms are content


class Scaling(StrEnum):
    """Who moves the numbers of units and replicas inside their ranges."""

    AUTO = "auto"  # the traffic does
    ADVISORY = "advisory"  # what the traffic asks for is shown and written down, and a person does it
    MANUAL = "manual"  # a person alone does


@dataclass(frozen=True, slots=True)
class PoolTopology:
    """One pool as written. `replicas` is what a unit starts with; inside `min_replicas..max_replicas` it changes without a release.

    `replicas: 2` is 2 in all three; `replicas: { min: 1, max: 3 }` starts with 1.
    """

    gpus: int  # of one replica
    replicas: int
    min_replicas: int
    max_replicas: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The shape of one serving unit. Disaggregated has `prefill` and `decode`, aggregated has `aggregated`; the others are None.

    Defaults: `mode: disaggregated`, `placement: same-domain`, `conditional: { local-prefill-below: 1000, prefill-queue-above: 64 }`,
    and `replicas: 1` for a pool.
    """

    mode: Mode
    prefill: PoolTopology | None = None
    decode: PoolTopology | None = None
    aggregated: PoolTopology | None = None
    placement: PlacementRule = PlacementRule.SAME_DOMAIN
    conditional: ConditionalPolicy = field(default_factory=ConditionalPolicy)

    @property
    def pools(self) -> tuple[tuple[Role, PoolTopology], ...]:
        """The pools there are, prefill before decode."""
        named = ((Role.PREFILL, self.prefill), (Role.DECODE, self.decode), (Role.AGGREGATED, self.aggregated))
        return tuple((role, pool) for role, pool in named if pool is not None)

    @property
    def gpus(self) -> int:
        """GPUs of a whole unit, as it starts."""
        return sum(pool.gpus * pool.replicas for _, pool in self.pools)


@dataclass(frozen=True, slots=True)
class KvCacheSpec:
    """The `kv-cache` section; None means that the recipe decides."""

    dtype: str | None = None
    block_tokens: int | None = None
    prefix_caching: bool | None = None
    offload_bytes: int | None = None
    events: bool | None = None


@dataclass(frozen=True, slots=True)
class ReleaseSpec:
    """What should run. `engine_options` are changes to the recipe's engine flags by role, `faults` those of the simulated engine."""

    model: str
    weights: str
    recipe: str
    topology: Topology
    kv_cache: KvCacheSpec = field(default_factory=KvCacheSpec)
    engine_options: dict[Role, dict[str, str]] = field(default_factory=dict)
    faults: dict[Role, Faults] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)  # names of stored secrets by the engines' variable that holds them


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    """Requests that denv makes where users make too few: `per_s` on the new release and as many on the old, of `tokens` each."""

    per_s: float
    prompts: tuple[str, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """How a stage is rolled out. These are the defaults; ratios are of the stage's traffic.

    A hold ends after `hold_s` if every alarm is proved healthy or saw `min_requests` without a breach; after `max_wait_s` without
    that, a person decides. `deadline_s` bounds every phase that waits for machines. The old release's units stay warm for
    `keep_warm_s` after success where GPUs allow.
    """

    canary_ratio: float = 0.10
    steps: tuple[float, ...] = (0.5, 1.0)
    hold_s: float = 600.0
    bake_s: float = 1800.0
    approve: Approval = Approval.AUTO
    keep_warm_s: float = 3600.0
    deadline_s: float = 1800.0
    min_requests: int = 100
    max_wait_s: float = 1800.0
    probe: ProbePolicy | None = None


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage. `topology` is the release's with the stage's own changes already in it; `alarms` are the limits as written."""

    name: str
    fleets: tuple[str, ...]
    replicas: int  # serving units that it starts with; 1 by default
    topology: Topology
    alarms: dict[str, str] = field(default_factory=dict)
    alarm_specs: tuple[AlarmSpec, ...] = ()
    rollout: RolloutPolicy = field(default_factory=RolloutPolicy)
    most_replicas: int | None = None  # serving units under load, `replicas: { min: 1, max: 3 }`; None: always as many as it starts with
    scaling: Scaling = Scaling.AUTO

    @property
    def is_ranged(self) -> bool:
        """Whether any of its numbers may change at run time."""
        return self.most_replicas is not None or any(pool.max_replicas > pool.min_replicas for _, pool in self.topology.pools)


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """A whole spec file without mistakes; `stages` in rollout order, at least one."""

    release: ReleaseSpec
    stages: tuple[StageSpec, ...]

    def stage(self, name: str) -> StageSpec | None:
        """The stage of that name, if the file has it."""
        return next((stage for stage in self.stages if stage.name == name), None)
