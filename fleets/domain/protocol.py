"""What agents, routers and the control plane say to each other. Every message stands alone: losing one costs seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fleets.domain.allowance import Allowance
from fleets.domain.types import KV_LEASE_S, PREFILL_TOKENS, EngineSpec, RankDesired, RankState, Role
from metrics.domain.types import AlarmSpec, SeriesDelta

PROTOCOL_VERSION = 1


# ---- agent: POST /agent/v1/join, then POST /agent/v1/sync every few seconds and on each poke ----


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU of a node."""

    index: int
    healthy: bool = True
    foreign_bytes: int = 0  # memory held by processes that are not denv's
    detail: str = ""
    unsure: bool = False  # its driver does not answer: it takes nothing new, but what serves there may well go on


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node is, said once when it joins and again when it changes."""

    name: str
    fleet: str
    domain: str  # the fabric's name within the fleet, `d01`
    gpu_kind: str
    gpus: int
    host: str  # where its engines can be reached
    port_base: int
    port_count: int
    simulated: bool = False
    fabric_spans_nodes: bool = True
    agent_version: str = ""
    gpu_memory_bytes: int = 0  # of one GPU; 0: its driver does not say
    driver_version: str = ""
    cuda_version: str = ""  # the newest that the driver runs
    launch_name: str = ""  # what its cluster manager calls the node; empty: as denv does


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Turns a join token into a node's own credential. One token may join the nodes of one agent process."""

    token: str
    nodes: tuple[NodeFacts, ...]
    key: str = ""  # random, and the same when the agent asks again because no answer came
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class JoinReply:
    """`id.secret` credentials by node name."""

    credentials: dict[str, str]


