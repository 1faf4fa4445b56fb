"""What agents report. Most reports say nothing new, and cost two reads and one write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from denvweb.core import wire
from denvweb.core.errors import ConflictError, DenvError, ForbiddenError
from denvweb.core.units import format_duration
from denvweb.wake import wake
from fleets.domain.gang import RankFact, gang_complete, replica_state
from fleets.domain.lease import SECOND_BOOT_WITHIN_S, clock_sentence, rest_s
from fleets.domain.protocol import AgentReport, NodeFacts, NodeSnapshot, RankReport
from fleets.domain.types import NodeState, RankDesired, RankState
from fleets.domain.versions import version_check
from fleets.domain.views import ReplicaState
from fleets.models import Node, Rank, Replica, Unit
from fleets.selectors.fleets import Unfit, unfit_gpus
from fleets.selectors.rows import facts_of, state_of
from fleets.selectors.snapshot import node_snapshot
from fleets.services.burial import replica_bury, unit_bury
from fleets.services.hangs import hang_note
from fleets.services.launch import gang_start, nodes_lock
from fleets.services.nodes import node_authenticate
from fleets.services.refusals import report_refused
from fleets.services.routing import stage_lock, table_refresh
from metrics.services import event_append

_DETAIL_MAX = 4000  # characters: a dead rank's last log lines, not its log
_TOLD = ["state", "state_at", "engine_id", "detail", "restarts", "pid", "gauges", "hung_engine"]
_LISTED = (ReplicaState.READY, ReplicaState.DRAINING)  # what a routing table speaks of
# Those that may change without joining again.
_LIVE_FACTS = ("host", "port_base", "port_count", "agent_version", "gpu_memory_bytes", "driver_version", "cuda_version")


@dataclass(slots=True)
class News:
    """What a report changes. `turned` ranks changed in a way that others must know of."""

    told: list[Rank] = field(default_factory=list)
    turned: dict[str, RankState | None] = field(default_factory=dict)  # rank id -> what it was
    node: dict[str, Any] = field(default_factory=dict)
    moved: bool = False  # the node's own state or place changed
    hung: dict[str, str] = field(default_factory=dict)  # rank id -> why its agent replaced the engine
    clock: str = ""  # a sentence when the node's clock has come to be off, or is right again
    gpus: list[str] = field(default_factory=list)  # a sentence for each GPU that may not be used any more, or may again

    @property
    def matters(self) -> bool:
        """Whether more than figures changed."""
        return bool(self.turned or self.moved or self.gpus or self.hung or self.clock)


def report_take(*, credential: str, report: AgentReport, now: datetime | None = None) -> NodeSnapshot:
    """Take a node's report, and answer with what it should run.

    Raises ForbiddenError for an unknown credential or another node's report, ConflictError `second-agent` when another
    agent process reported under this node's name within the last 10 s.
    """
    now = now or timezone.now()
    node = node_authenticate(credential=credential)
    refuse_stranger(node, report, now)
    news = compare(node, report, list(Rank.objects.filter(node_id=node.name)), now)
    generation = node.generation
    if news.matters:
        with transaction.atomic():
            _apply(node, report, news, now)
        generation = Node.objects.values_list("generation", flat=True).get(name=node.name)
    else:
        ranks_tell(news.told)
        _beat(node, report, news, now)
    if report.observed_generation == generation:
        return NodeSnapshot(node=node.name, generation=generation, unchanged=True)
    return node_snapshot(node=node.name)


def refuse_stranger(node: Node, report: AgentReport, now: datetime) -> None:
    """Raise, and note it, when the report is another node's, of a version that is not understood, or when another agent process of
    this node reported a moment ago."""
    try:
        _check_sender(node, report, now)
    except DenvError as error:
        report_refused(node=node, code=error.code, detail=error.detail, now=now)
        raise


def _check_sender(node: Node, report: AgentReport, now: datetime) -> None:
    version_check(report.version)
    if report.node != node.name:
        raise ForbiddenError(f"This credential is {node.name}'s; it may not report for {report.node}.", code="other-node")
    if not node.boot or node.boot in (report.boot, report.succeeds) or node.last_report_at is None:
        return
    ago_s = (now - node.last_report_at).total_seconds()
    if ago_s < SECOND_BOOT_WITHIN_S:
        raise ConflictError(
            f"Another agent process reported as {node.name} {ago_s:.1f} s ago; this one may take over {SECOND_BOOT_WITHIN_S:.0f} s after "
            "the other's last report.",
            code="second-agent",
        )


def compare(node: Node, report: AgentReport, ranks: Sequence[Rank], now: datetime) -> News:
    """What the report changes of the node and of its ranks, which are changed in memory only."""
    news = News()
    if node.state != NodeState.READY:
        news.node["state"], news.moved = NodeState.READY, True
    plain = [wire.to_plain(gpu) for gpu in report.gpus if not gpu.healthy or gpu.foreign_bytes]
    if report.gpus and plain != node.gpu_reports:  # an agent that has not looked yet says nothing
        before, node.gpu_reports = unfit_gpus(node), plain
        news.node["gpu_reports"], news.gpus = plain, _gpu_news(before, unfit_gpus(node))
    if report.facts is not None:
        _compare_facts(node, report.facts, news)
    off = clock_sentence(report.clock_at - now.timestamp())
    if bool(off) != bool(clock_sentence(node.clock_skew_s or 0.0)):
        news.clock = off or "its clock is right again"
    said = {rank.rank_id: rank for rank in report.ranks}
    for rank in ranks:
        if rank.id in said:
            _compare_rank(rank, said[rank.id], news, now)
        elif report.observed_generation >= node.generation:
            _miss_rank(rank, news, now)
    return news


def _gpu_news(before: Mapping[int, Unfit], now: Mapping[int, Unfit]) -> list[str]:
    """What became of each GPU; that others hold more or less of its memory by now is no news."""
    news = [f"GPU {index} is {unfit.trouble}" for index, unfit in now.items() if index not in before or before[index].state != unfit.state]
    return news + [f"GPU {index} may be used again" for index in before if index not in now]


def _compare_facts(node: Node, facts: NodeFacts, news: News) -> None:
    for name in _LIVE_FACTS:
        if getattr(facts, name) != getattr(node, name):
            news.node[name], news.moved = getattr(facts, name), True


def _compare_rank(rank: Rank, said: RankReport, news: News, now: datetime) -> None:
    turned = (rank.state, rank.engine_id) != (said.state, said.engine_id)
    detail = said.detail[-_DETAIL_MAX:]
    # Agents go on naming the last one; it is news while it is the one that is known here.
    hung = said.hung_engine not in ("", rank.hung_engine) and said.hung_engine == rank.engine_id
    if not turned and not hung and (rank.detail, rank.restarts, rank.pid, rank.gauges) == (detail, said.restarts, said.pid, said.gauges):
        return
    if hung:
        news.hung[rank.id], rank.hung_engine = said.hung_why[:_DETAIL_MAX], said.hung_engine
    if turned:
        news.turned[rank.id] = _known(rank)
    if rank.state != said.state:
        rank.state, rank.state_at = said.state.value, now - timedelta(seconds=min(max(0.0, said.since_s), 86_400.0))
    rank.engine_id, rank.detail, rank.restarts, rank.pid, rank.gauges = said.engine_id, detail, said.restarts, said.pid, said.gauges
    news.told.append(rank)


def _known(rank: Rank) -> RankState | None:
    return RankState(rank.state) if rank.state else None


def _miss_rank(rank: Rank, news: News, now: datetime) -> None:
    """The agent acted on the newest snapshot and has no such rank: nothing of it runs there."""
    news.turned[rank.id] = _known(rank)
    rank.state, rank.state_at, rank.pid, rank.engine_id, rank.gauges = None, now, 0, "", {}
    news.told.append(rank)


def ranks_tell(ranks: Sequence[Rank]) -> None:
    """Write what was said of these ranks."""
    if len(ranks) == 1:
        Rank.objects.filter(id=ranks[0].id).update(**{name: getattr(ranks[0], name) for name in _TOLD})
    elif ranks:
        Rank.objects.bulk_update(ranks, _TOLD)


def _beat(node: Node, report: AgentReport, news: News, now: datetime) -> None:
    """Renew the node's lease: one UPDATE, lost if another agent process or another join came in between."""
    renewed = Node.objects.filter(name=node.name, boot=node.boot, credential_id=node.credential_id).update(
        last_report_at=now,
        boot=report.boot,
        observed_generation=report.observed_generation,
        clock_skew_s=report.clock_at - now.timestamp(),
        **news.node,
    )
    if not renewed:
        raise ConflictError(f"Another agent process reported as {node.name} just now.", code="second-agent")


