"""What GET /metrics of the control plane says, from views of all apps. Seconds, shares from 0 to 1, and plain counts.

Labels are names that a person chose (stage, fleet), members of enums, and releases and generations that are in use now, so their
number is bounded by what runs. How long requests took is on the routers' own pages: the control plane is in no request's way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from fleets.domain.views import RoutersView
from fleets.selectors import FleetTotals, PoolTotals
from metrics.domain.exposition import Family, Kind
from metrics.selectors import BacklogView, LoopView
from releases.domain.views import STAGE_STATES, StageHead

PREFIX = "denv_"
# Name, type, and what a reader is told. A figure that is not here is not exposed.
FAMILIES: Mapping[str, tuple[Kind, str]] = {
    "build_info": (Kind.GAUGE, "1; the label says which version of denv this is."),
    "stage_state": (Kind.GAUGE, "1 for the state that a stage is in, 0 for the others."),
    "stage_units_wanted": (Kind.GAUGE, "Serving units that a stage should have."),
    "stage_units_ready": (Kind.GAUGE, "Serving units of a stage that take traffic."),
    "stage_traffic_ratio": (Kind.GAUGE, "Share of a stage's traffic that a release should get, 0 to 1."),
    "stage_alarm_limit": (Kind.GAUGE, "Limit of an alarm: seconds for latencies, a share from 0 to 1, or a count for queues."),
    "stage_alarms_breached": (Kind.GAUGE, "Alarms that a stage breaks now, with no rollout under way."),
    "stage_routers_live": (Kind.GAUGE, "Routers of a stage that report."),
    "stage_table_generation": (Kind.GAUGE, "Generation of the routing table that a stage's routers should have."),
    "stage_table_generation_confirmed": (Kind.GAUGE, "The lowest generation that a live router has in force."),
    "pool_replicas_wanted": (Kind.GAUGE, "Replicas of a role, release and generation that should run."),
    "pool_replicas_ready": (Kind.GAUGE, "Those of them that are ready."),
    "rollout_active": (Kind.GAUGE, "1 while a rollout of the stage is under way, with what it leads from and to."),
    "rollout_traffic_ratio": (Kind.GAUGE, "Share of the traffic that the new release of an active rollout should get, 0 to 1."),
    "rollout_step": (Kind.GAUGE, "Step that an active rollout is at, from 1."),
    "rollout_steps": (Kind.GAUGE, "Steps that an active rollout has."),
    "rollout_age_seconds": (Kind.GAUGE, "Since an active rollout began."),
    "rollout_evidence_ratio": (Kind.GAUGE, "Evidence that an alarm of an active rollout is broken, as odds to 1; it trips at 400 or more."),
    "rollouts": (Kind.GAUGE, "Rollouts on record by kind and state."),
    "fleet_gpus": (Kind.GAUGE, "GPUs of a fleet."),
    "fleet_gpus_claimed": (Kind.GAUGE, "GPUs of a fleet that units hold."),
    "fleet_nodes": (Kind.GAUGE, "Nodes of a fleet by what is believed of them: new, ready, suspect or lost."),
    "fleet_nodes_cordoned": (Kind.GAUGE, "Nodes of a fleet that take nothing new."),
    "fleet_frozen": (Kind.GAUGE, "1 while so many nodes of a fleet are silent that nothing is replaced without a person's word."),
    "agent_report_age_seconds": (Kind.GAUGE, "Since the oldest last report of a fleet's agents, those of lost nodes aside."),
    "loop_age_seconds": (Kind.GAUGE, "Reconcile lag: since a periodic task last came to its end."),
    "loop_seconds": (Kind.GAUGE, "How long the last pass of a periodic task took."),
    "loop_passes_total": (Kind.COUNTER, "Passes of a periodic task that came to their end."),
    "loop_failures_total": (Kind.COUNTER, "Rollouts, stages or others that a pass could not look at; the log has each."),
    "outbox_pending": (Kind.GAUGE, "Notices that wait to be sent, by kind of channel."),
    "outbox_oldest_age_seconds": (Kind.GAUGE, "Since the event of the oldest notice that waits; 0 when none does."),
    "outbox_dead": (Kind.GAUGE, "Notices given up in the last 30 days."),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a page is made of, with the stages that the caller may see."""

    now: datetime
    version: str
    stages: Sequence[StageHead]
    routers: Mapping[str, RoutersView]
    pools: Sequence[PoolTotals]
    rollouts: Sequence[tuple[str, str, str, int]]  # stage, kind, state, count
    fleets: Sequence[FleetTotals]
    loops: Sequence[LoopView]
    backlogs: Sequence[BacklogView]