@dataclass(frozen=True, slots=True)
class Poke:
    """On the socket. From an agent, once: the nodes that it stands for. To it: those of them that should look again; none: all."""

    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One rank as its node's agent should have it. `rank_id` names this very placement; a new place is a new id."""

    rank_id: str
    replica: str
    unit: str
    stage: str
    release: str
    role: Role
    index: int  # 0 leads
    count: int  # ranks of the replica
    gpus: tuple[int, ...]
    port: int  # HTTP of rank 0; port + 1 is its KV side channel, port + 2 the gang's meeting point
    leader_host: str
    leader_port: int  # rank 0's `port`
    gpu_kind: str
    desired: RankDesired
    engine: EngineSpec
    start_deadline_s: float = 600.0
    drain_deadline_s: float = 120.0
    host: str = ""  # this rank's own node; empty: the leader's
    hung_engine: str = ""  # the process with this engine id was seen to hang, and is to be replaced

    @property
    def own_host(self) -> str:
        """Where this rank's own node can be reached."""
        return self.host or self.leader_host


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank as it is. `gauges` are the engine's own: `kv_use`, `running`, `waiting`, `prefix_hit`, ..."""

    rank_id: str
    state: RankState
    pid: int = 0
    engine_id: str = ""  # changes with every start of the process
    restarts: int = 0
    since_s: float = 0.0  # seconds in this state
    detail: str = ""  # the reason in a sentence; for a dead one its last log lines
    hung_engine: str = ""  # the last process that was ended because it hung
    hung_why: str = ""  # and how that was seen
    gauges: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentReport:
    """One node's whole state."""

    node: str
    boot: str  # changes when the agent process starts; two at once under one node are told apart by it
    observed_generation: int  # of the last snapshot acted on
    clock_at: float  # seconds since the epoch by the node's clock, to see how far it is off
    facts: NodeFacts | None = None
    gpus: tuple[GpuReport, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    version: int = PROTOCOL_VERSION
    succeeds: str = ""  # the boot whose state folder this process took over, under its lock: that one is dead


@dataclass(frozen=True, slots=True)
class LogAsk:
    """Somebody reads a rank's log: its agent sends it from `position` on, or what the ask says of the beginning."""

    ask: str
    rank_id: str
    follow: bool
    position: int | None = None  # where the last piece ended; None: nothing was sent yet
    tail_lines: int = 200
    since_at: float | None = None  # seconds since the epoch; instead of a number of lines


@dataclass(frozen=True, slots=True)
class LogPiece:
    """POST /agent/v1/logs: whole lines of a log, known secrets left out. Positions count the bytes of all its files."""

    ask: str
    start: int
    end: int
    text: str = ""
    done: bool = False  # nothing follows: the ask was not to follow, or there is no such log
    detail: str = ""  # why there is no text


@dataclass(frozen=True, slots=True)
class LogPieceReply:
    """What becomes of the ask."""

    go_on: bool  # False: nobody reads any more
    taken: bool = True  # False: the reader is slow; the same piece again a little later


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """What a node should run. `ranks` is the whole list; with `unchanged` it is left out."""

    node: str
    generation: int
    unchanged: bool = False
    ranks: tuple[RankSpec, ...] = ()
    sync_every_s: float = 4.0
    logs: tuple[LogAsk, ...] = ()  # those that somebody reads now
    secrets: dict[str, str] = field(default_factory=dict)  # values of those that its ranks name, and of no others


# ---- router: GET /router/v1/table?stage=&generation=&wait_s= (long-poll), POST /router/v1/report every second ----


class ReplicaReadiness(StrEnum):
    """What the table says of a replica."""

    READY = "ready"
    DRAINING = "draining"  # finishes what it has, takes nothing new
    SUSPECT = "suspect"  # its node is late: leave it if it also fails from here


@dataclass(frozen=True, slots=True)
class RouteReplica:
    """One engine that the router may send to."""

    replica: str
    role: Role
    release: str
    host: str
    port: int
    readiness: ReplicaReadiness = ReplicaReadiness.READY
    engine_id: str = ""
    tensor_parallel: int = 0  # of a prefill engine that was told to take `engine_id` for its KV identity; 0: it was not
    events_port: int = 0  # where it publishes what its KV cache holds; 0: it does not
    replay_port: int = 0  # where events can be asked for again; 0: nowhere


@dataclass(frozen=True, slots=True)
class RouteUnit:
    """One serving unit. `routable` is false while it drains or is not probed yet; `probe` asks for a real request to it."""

    unit: str
    release: str
    prefill_release: str
    decode_release: str
    compat: str
    routable: bool
    probe: bool
    protocol: str
    replicas: tuple[RouteReplica, ...]
    block_tokens: int = 64
    kv_lease_s: float = KV_LEASE_S  # how long prefill keeps KV that nobody fetches
    tokenizer: str = ""  # that counts its prompts; empty: routers estimate
    prefill_tokens: int = PREFILL_TOKENS  # a prefill replica with so many to compute gets no more; they wait where the order is chosen


@dataclass(frozen=True, slots=True)
class ConditionalPolicy:
    """When decode does its own prefill: uncached tokens below the limit, or a prefill queue over its threshold."""

    local_prefill_below: int = 1000
    prefill_queue_above: int = 64


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that clients of a stage send; only the SHA-256 of its secret is known."""

    id: str
    client: str  # who it was made for
    secret_hash: str
    allowance: Allowance = field(default_factory=Allowance)  # for each router of the stage
    expires_at: float | None = None  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Requests that a router makes itself, so many a second on each of two releases, whenever users make fewer on the first.

    They go the way of everybody's, and are counted as probes: never in users' figures.
    """

    per_s: float
    tokens: int
    prompts: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()  # the new one, and the one that it is compared with


@dataclass(frozen=True, slots=True)
class RouterTable:
    """All that a router of a stage needs. `weights` sum to 10,000 over releases (basis points), or are empty before the first release."""

    stage: str
    model: str
    epoch: int
    generation: int
    weights: dict[str, int] = field(default_factory=dict)
    units: tuple[RouteUnit, ...] = ()
    conditional: ConditionalPolicy = field(default_factory=ConditionalPolicy)
    alarms: tuple[AlarmSpec, ...] = ()
    synthetic: Synthetic | None = None
    keys: tuple[ApiKey, ...] = ()
    keys_required: bool = False  # requests without a key are refused


@dataclass(frozen=True, slots=True)
class UnitGauge:
    """The router's own view of a unit, now."""

    unit: str
    prefill_queue: int = 0
    prefill_inflight: int = 0
    decode_inflight: int = 0
    ejected: tuple[str, ...] = ()  # replicas that this router has taken out
    kv_use: float | None = None  # of the fullest decode replica's KV cache, 0 to 1; None while no engine tells
    hung: dict[str, str] = field(default_factory=dict)  # engine id -> why it is taken for hung


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How the end-to-end request to a unit went; `engines` are the engine ids that answered."""

    unit: str
    ok: bool
    detail: str = ""
    engines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RouterReport:
    """One second of a router. Sent again with the same (`boot`, `seq`) until it is acknowledged, and counted once."""

    router: str
    boot: str
    seq: int
    stage: str
    url: str  # where clients reach it
    table_generation: int  # of the table in force
    at: float  # seconds since the epoch at the end of the window
    series: tuple[SeriesDelta, ...] = ()
    gauges: tuple[UnitGauge, ...] = ()
    probes: tuple[ProbeResult, ...] = ()
    inflight: dict[str, int] = field(default_factory=dict)  # by release
    version: int = PROTOCOL_VERSION
