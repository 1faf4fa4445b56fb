"""A rollout as a tree: stage, units, pools, replicas, steps, weights wanted and seen, alarms with their evidence, and why it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from denvweb.cli.output import paint, table
from denvweb.core.units import format_duration
from fleets.domain.views import PoolView, ReplicaState, ReplicaView, UnitView
from metrics.domain.views import AlarmVerdict
from releases.domain.synthetic import synthetic_text
from releases.domain.views import PlanStepView, RolloutView, StageView

_STEP_MARKS = {"done": "x", "now": ">", "stopped": "!"}


def rollout_text(rollout: RolloutView, stage: StageView, now: datetime) -> str:
    """The tree that `denv rollout watch` redraws."""
    lines = [_head(rollout), f"way back: {stage.preflight.sentence}"]
    if stage.frozen:
        lines.append(paint(f"the stage is {stage.frozen}", "warn"))
    lines += _tree([_unit(unit, _shares(stage)) for unit in stage.units])
    lines.append(table([_step(step, now) for step in rollout.plan.steps], right=(1,)))
    if rollout.verdicts:
        lines.append(table([verdict_row(verdict) for verdict in rollout.verdicts if verdict.n or not verdict.synthetic], indent="  "))
    if made := synthetic_text(rollout.verdicts):
        lines.append(f"evidence: {made}")
    lines.append(f"{'why it waits' if rollout.active else 'outcome'}: {rollout.why}")
    return "\n".join(line for line in lines if line)


def _head(rollout: RolloutView) -> str:
    old = rollout.from_release if rollout.from_release is not None else "nothing"
    state = f"{rollout.state} ({rollout.reason})" if rollout.state == "held" else rollout.state
    share = f"{rollout.weight_bp / 100:g}% on {rollout.to_release}"
    step = f"step {min(rollout.step_index + 1, rollout.step_count)} of {rollout.step_count}" if rollout.active else ""
    since = f"since {rollout.started_at:%H:%M:%S} by {rollout.started_by}"
    return "   ".join(part for part in (rollout.stage, f"{old} -> {rollout.to_release}", state, share, step, since) if part)


Branch = tuple[str, Sequence["Branch"]]  # a line, and what hangs on it


def _tree(branches: Sequence[Branch], indent: str = "") -> Iterator[str]:
    for index, (line, below) in enumerate(branches):
        last = index == len(branches) - 1
        yield f"{indent}{'`-' if last else '|-'} {line}"
        yield from _tree(below, f"{indent}{'   ' if last else '|  '}")


def _shares(stage: StageView) -> Mapping[str, float]:
    """The share of the traffic that each unit should have: its release's, over the units of that release that serve."""
    serving = Counter(unit.release for unit in stage.units if unit.ready and unit.routable)
    return {
        unit.unit: stage.releases.get(unit.release, 0.0) / serving[unit.release] for unit in stage.units if unit.ready and unit.routable
    }


def _unit(unit: UnitView, shares: Mapping[str, float]) -> Branch:
    wanted, seen = shares.get(unit.unit, 0.0), unit.weight_seen
    weight = f"{wanted:.0%} wanted, {'no router speaks' if seen is None else f'{seen:.0%} seen'}"
    state = "stops" if unit.stopping else "ready" if unit.ready else unit.detail or "not ready"
    aside = ", probed" if unit.probed and unit.ready else ""
    head = f"unit {unit.slot}  release {unit.release.partition('@')[2]}   {weight}   {paint(state, 'ok' if unit.ready else 'warn')}{aside}"
    return head, [_pool(pool, unit) for pool in unit.pools]


def _pool(pool: PoolView, unit: UnitView) -> Branch:
    kept = {replica.release for replica in pool.replicas} - {unit.release}
    aside = f"   kept from {', '.join(sorted(release.partition('@')[2] for release in kept))}" if kept else ""
    head = f"{pool.role.value:<10} {pool.ready} of {pool.desired} ready   {unit.domain or unit.fleet}{aside}"
    return head, [(_replica(replica), ()) for replica in pool.replicas]


def _replica(replica: ReplicaView) -> str:
    nodes = sorted({rank.node for rank in replica.ranks})
    where = "" if not nodes else nodes[0] if len(nodes) == 1 else f"{nodes[0]} .. {nodes[-1]}"
    level = "ok" if replica.state is ReplicaState.READY else "warn"
    detail = f": {replica.detail}" if replica.detail else ""
    return f"replica {replica.ordinal + 1}  {paint(replica.state.value, level)}{detail}   {where}"


def _step(step: PlanStepView, now: datetime) -> list[str]:
    """`> 2  canary 10%  6:12 min of 10 min; hold 10 min and proof of health`."""
    detail = step.detail
    if step.state == "now" and step.started_at and step.ends_at:
        whole_s = (step.ends_at - step.started_at).total_seconds()
        passed_s = min(whole_s, max(0.0, (now - step.started_at).total_seconds()))
        detail = f"{format_duration(passed_s)} of {format_duration(whole_s)}; {detail}"
    if step.state == "done" and step.started_at and step.ended_at:
        detail = f"{step.started_at:%H:%M:%S} to {step.ended_at:%H:%M:%S}; {detail}"
    if step.state == "stopped":
        detail = f"stopped here; {detail}"
    return [_STEP_MARKS.get(step.state, " "), str(step.index + 1), step.title, detail]


def verdict_row(verdict: AlarmVerdict) -> list[str]:
    """n, k, the rate with its interval, the evidence of a breach and the proof of health."""
    rate = "-"
    if verdict.rate is not None and verdict.rate_low is not None and verdict.rate_high is not None:
        rate = f"{verdict.rate * 100:.2f}% ({verdict.rate_low * 100:.2f}-{verdict.rate_high * 100:.2f})"
    if verdict.over is not None:
        health = f"against {verdict.baseline_k:g} of {verdict.baseline_n:,} on the release beside it"
    else:
        health = "health proved" if verdict.healthy else f"health not yet, {odds(verdict.health)} of {verdict.health_needs:.0f}"
    breach = f"evidence {odds(verdict.evidence)} : 1, rolls back at {verdict.trips_at:,.0f} : 1"
    return [verdict.alarm, f"n={verdict.n:,}", f"k={verdict.k:g}" if float(verdict.k).is_integer() else f"k={verdict.k:.1f}", rate,
            paint(breach, "bad" if verdict.tripped else ""), health]  # fmt: skip


def odds(ratio: float) -> str:
    """`2,158` or `0.37`, to one."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
