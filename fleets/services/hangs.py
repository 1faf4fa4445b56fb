"""Engines that hang: found by routers whose requests stand still in them, or by agents that get no answer. Their agents replace them."""

from __future__ import annotations

from collections.abc import Mapping

from fleets.models import Rank
from fleets.services.launch import nodes_touch
from metrics.services import event_append


def engines_hung(*, stage: str, hung: Mapping[str, str], said_by: str) -> None:
    """Have engines of a stage replaced, given by engine id and why; under the stage's lock. One that is gone by now is left alone."""
    ranks = Rank.objects.filter(engine_id__in=hung, replica__unit__stage=stage).select_related("replica__unit").order_by("id")
    found = [rank for rank in ranks if rank.hung_engine != rank.engine_id]
    for rank in found:
        Rank.objects.filter(id=rank.id).update(hung_engine=rank.engine_id)
        hang_note(rank=rank, why=hung[rank.engine_id], said_by=said_by)
    if found:
        nodes_touch(rank.node_id for rank in found)


def hang_note(*, rank: Rank, why: str, said_by: str) -> None:
    """The journal's row. The rank must be loaded with its replica and unit."""
    replica, unit = rank.replica, rank.replica.unit
    sentence = (
        f"{replica.role} {replica.ordinal + 1} of unit {unit.slot} of {unit.stage} is restarted ({rank.node_id}, {said_by} says): {why}"
    )
    event_append(
        kind="replica.hung",
        sentence=sentence,
        level="warn",
        stage=unit.stage,
        model=unit.model,
        fleet=unit.fleet_id,
        release=replica.release,
    )
