"""Which numbers of units and replicas cover the needs: all roles at once, inside the ranges and the GPUs of a unit's domain."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from fleets.domain.scaling.need import Need
from fleets.domain.scaling.types import Knob, Plant

FEWER_UNITS_MARGIN = 1.25  # fewer units are enough only if they would carry a quarter more


def gpus_of(plant: Plant, counts: Mapping[Knob, int]) -> int:
    """GPUs of one serving unit."""
    return sum(plant.gpus[role] * counts[role] for role in plant.roles)


def choose(plant: Plant, needs: Mapping[Knob, Need], units_now: int) -> dict[Knob, int]:
    """The fewest units whose pools can grow to the needs, and the pools; where none can, the fairest share of what there is."""
    bounds = plant.bounds[Knob.UNITS]
    for units in range(bounds.least, bounds.most + 1):
        margin = FEWER_UNITS_MARGIN if units < units_now else 1.0
        exact = {role: ceil(needs[role].replicas * margin / units - 1e-9) for role in plant.roles}
        if all(exact[role] <= plant.bounds[role].most for role in plant.roles):
            counts = {role: plant.bounds[role].clamp(ceil(needs[role].replicas / units)) for role in plant.roles}
            if gpus_of(plant, exact if margin > 1 else counts) <= plant.budget:
                return {Knob.UNITS: units, **counts}
    return {Knob.UNITS: bounds.most, **_shared(plant, needs, bounds.most)}


def _shared(plant: Plant, needs: Mapping[Knob, Need], units: int) -> dict[Knob, int]:
    """Under the budget, the pools whose scarcer role covers most of its need; then the other; then the fewest GPUs."""
    least = {role: plant.bounds[role].least for role in plant.roles}
    if gpus_of(plant, least) >= plant.budget:
        return least
    first, *others = plant.roles
    best, best_key = least, (-1.0, -1.0, 0)
    for count in range(plant.bounds[first].least, plant.bounds[first].most + 1):
        counts = {**least, first: count}
        for role in others:
            free = plant.budget - gpus_of(plant, counts) + plant.gpus[role] * counts[role]
            wanted = plant.bounds[role].clamp(ceil(needs[role].replicas / units))
            counts[role] = max(least[role], min(wanted, free // plant.gpus[role]))
        used = gpus_of(plant, counts)
        if used > plant.budget:
            break
        cover = sorted(min(1.0, counts[role] * units / max(1, needs[role].replicas)) for role in plant.roles)
        key = (cover[0], sum(cover), -used)
        if key > best_key:
            best, best_key = counts, key
    return best
