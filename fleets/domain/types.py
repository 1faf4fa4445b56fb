"""The nouns of fleets as pure data: what is there, what is asked for, where it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """What a pool's replicas compute."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


class PlacementRule(StrEnum):
    """Where the pools of one serving unit may stand."""

    SAME_DOMAIN = "same-domain"  # all of them inside one scale-up domain
    ANY = "any"  # anywhere in the stage's fleets


class NodeState(StrEnum):
    """What the control plane believes of a node, by its own clock."""

    NEW = "new"  # known, but its agent has not reported yet
    READY = "ready"  # its last report is fresh
    SUSPECT = "suspect"  # its report is over 10 s late
    LOST = "lost"  # its report is over 30 s late; its replicas are replaced


class RankDesired(StrEnum):
    """What an agent should make of a rank."""

    HOLD = "hold"  # keep the GPUs, start nothing: the gang is not complete
    RUN = "run"  # have it running
    DRAIN = "drain"  # take nothing new, finish what is there, stay until told to stop
    STOP = "stop"  # end it


class RankState(StrEnum):
    """What an agent says of a rank."""

    CLAIMED = "claimed"  # the snapshot with it was read, and its GPUs are kept for it
    FETCHING = "fetching"  # the same, while its weights are on their way to the node
    STARTING = "starting"  # the process runs, and is not ready yet
    READY = "ready"  # the engine says that it can serve (a follower: its gang is complete)
    DRAINING = "draining"  # it takes nothing new
    BACKOFF = "backoff"  # it died, and waits for the next try
    FAILED = "failed"  # it died too often in a row; a person or a new release is needed
    STOPPED = "stopped"  # it was asked to end, and has


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The figures of a model that memory and time depend on."""

    layers: int
    hidden: int
    kv_heads: int
    total_params: float
    prefill_active_params: float
    decode_active_params: float
    weight_bytes: float  # of all weights as served, all ranks together
    kv_bytes_per_token: float
    vocab: int = 128_000
    context_tokens: int = 131_072
    attended_tokens: int = 0  # sparse attention looks at no more than this many; 0: at all of them
    prefill_weight_ratio: float = 1.0  # share of the weights that a prefill engine holds; an encoder-decoder needs its encoder only


PREFILL_TOKENS = 8192  # about a step of an engine with the usual batch: it has the next prompt when it ends one, and no queue of its own
KV_LEASE_S = 30.0  # unless the option `kv-lease-s` says otherwise; vLLM's own default
MOONCAKE_LEASE_S = 120.0  # likewise; decode's wait for a prompt to be computed is part of it. vLLM's own default is 480


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of the simulated engine; a real engine refuses them."""

    slow_factor: float = 1.0
    error_ratio: float = 0.0
    hang_ratio: float = 0.0
    crash_after_requests: int | None = None
    kv_fail_ratio: float = 0.0
    kv_corrupt: bool = False
    start_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How one pool's engine is to be started: handed from the release to the agent, unread in between."""

    engine: str  # `vllm`, `sglang`, `trtllm`, `deepinfer` or `sim`
    recipe: str
    model: str  # the name that clients ask for
    weights: str
    protocol: str  # how prefill hands over to decode: `vllm-nixl`, or `none` for aggregated pools
    shape: ModelShape
    tensor_parallel: int
    block_tokens: int = 64
    kv_dtype: str = "auto"
    prefix_caching: bool = True
    options: dict[str, str] = field(default_factory=dict)  # engine flags of the recipe
    faults: Faults = field(default_factory=Faults)
    secrets: dict[str, str] = field(default_factory=dict)  # names of stored secrets by the variable that holds them

    @property
    def kv_lease_s(self) -> float:
        """How long prefill keeps KV that nobody fetches; what is no number is refused where the engine's command is made."""
        default_s = MOONCAKE_LEASE_S if self.protocol == "vllm-mooncake" else KV_LEASE_S
        try:
            return float(self.options.get("kv-lease-s", default_s))
        except ValueError:
            return default_s


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One role of a serving unit. `generation` is the hash of all that makes a replica what it is, its count aside.

    Replicas over `least` came by scaling: for want of room they are waited for, while the unit serves without them.
    """

    role: Role
    gpus: int  # of one replica
    replicas: int
    release: str  # `ds-flash@7`: the release that this pool's generation came with
    generation: str
    engine: EngineSpec
    least: int | None = None  # None: all of them
    min_gpus: int = 1  # of one replica, as its recipe wants: no hint goes below it

    @property
    def needed(self) -> int:
        """Replicas without which the unit counts as failed."""
        return self.replicas if self.least is None else min(self.least, self.replicas)


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """One serving unit as a release asks for it. `compat` is the hash of whatever touches the KV layout."""

    stage: str  # `ds-flash/prod-us`
    model: str
    release: str
    compat: str
    placement: PlacementRule
    pools: tuple[PoolSpec, ...]
    fleets: tuple[str, ...] = ()  # that its stage may use, in order of preference; empty: only the one where it stands
    tokenizer: str = ""  # `hf://org/name@revision` or `file:///path/tokenizer.json`; empty: routers estimate

    @property
    def gpus(self) -> int:
        """GPUs of the whole unit."""
        return sum(pool.gpus * pool.replicas for pool in self.pools)

    @property
    def shape(self) -> str:
        """`2P1D`, or `2A` for aggregated."""
        return "".join(f"{pool.replicas}{pool.role.value[0].upper()}" for pool in self.pools)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as placement sees it; `free` are the indices of healthy GPUs that nobody holds."""

    name: str
    gpus: int
    free: tuple[int, ...]
    state: NodeState = NodeState.READY
    cordoned: bool = False
    unfit: tuple[int, ...] = ()  # broken, or held by processes that are not denv's: not to be given out when they come free
    foreign: tuple[int, ...] = ()  # those of `unfit` that are held by others and not broken

    @property
    def usable(self) -> bool:
        """Whether new ranks may go here."""
        return self.state is NodeState.READY and not self.cordoned


@dataclass(frozen=True, slots=True)
class DomainView:
    """A scale-up domain and its nodes. The two counts are made once: placement looks at those of thousands of domains."""

    name: str  # `gb200-use1/d01`
    nodes: tuple[NodeView, ...]
    size: int = field(init=False, compare=False)  # GPUs that it has, healthy or not
    free: int = field(init=False, compare=False)  # GPUs that could be given out now

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum([node.gpus for node in self.nodes]))
        free = sum([len(node.free) for node in self.nodes if node.state is NodeState.READY and not node.cordoned])
        object.__setattr__(self, "free", free)


@dataclass(frozen=True, slots=True)
class FleetView:
    """A fleet: domains of one GPU kind."""

    name: str
    gpu_kind: str  # `GB200`
    domains: tuple[DomainView, ...]
    fabric_spans_nodes: bool = True  # NVL72: yes. HGX: a domain is one node
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Which GPUs of which node one rank takes."""

    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaPlacement:
    """One replica, its ranks in order; rank 0 leads."""

    role: Role
    ordinal: int
    ranks: tuple[RankPlacement, ...]


@dataclass(frozen=True, slots=True)
class UnitPlacement:
    """Where a whole serving unit stands. `domain` is empty for placement `any` over several domains."""

    fleet: str
    domain: str
    replicas: tuple[ReplicaPlacement, ...]
