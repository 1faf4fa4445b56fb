"""`denv metrics`."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from denvweb.cli.client import Client
from denvweb.cli.names import name_argument
from denvweb.cli.output import echo_json, echo_json_line, json_option, paint, redrawn, split_stage, table
from denvweb.cli.rollout_text import odds
from denvweb.core.units import format_bytes, format_duration, format_ratio
from metrics.domain.types import Metric
from metrics.domain.views import GroupView, LatencyView, MetricsView
from releases.domain.views import AlarmView, StageView

_WATCH_EVERY_S = 2.0
_OWN_FIGURE = ("kv-effective", "prefill-queue", "kv-use")  # what an alarm on it counts is in no other column


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f}" if seconds >= 0.0095 else f"{seconds * 1000:.1f}"


def _quantiles(latency: LatencyView | None) -> str:
    if latency is None or not latency.n:
        return "-"
    bound = ">=" if latency.p99_is_bound else ""
    return f"{_ms(latency.p50_s)}  {_ms(latency.p90_s)}  {bound}{_ms(latency.p99_s)} ms"


def _phases(group: GroupView) -> str:
    phases = [group.latencies.get(metric) for metric in (Metric.QUEUE, Metric.PREFILL, Metric.KV_TRANSFER, Metric.FIRST_STEP)]
    return "  ".join(_ms(phase.mean_s if phase else None) for phase in phases) + " ms"


def _slowest(group: GroupView) -> str:
    tail = group.slowest
    if tail is None:
        return "-"
    return "  ".join(_ms(seconds) for seconds in (tail.queue_s, tail.prefill_s, tail.transfer_s, tail.first_step_s)) + " ms"


def _prefill_queue(group: GroupView) -> str:
    depth, wait = group.gauges.get("prefill_queue"), group.latencies.get(Metric.QUEUE)
    p99 = f", p99 {_ms(wait.p99_s)} ms" if wait and wait.n else ""
    return f"{depth:.0f} waiting{p99}" if depth is not None else p99.removeprefix(", ") or "-"


def _decode_queue(group: GroupView) -> str:
    gauges = group.gauges
    return f"{gauges['waiting']:,.0f} waiting, {gauges['running']:,.0f} running" if {"waiting", "running"} <= gauges.keys() else "-"


def _decode_kv(group: GroupView) -> str:
    use, set_back = group.gauges.get("kv_use"), group.engines.get("preemptions")
    said = [*([f"{use:.0%}"] if use is not None else []), *([f"{set_back:,.0f} preempted"] if set_back is not None else [])]
    return ", ".join(said) or "-"


def _kv_transfers(group: GroupView) -> str:
    moved, transfers = group.engines.get("kv_transfer_bytes", 0.0), group.engines.get("kv_transfers", 0.0)
    each = f"{format_bytes(moved / transfers)} each, " if moved and transfers else ""
    lost = f"{group.kv_failed:,} failed, {group.engines.get('kv_expired', 0):,.0f} expired, {group.kv_recomputed:,} recomputed"
    return f"{each}{lost}" if group.remote else "-"


def _prefilled_locally(group: GroupView) -> str:
    reasons = "  ".join(f"{why} {count:,}" for why, count in sorted(group.reasons.items(), key=lambda item: -item[1]))
    return f"{format_ratio(group.local_ratio)}  ({reasons})" if reasons else format_ratio(group.local_ratio)


def _goodput(group: GroupView) -> str:
    good = group.goodput
    if good is None:
        return "-"
    share = f"{format_ratio(good.met / good.of)} within the limits"
    return share if good.per_gpu_s is None else f"{good.per_gpu_s:.3g}/s a GPU  ({share}, {good.gpus:.0f} GPUs)"


def _kv_moved(group: GroupView) -> str:
    return f"{group.remote - group.kv_lost:,} of {group.remote:,} remote" if group.remote else "-"


_ROWS: tuple[tuple[str, tuple[str, ...], Callable[[GroupView], str]], ...] = (
    ("ttft  p50 p90 p99", ("ttft",), lambda g: _quantiles(g.latencies.get(Metric.TTFT))),
    ("  queue prefill kv 1st", ("queue", "kv-transfer"), _phases),
    ("  of the slowest 1%", (), _slowest),
    ("itl   p50 p90 p99", ("itl",), lambda g: _quantiles(g.latencies.get(Metric.ITL))),
    ("e2e   p50 p90 p99", ("e2e",), lambda g: _quantiles(g.latencies.get(Metric.E2E))),
    ("error-rate", ("error-rate",), lambda g: format_ratio(g.error_ratio)),
    ("requests", (), lambda g: f"{g.requests:,}  {g.per_s:.1f}/s{f'  ({g.cancelled:,} left by clients)' if g.cancelled else ''}"),
    ("goodput", (), _goodput),
    ("KV moved", ("kv-effective",), _kv_moved),
    ("KV transfers", (), _kv_transfers),
    ("prefill queue", ("prefill-queue",), _prefill_queue),
    ("decode queue", (), _decode_queue),
    ("decode KV", ("kv-use",), _decode_kv),
    ("prefix-cache hits", (), lambda g: f"{format_ratio(g.cached_ratio)} of tokens"),
    ("KV from prefill", (), lambda g: f"{format_ratio(g.remote_ratio)} of tokens"),
    ("prefilled locally", (), _prefilled_locally),
)


def _alarm_cell(stage: StageView, metrics: tuple[str, ...]) -> str:
    """Limits and how they are kept; of a rollout under way also the evidence that one is broken, once there is more than none."""
    seen = stage.rollout.verdicts if stage.rollout is not None and stage.rollout.active else ()
    evidence = {one.alarm: f": evidence {odds(one.evidence)} : 1 of {one.trips_at:,.0f}" for one in seen if one.evidence > 1}
    cells = []
    for alarm in stage.alarms:
        if alarm.metric in metrics:
            level = {"over": "bad", "ok": "ok"}.get(alarm.state, "")
            own = f" {alarm.value_text}," if alarm.metric in _OWN_FIGURE and alarm.value is not None else ""
            cells.append(f"{alarm.name} {alarm.limit_text}{own} {paint(alarm.state, level)}{evidence.get(alarm.name, '')}")
    return "  ".join(cells) or "-"


def _advice(alarms: tuple[AlarmView, ...]) -> list[str]:
    lines = []
    for alarm in alarms:
        if alarm.state == "over" and alarm.metric == "ttft":
            lines.append("TTFT is set by the prefill pool: if it stays high, more prefill replicas, or prompts that share prefixes better.")
        if alarm.state == "over" and alarm.metric == "itl":
            lines.append("ITL is set by the decode pool: if it stays high, more serving units, or a smaller decode batch.")
    return lines


def _title(group: str, stage: StageView) -> str:
    """`release 8 (10%, canary)`; of a unit whose prefill was kept, `release 7+8`: the one that decodes is the unit's."""
    if "@" not in group:
        unit = next((unit for unit in stage.units if unit.unit == group), None)
        return group if unit is None else f"unit {unit.slot}, release {unit.release.partition('@')[2]}"
    numbers = "+".join(part.partition("@")[2] for part in group.split("+"))
    release = group.rpartition("+")[2]
    if release not in stage.releases:
        return f"release {numbers}"
    new = stage.rollout is not None and stage.rollout.active and release.endswith(f"@{stage.rollout.to_release}")
    return f"release {numbers} ({stage.releases[release]:.0%}{', canary' if new and stage.releases[release] < 1 else ''})"


