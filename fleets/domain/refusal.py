"""Why a serving unit does not fit, with the arithmetic and the nearest shape that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from fleets.domain.capacity import FleetRoom, largest_domain, largest_node
from fleets.domain.hardware import GPUS, GpuKind
from fleets.domain.rank_fit import context_tokens
from fleets.domain.timing import MemoryFit, memory_fit
from fleets.domain.types import FleetView, PlacementRule, PoolSpec, UnitPlacement, UnitSpec

Fits = Callable[[UnitSpec, FleetRoom], bool]

_MAX_SHAPES = 400  # looked at for a hint; a pool of hundreds of replicas needs no exhaustive search for one


@dataclass(frozen=True, slots=True)
class Refusal:
    """`code` is stable; the three sentences are for people. `also` are the refusals of the stage's other fleets."""

    code: str
    sentence: str
    arithmetic: str = ""
    fits: str = ""
    fleet: str = ""
    also: tuple[Refusal, ...] = ()
    placed: tuple[UnitPlacement, ...] = ()  # of several units, those that did fit


def refuse(spec: UnitSpec, fleet: FleetView, room: FleetRoom, others: Sequence[FleetRoom], fits: Fits) -> Refusal:
    """The reason why `room` does not take one more unit; `others` are rooms that would take it."""
    code, sentence, arithmetic = _reason(spec, fleet, room)
    return Refusal(code, sentence, arithmetic, _hint(spec, room, others, fits), fleet.name)


def _reason(spec: UnitSpec, fleet: FleetView, room: FleetRoom) -> tuple[str, str, str]:
    need, rule = spec.gpus, spec.placement.value
    if not any(domain.nodes for domain in fleet.domains):
        return "fleet-empty", f"fleet {fleet.name} has no node; serving unit needs {need} GPUs ({rule})", needs(spec)
    domain_size, node_size = largest_domain(fleet), largest_node(fleet)
    if spec.placement is PlacementRule.SAME_DOMAIN and need > domain_size:
        mixed = len({domain.size for domain in fleet.domains}) > 1
        sentence = f"fleet {fleet.name} {'largest ' if mixed else ''}domain is {domain_size} GPUs; serving unit needs {need} ({rule})"
        return "domain-too-small", sentence, f"{needs(spec)}; the largest domain has {domain_size}, short by {need - domain_size}"
    whole = domain_size if fleet.fabric_spans_nodes else node_size
    for pool in spec.pools:
        width = min(pool.gpus, pool.engine.tensor_parallel)
        if width > whole:
            what = "domain" if fleet.fabric_spans_nodes else "node"
            sentence = f"fleet {fleet.name} {what} is {whole} GPUs; {pool.role.value} needs {width} on one {what} (tensor parallelism)"
            return (
                f"tensor-parallel-crosses-{what}",
                sentence,
                f"tensor parallelism {width}; the largest {what} has {whole}, short by {width - whole}",
            )
    return _short(spec, fleet, room)


def _short(spec: UnitSpec, fleet: FleetView, room: FleetRoom) -> tuple[str, str, str]:
    """Large enough, but too little of it is free."""
    need, rule = spec.gpus, spec.placement.value
    aside = "".join(f"; {part}" for part in _not_given_out(room))
    if spec.placement is PlacementRule.SAME_DOMAIN:
        best = max(room.free_by_domain)
        sentence = f"fleet {fleet.name} has no domain with {need} GPUs free; serving unit needs {need} ({rule})"
        if best >= need:
            width = max(min(pool.gpus, pool.engine.tensor_parallel) for pool in spec.pools)
            sentence = (
                f"fleet {fleet.name} has no domain with nodes free enough; serving unit needs {need} ({rule}), {width} of them on one node"
            )
        have = f"the freest of {_count(len(room.free_by_domain), 'domain')} has {best}"
        return "no-free-domain", sentence, f"{needs(spec)}; {have}{_by(need - best)}{aside}"
    free = room.free
    sentence = f"fleet {fleet.name} has {free} GPUs free; serving unit needs {need} ({rule})"
    return "not-enough-gpus", sentence, f"{needs(spec)}; {free} are free{_by(need - free) or ', but scattered over nodes'}{aside}"


