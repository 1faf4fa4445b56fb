"""The `topology` section, of a release and as a stage's changes to it."""

from __future__ import annotations

from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.types import PlacementRule
from releases.domain.spec_reader import Section, choice, count_range, whole
from releases.domain.spec_types import Mode, PoolTopology, Topology

MOST_GPUS = 4096
MOST_REPLICAS = 1024
_read_gpus = whole("a number of GPUs", 1, MOST_GPUS)
_read_replicas = count_range("a number of replicas", MOST_REPLICAS)
_POOL_EXAMPLE = "`{ gpus: 8, replicas: 1 }`"


def read_topology(section: Section, base: Topology | None = None) -> Topology | None:
    """The shape of a unit; keys that are not written come from `base`. None after a mistake that leaves no shape."""
    aggregated = any(section.has(key) for key in ("aggregated", "gpus", "replicas"))
    default_mode = Mode.AGGREGATED if aggregated else base.mode if base else Mode.DISAGGREGATED
    mode = section.take("mode", choice(Mode), default_mode)
    if base is not None and base.mode is not mode:
        base = None
    read = _disaggregated if mode is Mode.DISAGGREGATED else _aggregated
    topology = read(section, base)
    section.finish()
    return topology


def _disaggregated(section: Section, base: Topology | None) -> Topology | None:
    prefill = _pool_below(section, "prefill", base.prefill if base else None)
    decode = _pool_below(section, "decode", base.decode if base else None)
    placement = section.take("placement", choice(PlacementRule), base.placement if base else PlacementRule.SAME_DOMAIN)
    conditional = _conditional(section.section("conditional"), base.conditional if base else ConditionalPolicy())
    if prefill is None or decode is None:
        return None
    return Topology(Mode.DISAGGREGATED, prefill=prefill, decode=decode, placement=placement, conditional=conditional)


def _aggregated(section: Section, base: Topology | None) -> Topology | None:
    """Both `{ mode: aggregated, gpus: 8, replicas: 1 }` and `aggregated: { gpus: 8, replicas: 1 }` are read."""
    old = base.aggregated if base else None
    below = section.section("aggregated")
    pool = _pool(below, old) if below else _pool(section, old, is_own=False)
    placement = section.take("placement", choice(PlacementRule), base.placement if base else PlacementRule.SAME_DOMAIN)
    return Topology(Mode.AGGREGATED, aggregated=pool, placement=placement) if pool else None


def _pool_below(section: Section, key: str, base: PoolTopology | None) -> PoolTopology | None:
    below = section.section(key, missing="" if base else f"this pool is missing; write it as {_POOL_EXAMPLE}")
    return _pool(below, base) if below else base


def _pool(section: Section, base: PoolTopology | None, is_own: bool = True) -> PoolTopology | None:
    missing = "" if base else "this is missing; say how many GPUs one replica has"
    gpus = section.take("gpus", _read_gpus, base.gpus if base else 0, missing=missing)
    low, high = section.take("replicas", _read_replicas, (base.min_replicas, base.max_replicas) if base else (1, 1))
    if is_own:
        section.finish()
    return PoolTopology(gpus, replicas=low, min_replicas=low, max_replicas=high) if gpus else None


def _conditional(section: Section | None, base: ConditionalPolicy) -> ConditionalPolicy:
    if section is None:
        return base
    below = section.take("local-prefill-below", whole("a number of tokens", 0, 10_000_000), base.local_prefill_below)
    above = section.take("prefill-queue-above", whole("a number of requests", 0, 1_000_000), base.prefill_queue_above)
    section.finish()
    return ConditionalPolicy(local_prefill_below=below, prefill_queue_above=above)
