"""Units with all that stands on them, as plain values: PostgreSQL nests them into one text, which is decoded at once.

A hundred times as fast as rows of models, which counts where hundreds of stages are looked at every few seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from django.db import connection

from denvweb.core import wire
from fleets.domain.gang import RankFact, replica_state
from fleets.domain.types import NodeState, PoolSpec, RankDesired, RankState, Role, UnitSpec
from fleets.domain.views import ReplicaState


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank and the node under it."""

    id: str
    index: int
    node: str
    gpus: tuple[int, ...]
    state: RankState | None
    detail: str
    restarts: int
    gauges: dict[str, float]
    node_state: NodeState
    node_draining: bool


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica with its ranks, by index."""

    id: str
    role: Role
    ordinal: int
    release: str
    generation: str
    desired: RankDesired
    retired: bool
    ranks: tuple[RankRow, ...]

    @property
    def state(self) -> ReplicaState:
        """The worst of its ranks decides."""
        return replica_state(self.desired, [RankFact(rank.state, rank.node_state) for rank in self.ranks])

    def counts_for(self, pool: PoolSpec) -> bool:
        """Whether it is one of this pool's: not on its way out, and of its generation."""
        return not self.retired and self.role is pool.role and self.generation == pool.generation


@dataclass(frozen=True, slots=True)
class UnitRow:
    """One unit with its replicas, by role and ordinal. `spec_text` is JSON: the specs of a release are one text."""

    id: str
    slot: int
    stage: str
    release: str
    spec_text: str
    fleet: str
    domain: str
    running: bool
    routable: bool
    probed: bool
    failed: str
    probe_detail: str
    leaving_for: str
    replicas: tuple[ReplicaRow, ...]

    @property
    def spec(self) -> UnitSpec:
        """The spec that it was last given."""
        return _spec(self.spec_text)

    @property
    def leaving(self) -> str:
        """Why it is to be replaced elsewhere although it serves; empty when it is not."""
        nodes = sorted({rank.node for replica in self.replicas if not replica.retired for rank in replica.ranks if rank.node_draining})
        return f"{', '.join(nodes)} {'is' if len(nodes) == 1 else 'are'} being drained" if nodes else self.leaving_for


@lru_cache(maxsize=4096)
def _spec(text: str) -> UnitSpec:
    return wire.decode(text, UnitSpec)


_ROWS = """
SELECT COALESCE(json_agg(json_build_object(
    'id', unit.id, 'slot', unit.slot, 'stage', unit.stage, 'release', unit.release, 'spec_text', unit.spec::text,
    'fleet', unit.fleet_id, 'domain', unit.domain, 'running', unit.desired = 'run', 'routable', unit.routable,
    'probed', unit.probed_revision = unit.revision, 'failed', unit.failed, 'probe_detail', unit.probe_detail,
    'leaving_for', unit.leaving, 'replicas', COALESCE(below.replicas, '[]'::json)
) ORDER BY unit.slot, unit.created_at, unit.id), '[]'::json)::text
FROM fleets_unit unit LEFT JOIN LATERAL (
    SELECT json_agg(json_build_object(
        'id', replica.id, 'role', replica.role, 'ordinal', replica.ordinal, 'release', replica.release,
        'generation', replica.generation, 'desired', replica.desired, 'retired', replica.retired,
        'ranks', COALESCE(under.ranks, '[]'::json)
    ) ORDER BY replica.role, replica.ordinal, replica.attempt, replica.id) AS replicas
    FROM fleets_replica replica LEFT JOIN LATERAL (
        SELECT json_agg(json_build_object(
            'id', rank.id, 'index', rank.index, 'node', rank.node_id, 'gpus', rank.gpus, 'state', rank.state,
            'detail', rank.detail, 'restarts', rank.restarts, 'gauges', rank.gauges,
            'node_state', node.state, 'node_draining', node.draining
        ) ORDER BY rank.index) AS ranks
        FROM fleets_rank rank JOIN fleets_node node ON node.name = rank.node_id WHERE rank.replica_id = replica.id
    ) under ON true
    WHERE replica.unit_id = unit.id
) below ON true
WHERE unit.stage = ANY(%s) AND unit.desired <> 'gone'
"""


def unit_rows(stages: Collection[str]) -> tuple[UnitRow, ...]:
    """The units of these stages by slot, those on their way out included: one query."""
    with connection.cursor() as cursor:
        cursor.execute(_ROWS, [list(stages)])
        return wire.decode(cursor.fetchone()[0], tuple[UnitRow, ...])
