"""Which engine belongs to which rank when an agent starts: what its files say, and what was found running. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleets.agent import ranks
from fleets.agent.processes import Marked
from fleets.agent.ranks import Run
from fleets.domain.protocol import NodeSnapshot


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """`orphans` are to be killed now; `strays` wait for a snapshot, because none is known that could name them."""

    runs: Mapping[str, Run]
    orphans: tuple[Marked, ...]
    strays: tuple[Marked, ...]


def plan(runs: Mapping[str, Run], snapshot: NodeSnapshot | None, found: Sequence[Marked], now_s: float) -> AdoptionPlan:
    """The files are believed first. An engine they do not know is given to its rank if the snapshot has one without a process.

    Whether the processes in the files still live is the launcher's to find out; one of those is never an orphan here.
    """
    kept = dict(runs)
    known = {run.process for run in runs.values() if run.process is not None}
    alive = {marked.process for marked in found}
    specs = {spec.rank_id: spec for spec in snapshot.ranks} if snapshot else {}
    orphans: list[Marked] = []
    strays: list[Marked] = []
    for marked in found:
        if marked.process in known:
            continue
        run = kept.get(marked.rank_id)
        if run is None and marked.rank_id in specs:
            run = ranks.claimed(specs[marked.rank_id], now_s)
        if run is not None and (run.process is None or run.process not in alive):
            kept[marked.rank_id] = ranks.adopted(run, marked.process, marked.engine_id, now_s)
        elif run is None and snapshot is None:
            strays.append(marked)
        else:
            orphans.append(marked)
    return AdoptionPlan(runs=kept, orphans=tuple(orphans), strays=tuple(strays))
