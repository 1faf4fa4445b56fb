"""Reading units and routers, in the words that decisions are made in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleets.domain.types import RankState
from fleets.domain.views import ReplicaState, RoutersView, UnitView

CRASHES = 4  # restarts of one rank, since it was placed, that make a loop


def of_release(units: Iterable[UnitView], release: str) -> list[UnitView]:
    """A release's units that were not told to stop, by slot."""
    return sorted((unit for unit in units if unit.release == release and not unit.stopping), key=lambda unit: (unit.slot, unit.unit))


def in_slot(units: Iterable[UnitView], slot: int, release: str) -> UnitView | None:
    """The live unit of a slot and release."""
    return next((unit for unit in of_release(units, release) if unit.slot == slot), None)


def serving(units: Iterable[UnitView]) -> list[UnitView]:
    """Units that routers may send users' requests to and that can answer them."""
    return [unit for unit in units if unit.ready and unit.routable and not unit.stopping]


def silent(unit: UnitView) -> bool:
    """Whether it is not ready only because its nodes do not report."""
    states = [replica.state for pool in unit.pools for replica in pool.replicas]
    return not unit.ready and not unit.failed and ReplicaState.UNKNOWN in states


def fetching(unit: UnitView) -> bool:
    """Whether weights of it are on their way to a node: its agent sees to it that a fetch which stands still fails."""
    return any(rank.state is RankState.FETCHING for pool in unit.pools for replica in pool.replicas for rank in replica.ranks)


def crash_loops(unit: UnitView) -> bool:
    """Whether a rank that came with the unit's own release keeps dying; pools that were kept have an earlier release's history."""
    own = (replica for pool in unit.pools for replica in pool.replicas if replica.release == unit.release)
    ranks = (rank for replica in own for rank in replica.ranks)
    return any(rank.restarts >= CRASHES and rank.state in {RankState.BACKOFF, RankState.FAILED} for rank in ranks)


def confirmed(routers: RoutersView, weights: dict[str, int]) -> bool:
    """Whether every live router, and there is one, has these weights and all that was decided before them."""
    return routers.live > 0 and routers.weights == weights and routers.confirmed >= routers.generation


def split(old: str, new: str, weight_bp: int) -> dict[str, int]:
    """Weights by release that give the new one its share; no release with nothing."""
    weights = {old: 10_000 - weight_bp, new: weight_bp} if old else {new: weight_bp}
    return {release: weight for release, weight in weights.items() if weight > 0}


def free_slot(units: Sequence[UnitView]) -> int:
    """The lowest number that no unit, nor one that is still ending, has."""
    used = {unit.slot for unit in units}
    return min(set(range(1, len(used) + 2)) - used)


def slots(units: Iterable[UnitView]) -> str:
    """`unit 1`, `units 1 and 3`."""
    numbers = [str(unit.slot) for unit in units]
    return f"unit{'' if len(numbers) == 1 else 's'} {' and '.join(numbers)}"
