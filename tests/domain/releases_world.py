"""What tests of releases start from: the demo's fleets, and the product's release on them."""

from __future__ import annotations

from fleets.domain.placement import Refusal, place_units
from fleets.domain.types import DomainView, FleetView, NodeView, PoolSpec, RankState, ReplicaPlacement, UnitPlacement, UnitSpec
from fleets.domain.views import PoolView, RankView, ReplicaState, ReplicaView, UnitView
from releases.catalog import catalog
from releases.domain.dry_run import StageNow, StageResult, World, check_release, check_stage
from releases.domain.rollout_room import take
from releases.domain.spec import ReleaseFile, parse
from releases.domain.units import unit_spec
from releases.domain.views import FindingView

DS_FLASH = """\
release:
  model: ds-flash
  weights: hf://deepseek-ai/DeepSeek-V4.1-Flash-1017@c41a7e2
  recipe: deepseek-v4.1-flash/deepinfer@3
  topology: { prefill: { gpus: 4, replicas: 2 }, decode: { gpus: 64, replicas: 1 } }
stages:
  prod-us:
    fleets: [gb200-use1]
    replicas: 2
"""


def fleet(name: str, kind: str, domains: int, nodes: int, gpus: int, *, simulated: bool = True) -> FleetView:
    """A fleet with everything free; a domain of one node is an HGX, whose fabric ends there."""
    return FleetView(
        name=name,
        gpu_kind=kind,
        domains=tuple(
            DomainView(
                f"{name}/d{domain:02}",
                tuple(NodeView(f"{name}-d{domain:02}-n{node:02}", gpus, tuple(range(gpus))) for node in range(1, nodes + 1)),
            )
            for domain in range(1, domains + 1)
        ),
        fabric_spans_nodes=nodes > 1,
        simulated=simulated,
    )


GB200 = fleet("gb200-use1", "GB200", 3, 18, 4)
H200 = fleet("h200-use1", "H200", 4, 1, 8)


def world(*fleets: FleetView) -> World:
    """The demo's fleets, or these."""
    return World(catalog(), fleets or (GB200, H200))


def file_of(text: str) -> ReleaseFile:
    """A file without mistakes."""
    file = parse(text)
    assert isinstance(file, ReleaseFile), [error.text() for error in file]
    return file


def look(text: str, seen: World | None = None, number: int = 1) -> tuple[tuple[FindingView, ...], StageResult]:
    """The findings of the release, and what came of its first stage."""
    file, seen = file_of(text), seen or world()
    return check_release(file, "", seen), check_stage(file, file.stages[0], number, seen)


def codes(text: str, seen: World | None = None) -> dict[str, FindingView]:
    """Every finding but the fine ones, by code."""
    release, stage = look(text, seen)
    return {finding.code: finding for finding in (*release, *stage.findings) if finding.severity != "ok"}


def serving(text: str, number: int, *fleets: FleetView) -> World:
    """The fleets with the first stage of a file serving on them, complete."""
    file = file_of(text)
    stage = file.stages[0]
    spec = unit_spec(file.release, stage, catalog()[file.release.recipe], f"{file.release.model}@{number}", simulated=True)
    placements = place_units(spec, stage.replicas, fleets)
    assert not isinstance(placements, Refusal)
    left = tuple(fleets)
    for placement in placements:
        left = take(left, placement)
    units = tuple(_unit_view(spec, placement, slot) for slot, placement in enumerate(placements, 1))
    return World(catalog(), left, {stage.name: StageNow(running=spec, units=units)})


def _unit_view(spec: UnitSpec, placement: UnitPlacement, slot: int) -> UnitView:
    pools = []
    for pool in spec.pools:
        mine = [place for place in placement.replicas if place.role is pool.role]
        replicas = tuple(_replica_view(pool, place, slot) for place in mine)
        pools.append(PoolView(pool.role, pool.gpus, pool.replicas, pool.replicas, replicas))
    return UnitView(
        unit=f"u-{slot}",
        slot=slot,
        stage=spec.stage,
        release=spec.release,
        shape=spec.shape,
        gpus=spec.gpus,
        fleet=placement.fleet,
        domain=placement.domain,
        stopping=False,
        ready=True,
        complete=True,
        probed=True,
        routable=True,
        failed=False,
        detail="",
        inflight=0,
        weight_seen=0.5,
        pools=tuple(pools),
    )


def _replica_view(pool: PoolSpec, place: ReplicaPlacement, slot: int) -> ReplicaView:
    name = f"{slot}-{pool.role.value}-{place.ordinal}"
    ranks = tuple(
        RankView(f"k-{name}-{index}", index, rank.node, rank.gpus, RankState.READY, 0, "") for index, rank in enumerate(place.ranks)
    )
    return ReplicaView(name, pool.role, place.ordinal, pool.release, pool.generation, ReplicaState.READY, "", {}, ranks)