def _apply(node: Node, report: AgentReport, news: News, now: datetime) -> None:
    of_node = Unit.objects.filter(replicas__ranks__node_id=node.name)
    touched = of_node if news.moved else of_node.filter(replicas__ranks__in=list(news.turned))
    stages = sorted(set(touched.values_list("stage", flat=True)))
    for stage in stages:
        stage_lock(stage=stage)
    _gangs_lock(node.name, news.turned)
    _beat(node, report, news, now)
    ranks_tell(news.told)
    changed = _react(news.turned, now)
    for rank in Rank.objects.filter(id__in=news.hung).select_related("replica__unit"):
        hang_note(rank=rank, why=news.hung[rank.id], said_by="its agent")
    for stage in stages:
        if news.moved or stage in changed:
            table_refresh(stage=stage)
    if news.gpus:
        sentence = f"node {node.name}: {'; '.join(news.gpus)}"
        event_append(kind="node.gpus", sentence=sentence, level="warn", fleet=node.domain.fleet_id)
        wake("fleets.reconcile")
    if news.clock:
        event_append(kind="node.clock", sentence=f"node {node.name}: {news.clock}", level="warn", fleet=node.domain.fleet_id)
    if news.moved and node.state == NodeState.LOST:
        _back(node, now)


def _back(node: Node, now: datetime) -> None:
    """A node that was lost reports again. One that comes and goes rests first: units that are moved to it would soon be moved again."""
    sentence, rests = f"node {node.name} reports again", rest_s(node.losses)
    if rests:
        Node.objects.filter(name=node.name).update(rests_until=now + timedelta(seconds=rests))
        sentence += f"; it was lost {node.losses} times in a row, so it takes nothing new for {format_duration(rests)}"
    event_append(kind="node.back", sentence=sentence, level="warn" if rests else "info", fleet=node.domain.fleet_id)
    wake("fleets.reconcile")


