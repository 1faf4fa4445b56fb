"""What serves of each release: units and replicas wanted, ready and draining, and the traffic that is wanted and seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleets.domain.types import Role
from fleets.domain.views import PoolView, ReplicaState, UnitView
from frontend.stagerows import two_releases
from metrics.domain.figures import group_order
from releases.domain.views import StageView

_SAME = 0.0005  # of all traffic
_ROLES = (Role.PREFILL, Role.DECODE, Role.AGGREGATED)


@dataclass(frozen=True, slots=True)
class Count:
    """Of one kind; what drains is neither wanted nor ready."""

    what: str  # `units`, or a role
    wanted: int
    ready: int
    draining: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One release on this stage. `seen` is None while no router speaks."""

    release: str  # `ds-flash@7`
    canary: bool
    counts: tuple[Count, ...]
    wanted: float
    seen: float | None
    inflight: int

    @property
    def off(self) -> bool:
        """Whether routers send another share than is wanted: some have not confirmed it yet, or nothing of it is ready."""
        return self.seen is not None and abs(self.seen - self.wanted) > _SAME


def generations(stage: StageView) -> tuple[Generation, ...]:
    """Every release with units or traffic, what you have first."""
    base, _ = two_releases(stage)
    releases = sorted(
        {unit.release for unit in stage.units} | set(stage.releases), key=lambda release: (release != base, group_order(release))
    )
    roles = [role for role in _ROLES if any(pool.role is role for unit in stage.units for pool in unit.pools)]
    return tuple(_generation(stage, release, bool(base) and release != base, roles) for release in releases)


def _generation(stage: StageView, release: str, canary: bool, roles: Sequence[Role]) -> Generation:
    units = [unit for unit in stage.units if unit.release == release]
    seen = [unit.weight_seen for unit in stage.units]
    return Generation(
        release=release,
        canary=canary,
        counts=(_units(units), *(_replicas(units, role) for role in roles)),
        wanted=stage.releases.get(release, 0.0),
        seen=None if None in seen or not seen else sum(unit.weight_seen or 0.0 for unit in units),
        inflight=stage.routers.inflight.get(release, 0),
    )


def _units(units: Sequence[UnitView]) -> Count:
    staying = [unit for unit in units if not unit.stopping]
    return Count("units", len(staying), sum(unit.ready for unit in staying), len(units) - len(staying))


def _replicas(units: Iterable[UnitView], role: Role) -> Count:
    pools = [(unit, pool) for unit in units for pool in unit.pools if pool.role is role]
    staying = [pool for unit, pool in pools if not unit.stopping]
    draining = sum(_draining(unit, pool) for unit, pool in pools)
    return Count(role.value, sum(pool.desired for pool in staying), sum(pool.ready for pool in staying), draining)


def _draining(unit: UnitView, pool: PoolView) -> int:
    """Those that finish what they have; of a unit that is to stop, whatever still answers."""
    leaving = (ReplicaState.DRAINING, ReplicaState.READY) if unit.stopping else (ReplicaState.DRAINING,)
    return sum(replica.state in leaving for replica in pool.replicas)
