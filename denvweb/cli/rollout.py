"""`denv rollout ...` and `denv rollback`."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click

from denvweb.cli.client import Client
from denvweb.cli.output import echo_json, json_option, paint, redrawn, split_stage, table
from denvweb.core.errors import DenvError
from fleets.domain.views import UnitView
from metrics.domain.views import AlarmVerdict
from releases.domain.synthetic import synthetic_text
from releases.domain.views import PreflightView, RolloutView, StageView

_WATCH_EVERY_S = 1.0
_GOOD_ENDS = {"succeeded"}


def _evidence(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def verdict_row(verdict: AlarmVerdict) -> list[str]:
    """n, k, the rate with its interval, the evidence of a breach and the proof of health."""
    rate = "-"
    if verdict.rate is not None and verdict.rate_low is not None and verdict.rate_high is not None:
        rate = f"{verdict.rate * 100:.2f}% ({verdict.rate_low * 100:.2f}-{verdict.rate_high * 100:.2f})"
    health = "health proved" if verdict.healthy else f"health not yet, {_evidence(verdict.health)} of {verdict.health_needs:.0f}"
    breach = f"evidence {_evidence(verdict.evidence)} : 1, rolls back at {verdict.trips_at:,.0f} : 1"
    return [verdict.alarm, f"n={verdict.n:,}", f"k={verdict.k:g}" if float(verdict.k).is_integer() else f"k={verdict.k:.1f}", rate,
            paint(breach, "bad" if verdict.tripped else ""), health]  # fmt: skip


def _unit_lines(unit: UnitView, weights: dict[str, float]) -> list[str]:
    wanted = weights.get(unit.release, 0.0)
    seen = "not seen" if unit.weight_seen is None else f"{unit.weight_seen:.0%} seen"
    state = "ready" if unit.ready else unit.detail or "not ready"
    probed = ", probed" if unit.probed else ""
    lines = [
        f"|- unit {unit.slot}  release {unit.release.partition('@')[2]}   release share {wanted:.0%} wanted, {seen}   "
        f"{paint(state, 'ok' if unit.ready else 'warn')}{probed}"
    ]
    for index, pool in enumerate(unit.pools):
        branch = "`-" if index == len(unit.pools) - 1 else "|-"
        nodes = sorted({rank.node for replica in pool.replicas for rank in replica.ranks})
        where = nodes[0] if len(nodes) == 1 else f"{nodes[0]} .. {nodes[-1]}" if nodes else ""
        lines.append(f"|  {branch} {pool.role.value:<10} {pool.ready} of {pool.desired} ready   {unit.domain or unit.fleet}  {where}")
    return lines


def rollout_text(rollout: RolloutView, stage: StageView) -> str:
    """The tree that `denv rollout watch` redraws."""
    old = rollout.from_release if rollout.from_release is not None else "nothing"
    where = f"step {min(rollout.step_index + 1, rollout.step_count)} of {rollout.step_count}" if rollout.active else ""
    share = f"{rollout.weight_bp / 100:g}% on {rollout.to_release}"
    since = f"since {rollout.started_at:%H:%M:%S} by {rollout.started_by}"
    lines = [
        "   ".join(part for part in (rollout.stage, f"{old} -> {rollout.to_release}", rollout.state, share, where, since) if part),
        f"way back: {stage.preflight.sentence}",
    ]
    for unit in stage.units:
        lines += _unit_lines(unit, stage.releases)
    steps = [
        f"{ {'done': 'x', 'now': '>', 'skipped': '-'}.get(step.state, ' ') } {step.title}" for step in rollout.plan.steps
    ]  # fmt: skip
    lines.append("steps  " + "   ".join(steps))
    if rollout.verdicts:
        lines.append(table([verdict_row(verdict) for verdict in rollout.verdicts if verdict.n or not verdict.synthetic], indent="  "))
    if made := synthetic_text(rollout.verdicts):
        lines.append(f"evidence: {made}")
    lines.append(f"{'why it waits' if rollout.active else 'outcome'}: {rollout.why}")
    return "\n".join(lines)


@click.group()
def rollout() -> None:
    """The journey of a stage from one release to another."""


def _current(client: Client, stage: str) -> RolloutView:
    model, name = split_stage(stage)
    return client.get(f"stages/{model}/{name}/rollout", RolloutView)


def _text(client: Client, view: RolloutView) -> str:
    return rollout_text(view, client.get(f"stages/{view.stage}", StageView))


@rollout.command()
@click.argument("stage", metavar="MODEL/STAGE")
@json_option
def show(stage: str, as_json: bool) -> None:
    """The active rollout of a stage, or its last one."""
    client = Client()
    view = _current(client, stage)
    if as_json:
        echo_json(view)
    else:
        click.echo(_text(client, view))


def watch_to_end(client: Client, rollout_id: str, *, as_json: bool) -> RolloutView:
    """Follow one rollout until it has ended or needs a person; with `as_json` one line a change."""
    shown: tuple[str, str, int] | None = None
    with redrawn() as draw:
        while True:
            view = client.get(f"rollouts/{rollout_id}", RolloutView)
            if not as_json:
                draw(_text(client, view))
            elif shown != (view.state, view.why, view.weight_bp):
                echo_json(view)
                shown = (view.state, view.why, view.weight_bp)
            if not view.active or view.state == "rollback-blocked":
                return view
            time.sleep(_WATCH_EVERY_S)


def exit_for(view: RolloutView) -> None:
    """Exit status for scripts: 0 when the release serves, 1 when it does not."""
    if view.state not in _GOOD_ENDS and not (view.kind == "rollback" and view.state == "rolled-back"):
        raise DenvError(f"{view.stage}: {view.state}: {view.why}", code="rollout-failed")


@rollout.command()
@click.argument("stage", metavar="MODEL/STAGE")
@json_option
def watch(stage: str, as_json: bool) -> None:
    """Follow a rollout to its end; exit status 1 unless it succeeds."""
    client = Client()
    exit_for(watch_to_end(client, _current(client, stage).id, as_json=as_json))


def _act(stage: str, action: str, body: dict[str, object], as_json: bool) -> None:
    model, name = split_stage(stage)
    client = Client()
    view = client.post(f"stages/{model}/{name}/rollout/{action}", RolloutView, body)
    if as_json:
        echo_json(view)
    else:
        click.echo(f"{view.stage}: {view.state}: {view.why}")


@rollout.command()
@click.argument("stage", metavar="MODEL/STAGE")
@click.option("--full", is_flag=True, help="Skip what is left of the steps; needs --reason.")
@click.option("--reason", default="", help="Why, for the journal.")
@click.option("--break-glass", default="", metavar="REASON", help="Go on in spite of freeze windows; the journal and all channels say so.")
@json_option
def promote(stage: str, full: bool, reason: str, break_glass: str, as_json: bool) -> None:
    """Approve the next step, or end a hold early."""
    seen = _current(Client(), stage).generation  # what this person decided on; a newer state refuses the promotion
    _act(stage, "promote", {"generation": seen, "full": full, "reason": reason, "break_glass": break_glass}, as_json)


@rollout.command()
@click.argument("stage", metavar="MODEL/STAGE")
@click.option("--reason", default="", help="Why, for the journal.")
@json_option
def pause(stage: str, reason: str, as_json: bool) -> None:
    """Hold the rollout where it is; alarms still roll it back."""
    _act(stage, "pause", {"reason": reason}, as_json)


@rollout.command()
@click.argument("stage", metavar="MODEL/STAGE")
@json_option
def resume(stage: str, as_json: bool) -> None:
    """Go on with a paused rollout."""
    _act(stage, "resume", {}, as_json)


@rollout.command()
@click.argument("stage", metavar="MODEL/STAGE")
@click.option("--reason", default="", help="Why, for the journal.")
@json_option
def abort(stage: str, reason: str, as_json: bool) -> None:
    """Give the rollout up: all traffic goes back to the stable release."""
    _act(stage, "abort", {"reason": reason}, as_json)


@click.command()
@click.argument("stage", metavar="MODEL/STAGE")
@click.option("--to", type=int, help="The release to go back to; the one before by default.")
@click.option("--reason", default="", help="Why, for the journal.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Stay until all traffic is on the old release.")
@json_option
def rollback(stage: str, to: int | None, reason: str, yes: bool, wait: bool, as_json: bool) -> None:
    """Send all traffic back to the release before, at once where a unit of it is warm."""
    model, name = split_stage(stage)
    client = Client()
    preflight = client.get(f"stages/{model}/{name}/preflight", PreflightView, to=to)
    if not preflight.possible:
        raise DenvError(preflight.blocked_by or preflight.sentence, code="rollback-does-not-fit")
    if not yes and not as_json:
        click.confirm(f"Roll back {stage} to {preflight.to_release}. {preflight.sentence} Go?", abort=True)
    began = time.monotonic()
    view = client.post(f"stages/{model}/{name}/rollback", RolloutView, {"to": to, "reason": reason})
    if not as_json:
        click.echo(f"rollback {view.id} accepted {datetime.now(UTC):%H:%M:%S}")
    while wait and not as_json:
        now = client.get(f"stages/{model}/{name}", StageView)
        target = f"{model}@{preflight.to_release}"
        if now.routers.weights.get(target) == 10_000 and now.routers.confirmed >= now.routers.generation:
            click.echo(
                f"all traffic on {preflight.to_release} after {time.monotonic() - began:.1f} s ({now.routers.live} routers confirmed)"
            )
            break
        time.sleep(0.2)
    if as_json:
        echo_json(view)
