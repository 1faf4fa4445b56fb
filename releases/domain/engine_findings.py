"""Whether an engine could be started at all: each pool's adapter is asked for the command line of a rank on a real fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from denvweb.core.errors import InvalidError
from fleets.domain.protocol import RankSpec
from fleets.domain.types import FleetView, PoolSpec, RankDesired, UnitSpec
from fleets.engines.base import adapter_for

_PORT = 20_000  # any will do: nothing is started


def engine_refusals(unit: UnitSpec, fleets: Sequence[FleetView]) -> Iterable[tuple[str, str]]:
    """Code and sentence of every pool whose engine refuses its settings; simulated fleets run another engine and are left out."""
    real = [fleet for fleet in fleets if not fleet.simulated]
    for pool in unit.pools:
        for fleet in real[:1]:  # what a recipe lacks, it lacks everywhere
            try:
                adapter_for(pool.engine.engine, simulated=False).command(_leader(unit, pool, fleet))
            except InvalidError as error:
                yield error.code, f"{pool.role.value} cannot be started: {error.detail}"


def _leader(unit: UnitSpec, pool: PoolSpec, fleet: FleetView) -> RankSpec:
    """Rank 0 of a replica as it would stand on nodes of this fleet."""
    node_gpus = max((node.gpus for domain in fleet.domains for node in domain.nodes), default=pool.gpus)
    here = min(pool.gpus, node_gpus)
    return RankSpec(
        rank_id="rank",
        replica="replica",
        unit="unit",
        stage=unit.stage,
        release=unit.release,
        role=pool.role,
        index=0,
        count=-(-pool.gpus // here),
        gpus=tuple(range(here)),
        port=_PORT,
        leader_host="127.0.0.1",
        leader_port=_PORT,
        gpu_kind=fleet.gpu_kind,
        desired=RankDesired.RUN,
        engine=pool.engine,
    )