Sample = tuple[str, float, dict[str, str]]


def families(seen: Seen) -> list[Family]:
    """Every family that has a sample, in the order of the table."""
    made = {name: Family(PREFIX + name, kind, help=told) for name, (kind, told) in FAMILIES.items()}
    for name, value, labels in _samples(seen):
        made[name].add(value, **labels)
    return [family for family in made.values() if family.samples]


def _samples(seen: Seen) -> Iterable[Sample]:
    yield "build_info", 1, {"version": seen.version}
    for head in seen.stages:
        yield from _stage(head, seen.routers.get(head.stage))
        yield from _rollout(head, seen.now)
    for pool in seen.pools:
        labels = {"stage": pool.stage, "release": pool.release, "role": pool.role, "generation": pool.generation}
        yield "pool_replicas_wanted", pool.wanted, labels
        yield "pool_replicas_ready", pool.ready, labels
    for stage, kind, state, count in seen.rollouts:
        yield "rollouts", count, {"stage": stage, "kind": kind, "state": state}
    for fleet in seen.fleets:
        yield from _fleet(fleet, seen.now)
    yield from _own(seen)


def _stage(head: StageHead, routers: RoutersView | None) -> Iterable[Sample]:
    own = {"stage": head.stage}
    for state in STAGE_STATES:
        yield "stage_state", float(state == head.state), {**own, "state": state}
    yield "stage_units_wanted", head.replicas, own
    yield "stage_units_ready", head.units_ready, own
    for release, share in head.releases.items():
        yield "stage_traffic_ratio", share, {**own, "release": release}
    for metric, limit in head.limits.items():
        yield "stage_alarm_limit", limit, {**own, "metric": metric}
    yield "stage_alarms_breached", len(head.breaches), own
    if routers is not None:
        yield "stage_routers_live", routers.live, own
        yield "stage_table_generation", routers.generation, own
        yield "stage_table_generation_confirmed", routers.confirmed, own


def _rollout(head: StageHead, now: datetime) -> Iterable[Sample]:
    rollout = head.rollout
    if rollout is None:
        return
    own = {"stage": head.stage}
    before = f"{head.model}@{rollout.from_release}" if rollout.from_release is not None else ""
    named = {"kind": rollout.kind, "state": rollout.state, "from": before, "to": f"{head.model}@{rollout.to_release}"}
    yield "rollout_active", 1, {**own, **named}
    yield "rollout_traffic_ratio", rollout.weight_bp / 10_000, own
    yield "rollout_step", min(rollout.step_index + 1, rollout.step_count), own
    yield "rollout_steps", rollout.step_count, own
    yield "rollout_age_seconds", (now - rollout.started_at).total_seconds(), own
    for verdict in rollout.verdicts:
        if not verdict.synthetic:
            yield "rollout_evidence_ratio", verdict.evidence, {**own, "alarm": verdict.alarm}


def _fleet(fleet: FleetTotals, now: datetime) -> Iterable[Sample]:
    own = {"fleet": fleet.fleet, "gpu_kind": fleet.gpu_kind}
    yield "fleet_gpus", fleet.gpus, own
    yield "fleet_gpus_claimed", fleet.gpus_claimed, own
    for state, count in fleet.nodes.items():
        yield "fleet_nodes", count, {"fleet": fleet.fleet, "state": state.value}
    yield "fleet_nodes_cordoned", fleet.cordoned, {"fleet": fleet.fleet}
    yield "fleet_frozen", float(fleet.frozen), {"fleet": fleet.fleet}
    if fleet.oldest_report_at is not None:
        yield "agent_report_age_seconds", _age_s(fleet.oldest_report_at, now), {"fleet": fleet.fleet}


def _own(seen: Seen) -> Iterable[Sample]:
    """The control plane's own health."""
    for loop in seen.loops:
        own = {"loop": loop.loop}
        yield "loop_age_seconds", _age_s(loop.ended_at, seen.now), own
        yield "loop_seconds", loop.took_s, own
        yield "loop_passes_total", loop.passes, own
        yield "loop_failures_total", loop.failures, own
    for backlog in seen.backlogs:
        own = {"kind": backlog.kind}
        yield "outbox_pending", backlog.pending, own
        yield "outbox_oldest_age_seconds", 0.0 if backlog.oldest_at is None else _age_s(backlog.oldest_at, seen.now), own
        yield "outbox_dead", backlog.dead, own


def _age_s(at: datetime, now: datetime) -> float:
    return max(0.0, (now - at).total_seconds())
