"""What the fleets app answers with: the same values feed rollouts, pages, API and command."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fleets.domain.allowance import Allowance
from fleets.domain.types import NodeState, RankState, Role


class ReplicaState(StrEnum):
    """A replica as a whole, from the reports on its ranks."""

    PENDING = "pending"  # no agent has taken it up yet
    STARTING = "starting"  # at least one rank is not ready
    READY = "ready"  # every rank is ready and its node is not lost
    DRAINING = "draining"  # it finishes what it has
    FAILED = "failed"  # a rank gave up, or a deadline passed
    UNKNOWN = "unknown"  # its node is silent
    GONE = "gone"  # all ranks have stopped


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank and where it is."""

    rank_id: str
    index: int
    node: str
    gpus: tuple[int, ...]
    state: RankState | None  # None: not reported yet
    restarts: int
    detail: str


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica."""

    replica: str
    role: Role
    ordinal: int
    release: str
    generation: str
    state: ReplicaState
    detail: str  # the reason when it is not ready
    gauges: dict[str, float]  # of its engine: kv_use, running, waiting
    ranks: tuple[RankView, ...]


@dataclass(frozen=True, slots=True)
class PoolView:
    """The replicas of one role of a unit."""

    role: Role
    gpus: int
    desired: int
    ready: int
    replicas: tuple[ReplicaView, ...]


@dataclass(frozen=True, slots=True)
class UnitView:
    """One serving unit. Ready: every pool has at least one ready replica. Complete: every desired replica is ready."""

    unit: str
    slot: int  # unit 1, 2, ... of the stage, as people number them
    stage: str
    release: str
    shape: str  # `2P1D`
    gpus: int
    fleet: str
    domain: str
    stopping: bool  # it was told to drain or stop
    ready: bool
    complete: bool
    probed: bool  # a real request through a router to this very unit succeeded since its last change
    routable: bool
    failed: bool  # a replica gave up
    detail: str
    inflight: int  # requests, over all routers
    weight_seen: float | None  # its share of the traffic by the routers' tables, 0 to 1; None if no router speaks
    pools: tuple[PoolView, ...]
    leaving: str = ""  # why it is to be replaced elsewhere although it serves: a node of it is being drained


@dataclass(frozen=True, slots=True)
class UnitHead:
    """What lists of hundreds of stages want to know of a unit; the words are UnitView's."""

    unit: str
    slot: int
    stage: str
    release: str
    stopping: bool
    ready: bool
    complete: bool
    routable: bool
    detail: str


@dataclass(frozen=True, slots=True)
class RoutersView:
    """What the routers of a stage have confirmed."""

    stage: str
    generation: int  # wanted
    confirmed: int  # the lowest that a live router has in force; 0 without a live router
    live: int
    urls: tuple[str, ...]
    weights: dict[str, int]  # wanted, basis points by release
    inflight: dict[str, int]  # by release


@dataclass(frozen=True, slots=True)
class GpuCell:
    """One cell of a domain's map."""

    index: int
    state: str  # `free`, `used`, `broken`, `foreign`
    stage: str = ""
    unit: str = ""
    slot: int = 0
    role: Role | None = None
    ordinal: int = 0
    release: str = ""
    first: bool = False  # the first GPU of its replica, where the map writes `P1`
    trouble: str = ""  # why it may not be given out, whether it is in use or not


@dataclass(frozen=True, slots=True)
class NodeMap:
    """One column of a domain's map."""

    node: str
    state: NodeState
    cordoned: bool
    last_report_at: datetime | None
    cells: tuple[GpuCell, ...]
    draining: bool = False  # its units are being replaced elsewhere
    cordon_reason: str = ""
    troubles: tuple[str, ...] = ()  # of its GPUs, `GPU 2 is broken: Xid 79 (fell off the bus)`
    driver: str = ""  # `580.95.05, CUDA 13.0`
    gpu_memory_bytes: int = 0  # of one GPU; 0: unknown


@dataclass(frozen=True, slots=True)
class DomainMap:
    """One domain."""

    domain: str
    size: int
    free: int
    nodes: tuple[NodeMap, ...]


@dataclass(frozen=True, slots=True)
class FleetMap:
    """A whole fleet, for its page and `denv fleets`."""

    fleet: str
    gpu_kind: str
    simulated: bool
    gpus: int
    free: int
    nodes: int
    nodes_silent: int
    frozen: str  # the sentence when healing is frozen because too many nodes went silent at once
    domains: tuple[DomainMap, ...]


@dataclass(frozen=True, slots=True)
class FleetHead:
    """A fleet without its domains."""

    fleet: str
    simulated: bool
    nodes: int
    nodes_silent: int
    frozen: str  # as FleetMap's


@dataclass(frozen=True, slots=True)
class LogSource:
    """One rank whose log is read."""

    ask: str
    node: str
    role: Role
    ordinal: int
    rank: int  # 0 leads
    unit: int  # slot
    silent_s: float | None  # since its node's last report, when that is late


@dataclass(frozen=True, slots=True)
class LogLines:
    """Whole lines of one rank's log, or in `note` why there are none or some are missing."""

    unit: int
    role: Role
    ordinal: int
    rank: int
    node: str
    text: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class SecretView:
    """A stored secret, without its value: nobody reads that again."""

    name: str
    model: str  # whose releases may name it, or `*`
    version: int  # how often it was set
    set_by: str
    set_at: datetime
    used_by: tuple[str, ...] = ()  # stages whose units name it


@dataclass(frozen=True, slots=True)
class JoinTokenView:
    """A join token, shown this once."""

    token: str
    fleet: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """One node as it stands, without its cells."""

    node: str
    fleet: str
    domain: str
    state: NodeState
    cordoned: bool
    draining: bool
    reason: str  # of the cordon
    gpus: int
    used: int  # GPUs that units hold
    troubles: tuple[str, ...] = ()  # of its GPUs, `GPU 2 is broken: Xid 79 (fell off the bus)`
    driver: str = ""  # `580.95.05, CUDA 13.0`
    gpu_memory_bytes: int = 0  # of one GPU; 0: unknown
    free: int = 0  # GPUs that no unit holds and that may be given out
    last_report_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ApiKeyView:
    """A key that clients of a stage send, without its secret."""

    id: str
    client: str
    allowance: Allowance
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The keys of a stage; `required`: requests without one are refused."""

    stage: str
    required: bool
    results: tuple[ApiKeyView, ...]


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A key's text, shown this once."""

    text: str
    key: ApiKeyView