def metrics_text(view: MetricsView, stage: StageView) -> str:
    """The whole answer of `denv metrics`."""
    shape = stage.units[0].shape if stage.units else "no units"
    head = [view.stage, f"last {format_duration(view.span_s)}", f"{view.total.per_s:.1f} req/s", f"{len(stage.units)} units of {shape}"]
    if stage.simulated:
        head.append("simulated engines")
    slots = {unit.unit: unit.slot for unit in stage.units}
    groups = sorted(view.groups, key=lambda group: slots.get(group.group, 0))  # units by their numbers; the rest as it came
    rows = [["", *(_title(group.group, stage) for group in groups), "alarm"]]
    rows += [[name, *(cell(group) for group in groups), _alarm_cell(stage, metrics)] for name, metrics, cell in _ROWS]
    return "\n".join(["   ".join(head), "", table(rows), *(["", *advice] if (advice := _advice(stage.alarms)) else [])])


@click.command()
@name_argument("stage")
@click.option("--since", default="15m", show_default=True, help="How far back, as in 15m or 1h.")
@click.option("--by", type=click.Choice(["release", "unit", "total"]), default="release", show_default=True, help="One column for each.")
@click.option("--watch", is_flag=True, help="Draw anew every 2 s until interrupted; with --json one line of JSON each.")
@json_option
def metrics(stage: str, since: str, by: str, watch: bool, as_json: bool) -> None:
    """TTFT and its phases, ITL, errors, queues and KV use of a stage, each beside its alarm."""
    model, name = split_stage(stage)
    client = Client()
    with redrawn() as draw:
        while True:
            standing = client.get(f"stages/{model}/{name}", StageView)  # first, for it says when there is no such stage
            view = client.get(f"stages/{model}/{name}/metrics", MetricsView, since=since, by=by)
            if as_json:
                (echo_json_line if watch else echo_json)(view)
            else:
                draw(metrics_text(view, standing))
            if not watch:
                return
            time.sleep(_WATCH_EVERY_S)