def _not_given_out(room: FleetRoom) -> Iterator[str]:
    """What the fleet has and may not give out."""
    if out := room.out:
        yield f"{_count(out, 'node')} {'is' if out == 1 else 'are'} silent or cordoned"
    if broken := room.broken:
        yield f"{_count(broken, 'GPU')} {'is' if broken == 1 else 'are'} broken"
    if foreign := room.foreign:
        yield f"{_count(foreign, 'GPU')} {'is' if foreign == 1 else 'are'} held by processes that are not denv's"


def _by(short: int) -> str:
    return f", short by {short}" if short > 0 else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def needs(spec: UnitSpec) -> str:
    """`2 prefill x 4 + 1 decode x 64 = 72`."""
    return " + ".join(f"{pool.replicas} {pool.role.value} x {pool.gpus}" for pool in spec.pools) + f" = {spec.gpus}"


def _hint(spec: UnitSpec, room: FleetRoom, others: Sequence[FleetRoom], fits: Fits) -> str:
    hints = []
    nearest = next((shape for shape in _fewer_replicas(spec) if memory_holds(shape, room.gpu_kind) and fits(shape, room)), None)
    if nearest:
        hints.append(f"{nearest.shape} in {room.name}")
    else:
        nearest = next((shape for shape in _fewer_gpus(spec) if memory_holds(shape, room.gpu_kind) and fits(shape, room)), None)
        if nearest:
            hints.append(f"{nearest.shape} of {' + '.join(str(pool.gpus) for pool in nearest.pools)} GPUs in {room.name}")
    for other in (other for other in others if memory_holds(spec, other.gpu_kind)):
        holes = other.holes(spec.gpus)
        where = f" ({_count(len(holes), 'domain')} of {min(size for _, _, size in holes)} free)" if holes else ""
        hints.append(f"this shape in {other.name}{where}")
    return "; ".join(hints)


def memory_holds(shape: UnitSpec, gpu_kind: str) -> bool:
    """Whether the model sits in the memory of each replica: no hint names what a dry run would refuse next. Unknown kinds hold all."""
    kind = GPUS.get(gpu_kind)
    return kind is None or all(pool_fit(pool, kind).fits for pool in shape.pools)


def pool_fit(pool: PoolSpec, kind: GpuKind) -> MemoryFit:
    """How a pool's model sits in one replica, with room for one sequence of the length that its engine takes."""
    return memory_fit(pool.engine.shape, kind, pool.gpus, role=pool.role, wanted_kv_tokens=context_tokens(pool.engine))


def _with(spec: UnitSpec, pools: Sequence[PoolSpec]) -> UnitSpec:
    return replace(spec, pools=tuple(pools))


def _fewer_replicas(spec: UnitSpec) -> Iterator[UnitSpec]:
    """The same engines, but fewer of them: the nearest to what was asked first."""
    counts = product(*(range(max(1, pool.replicas - 20), pool.replicas + 1) for pool in spec.pools))
    shapes = [_with(spec, [replace(pool, replicas=count) for pool, count in zip(spec.pools, each, strict=True)]) for each in counts]
    return iter(sorted((shape for shape in shapes if shape.gpus < spec.gpus), key=lambda shape: -shape.gpus)[:_MAX_SHAPES])


def _fewer_gpus(spec: UnitSpec) -> Iterator[UnitSpec]:
    """One replica a role, its GPUs halved again and again; a pool that had the larger engines keeps them, or equal ones at last."""
    shapes = []
    for each in product(*(_halves(pool.gpus, pool.min_gpus) for pool in spec.pools)):
        shape = _with(spec, [replace(pool, replicas=1, gpus=gpus) for pool, gpus in zip(spec.pools, each, strict=True)])
        equal = _became_equal(spec, shape)
        if equal is not None:
            shapes.append((equal, -shape.gpus, each, shape))
    return iter([shape for *_, shape in sorted(shapes, key=lambda one: one[:3])][:_MAX_SHAPES])


def _halves(gpus: int, least: int) -> list[int]:
    sizes = [gpus]
    while sizes[-1] % 2 == 0 and sizes[-1] // 2 >= least:
        sizes.append(sizes[-1] // 2)
    return sizes


def _became_equal(spec: UnitSpec, shape: UnitSpec) -> bool | None:
    """Whether pools of different sizes became equal; None when the larger one became the smaller."""
    pairs = [(a, b) for a in range(len(spec.pools)) for b in range(len(spec.pools)) if spec.pools[a].gpus < spec.pools[b].gpus]
    if any(shape.pools[a].gpus > shape.pools[b].gpus for a, b in pairs):
        return None
    return any(shape.pools[a].gpus == shape.pools[b].gpus for a, b in pairs)
