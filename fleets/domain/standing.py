"""Serving units as they stand, for plans that move them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleets.domain.types import FleetView, UnitPlacement, UnitSpec


@dataclass(frozen=True, slots=True)
class StandingUnit:
    """One unit that was not told to end. `warm`: it takes no traffic, and is kept for a rollback."""

    unit: str
    slot: int
    spec: UnitSpec
    placement: UnitPlacement
    warm: bool = False

    @property
    def name(self) -> str:
        """`unit 2 of ds-flash/prod-us`."""
        return f"unit {self.slot} of {self.spec.stage}"

    @property
    def where(self) -> str:
        """`gb200-use1/d03`, or the fleet when it stands in several domains."""
        return self.placement.domain or self.placement.fleet

    def fleets(self, known: Iterable[FleetView]) -> list[FleetView]:
        """Those fleets that its stage may use, in its order; its own when the spec names none."""
        by_name = {fleet.name: fleet for fleet in known}
        return [by_name[name] for name in self.spec.fleets or (self.placement.fleet,) if name in by_name]

    def on(self, node: str) -> tuple[str, ...]:
        """Its replicas with a rank on a node: `P1`, `D1`."""
        roles = [pool.role for pool in self.spec.pools]
        here = [replica for replica in self.placement.replicas if any(rank.node == node for rank in replica.ranks)]
        ordered = sorted(here, key=lambda replica: (roles.index(replica.role) if replica.role in roles else len(roles), replica.ordinal))
        return tuple(f"{replica.role.value[0].upper()}{replica.ordinal + 1}" for replica in ordered)
