"""Placement explained, and advice on it."""

from __future__ import annotations

from denvweb.core.errors import NotFoundError
from fleets.domain.defrag import DefragAdvice, advise
from fleets.domain.explain import PlacementExplained, explain
from fleets.selectors.fleets import fleet_views
from fleets.selectors.standing import standing_units


def placement_explained(*, stage: str) -> PlacementExplained:
    """Why a stage's units are where they are: eight queries."""
    units = standing_units(stage=stage)
    if not units:
        raise NotFoundError(
            f"No unit of {stage} stands anywhere. `denv stages` lists the stages; "
            "`denv release -f FILE --dry-run` says where units of a release would go.",
            code="no-units",
        )
    return explain(stage, units, fleet_views())


def defrag_advice(*, fleet: str = "") -> tuple[DefragAdvice, ...]:
    """Which moves would open whole domains, for one fleet or for each."""
    views = fleet_views(names=[fleet] if fleet else None)
    if fleet and not views:
        raise NotFoundError(f"There is no fleet {fleet}; `denv fleets` lists them.", code="fleet-unknown")
    units = standing_units(fleets=[view.name for view in views])
    return tuple(advise(view, [unit for unit in units if unit.placement.fleet == view.name]) for view in views)