def _gangs_lock(node: str, turned: Mapping[str, RankState | None]) -> None:
    """Lock the nodes of gangs that may start or go with this report, all at once and in order, as their generations change."""
    waiting = Replica.objects.filter(ranks__in=list(turned), desired__in=[RankDesired.HOLD, RankDesired.STOP])
    names = set(Rank.objects.filter(replica__in=waiting).values_list("node_id", flat=True))
    if names:
        nodes_lock({node, *names})


def _react(turned: Mapping[str, RankState | None], now: datetime) -> set[str]:
    """What follows at once from ranks that turned: gangs start, stopped replicas go, rollouts look again.

    Returns the stages whose tables speak of one of them, or did.
    """
    changed = set()
    replicas = Replica.objects.filter(ranks__in=list(turned)).distinct().select_related("unit").prefetch_related("ranks__node")
    for replica in replicas:
        state = state_of(replica)
        if state in _LISTED or _state_before(replica, turned) in _LISTED:
            changed.add(replica.unit.stage)
        ranks = list(replica.ranks.all())
        if any(turned.get(rank.id) is RankState.FETCHING for rank in ranks):  # the time to start counts from when the weights are there
            Replica.objects.filter(id=replica.id, desired=RankDesired.RUN).update(desired_at=now)
        if replica.desired == RankDesired.HOLD and gang_complete(facts_of(ranks)):
            gang_start(replica=replica, now=now)
        elif state is ReplicaState.READY and replica.ready_at is None:
            Replica.objects.filter(id=replica.id).update(ready_at=now)
        elif replica.desired == RankDesired.STOP:
            _end_missing(ranks)
            if replica_bury(replica=replica):
                unit_bury(unit=replica.unit)
                wake("fleets.reconcile")
        if state in (ReplicaState.READY, ReplicaState.GONE, ReplicaState.FAILED):
            wake("releases.reconcile")
        if state is ReplicaState.FAILED:
            wake("fleets.reconcile")
    return changed


def _state_before(replica: Replica, turned: Mapping[str, RankState | None]) -> ReplicaState:
    facts = [RankFact(turned.get(rank.id, _known(rank)), NodeState(rank.node.state)) for rank in replica.ranks.all()]
    return replica_state(RankDesired(replica.desired), facts)


def _end_missing(ranks: Sequence[Rank]) -> None:
    """Ranks that should stop, and that their agents say they do not have, have stopped."""
    for rank in ranks:
        if rank.state is None and rank.node.observed_generation >= rank.node.generation:
            rank.state = RankState.STOPPED
            Rank.objects.filter(id=rank.id).update(state=RankState.STOPPED)
