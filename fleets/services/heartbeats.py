"""Reports that say nothing new, taken many at a time: three reads and one write for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.utils import timezone

from denvweb.core.errors import DenvError
from fleets.domain.protocol import AgentReport, NodeSnapshot
from fleets.models import Node, Rank
from fleets.selectors.snapshot import node_snapshots
from fleets.services.nodes import nodes_authenticate
from fleets.services.reports import News, compare, ranks_tell, refuse_stranger

FRESH_S = 2.0  # a heartbeat this young need not be written again: nobody counts a node silent before 10 s

# Rows that another transaction holds are left out: their reports are taken one by one, and hold up nobody else's.
_BEAT = """
WITH free AS MATERIALIZED (
    SELECT name FROM fleets_node WHERE name = ANY(%s) ORDER BY name FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE fleets_node AS node
SET last_report_at = %s, boot = said.boot, observed_generation = said.observed, clock_skew_s = said.skew_s
FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::float8[])
    AS said (name, boot_before, credential_id, boot, observed, skew_s)
JOIN free ON free.name = said.name
WHERE node.name = said.name AND node.boot = said.boot_before AND node.credential_id = said.credential_id
RETURNING node.name
"""


@dataclass(frozen=True, slots=True)
class _Beat:
    """One node's heartbeat."""

    node: Node
    report: AgentReport
    news: News


def reports_take(*, reports: Sequence[tuple[str, AgentReport]], now: datetime | None = None) -> list[NodeSnapshot | DenvError | None]:
    """Take reports with their credentials, as `report_take` does one; answers and refusals in the same order.

    None for one that changes more than figures: it is to be taken alone, by `report_take`.
    """
    now = now or timezone.now()
    beats: dict[int, _Beat] = {}
    answers: list[NodeSnapshot | DenvError | None] = [None] * len(reports)
    nodes = nodes_authenticate(credentials=[credential for credential, _ in reports])
    ranks: dict[str, list[Rank]] = defaultdict(list)
    for rank in Rank.objects.filter(node_id__in=[node.name for node in nodes if isinstance(node, Node)]):
        ranks[rank.node_id].append(rank)
    seen: set[str] = set()
    for place, (node, (_, report)) in enumerate(zip(nodes, reports, strict=True)):
        if isinstance(node, DenvError):
            answers[place] = node
            continue
        try:
            refuse_stranger(node, report, now)
        except DenvError as error:
            answers[place] = error
            continue
        news = compare(node, report, ranks[node.name], now)
        if not news.matters and not news.node and node.name not in seen:
            beats[place] = _Beat(node, report, news)
            seen.add(node.name)
    renewed = _renew(list(beats.values()), now)
    kept = {place: beat for place, beat in beats.items() if beat.node.name in renewed}
    ranks_tell([rank for beat in kept.values() for rank in beat.news.told])
    answers_of = _answers(kept.values())
    for place, beat in kept.items():
        answers[place] = answers_of[beat.node.name]
    return answers


def _renew(beats: Sequence[_Beat], now: datetime) -> set[str]:
    """Renew leases; the nodes whose heartbeat is in the database now."""
    fresh = now - timedelta(seconds=FRESH_S)
    fresh_ones = {beat.node.name for beat in beats if _is_known(beat, fresh)}
    rows = [
        (beat.node.name, beat.node.boot, beat.node.credential_id, beat.report.boot, beat.report.observed_generation, _skew_s(beat, now))
        for beat in beats
        if beat.node.name not in fresh_ones
    ]
    if not rows:
        return fresh_ones
    columns = [list(column) for column in zip(*rows, strict=True)]
    with connection.cursor() as cursor:
        cursor.execute(_BEAT, [columns[0], now, *columns])
        return fresh_ones | {name for (name,) in cursor.fetchall()}


def _is_known(beat: _Beat, fresh: datetime) -> bool:
    node, report = beat.node, beat.report
    return (
        node.last_report_at is not None
        and node.last_report_at > fresh
        and (node.boot, node.observed_generation) == (report.boot, report.observed_generation)
    )


def _skew_s(beat: _Beat, now: datetime) -> float:
    return beat.report.clock_at - now.timestamp()


def _answers(beats: Iterable[_Beat]) -> dict[str, NodeSnapshot]:
    """Whole snapshots for nodes that have not acted on the newest one, and a word for the others."""
    answers, behind = {}, []
    for beat in beats:
        name, generation = beat.node.name, beat.node.generation
        if beat.report.observed_generation == generation:
            answers[name] = NodeSnapshot(node=name, generation=generation, unchanged=True)
        else:
            behind.append(name)
    return answers | {snapshot.node: snapshot for snapshot in node_snapshots(nodes=behind)}
