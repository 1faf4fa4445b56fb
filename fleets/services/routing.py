"""The routing table of a stage: its weights, and a new generation whenever anything that routers see has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from django.db import transaction

from denvweb.core import wire
from denvweb.core.errors import InvalidError
from denvweb.wake import poke
from fleets.domain.protocol import ConditionalPolicy, RouterTable, Synthetic
from fleets.models import RouteState, Unit, generation_next
from fleets.selectors.routing import table_of
from fleets.selectors.rows import units_with_ranks
from metrics.domain.types import AlarmSpec

WEIGHTS_SUM = 10_000  # basis points


def stage_lock(*, stage: str, model: str = "") -> RouteState:
    """Lock a stage's routes until the transaction ends, making them if need be.

    Whoever changes units of a stage takes this lock first and nodes' rows after it: one order, so that no two wait for each other.
    """
    found = RouteState.objects.select_for_update().filter(stage=stage).first()
    if found is None:
        RouteState.objects.get_or_create(stage=stage, defaults={"model": model or stage.partition("/")[0]})
        found = RouteState.objects.select_for_update().get(stage=stage)
    return found


@transaction.atomic
def routing_set(*, stage: str, model: str, weights: Mapping[str, int], conditional: ConditionalPolicy, alarms: Sequence[AlarmSpec]) -> int:
    """Set what share of the traffic each release gets, in basis points that sum to 10,000 (or none at all).

    Returns the table's generation; it stays as it is when nothing changed.
    """
    if weights and (sum(weights.values()) != WEIGHTS_SUM or min(weights.values()) < 0):
        raise InvalidError(
            f"The weights of {stage} are {dict(weights)}; they must be at least 0 and sum to {WEIGHTS_SUM} basis points.",
            code="bad-weights",
        )
    state = stage_lock(stage=stage, model=model)
    wanted = dict(weights)
    changed = wanted != state.weights
    if changed:
        state.weights_before, state.weights = state.weights, wanted
    state.model = model
    state.conditional, state.alarms = wire.to_plain(conditional), wire.to_plain(tuple(alarms))
    routes_changed(state)
    if changed:
        state.weights_generation = state.generation
    state.save()
    return state.generation


@transaction.atomic
def synthetic_set(*, stage: str, synthetic: Synthetic | None) -> None:
    """Have routers make requests of their own, or no more."""
    state = stage_lock(stage=stage)
    state.synthetic = wire.to_plain(synthetic) if synthetic is not None else None
    routes_changed(state)
    state.save()


@transaction.atomic
def conditional_set(*, stage: str, conditional: ConditionalPolicy) -> bool:
    """Set when decode prefills by itself, and leave all else of the table as it is; True if that was a change."""
    state = stage_lock(stage=stage)
    wanted = wire.to_plain(conditional)
    if state.conditional == wanted:
        return False
    state.conditional = wanted
    routes_changed(state)
    state.save(update_fields=["conditional", "digest", "generation"])
    return True


@transaction.atomic
def table_refresh(*, stage: str) -> bool:
    """Give the stage's table a new generation if it is not what routers were last given; True if it was not."""
    state = stage_lock(stage=stage)
    changed = routes_changed(state)
    if changed:
        state.save(update_fields=["digest", "generation"])
    return changed


def table_stale(state: RouteState, units: Sequence[Unit]) -> bool:
    """Whether the stage's table differs from what routers were last given."""
    return state.digest != _digest(table_of(state, units))


def routes_changed(state: RouteState) -> bool:
    """Give a locked state a new generation if its table is not what routers were last given; the caller saves it."""
    digest = _digest(table_of(state, units_with_ranks(Unit.objects.filter(stage=state.stage))))
    if digest == state.digest:
        return False
    state.digest, state.generation = digest, generation_next()
    poke(f"router.{state.stage}")
    return True


def _digest(table: RouterTable) -> str:
    return hashlib.sha256(wire.encode(replace(table, generation=0))).hexdigest()
