"""The charts of what happens between a request and its decode: who waits, how full KV is, what is moved, and who prefills."""

from __future__ import annotations

from collections.abc import Sequence

from denvweb.core.units import format_bytes
from frontend.chartlines import by_release, by_unit, chart, counted, total, values
from frontend.charts import Chart, Limit, Line, Mark, Say, newest, rounded
from metrics.domain.views import FrameView
from releases.domain.views import StageHead

TITLES = {
    "queue": "Prefill queue, depth",
    "wait": "Prefill queue, wait p99",
    "waiting": "Decode queue, depth",
    "kv": "Decode KV in use",
    "transfer": "KV transfer p99",
    "moved": "KV moved",
    "share": "Effective P/D ratio",
}
BY_RELEASE = ("queue.p99", "transfer.p99")
BY_UNIT = (
    *("gauge.prefill_queue", "gauge.waiting", "gauge.running", "gauge.kv_use"),
    *("engine.preemptions", "engine.kv_transfer_bytes", "engine.kv_transfers", "engine.kv_expired"),
)
IN_TOTAL = ("remote_ratio", "local_ratio", "kv.failed", "kv.recomputed")
_UNKNOWN = Say("No figures now.")
_UNSAID = "The engines do not say"


def build(stage: StageHead, by_releases: FrameView, by_units: FrameView, whole: FrameView, drawn: Sequence[Mark]) -> list[Chart]:
    """All of them, in the order of TITLES."""
    return [
        _queue(stage, by_units, drawn),
        _wait(stage, by_releases, drawn),
        _waiting(stage, by_units, drawn),
        _kv(stage, by_units, drawn),
        _transfer(stage, by_releases, by_units, whole, drawn),
        _moved(stage, by_units, drawn),
        _share(stage, whole, drawn),
    ]


def _alarm(stage: StageHead, metric: str, scale: float, unit: str) -> Limit | None:
    limit = stage.limits.get(metric)
    return None if limit is None else Limit(limit * scale, f"alarm {limit * scale:,.0f}{unit}")


def _queue(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    found, above = by_unit(stage, frame, "gauge.prefill_queue"), stage.queue_above
    limit = _alarm(stage, "prefill-queue", 1, "") or (None if above is None else Limit(above, f"local limit rises at {above:,}", soft=True))
    more = "" if above is None else f"over {above:,} decode computes longer prompts itself"
    say = found.say(lambda value: f"{value:,.0f} waiting", more) if found.now else _UNKNOWN
    return chart("queue", TITLES["queue"], say, found.key, frame, found.lines, limit=limit, marks=drawn)


def _wait(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    found = by_release(stage, frame, "queue.p99", 1000)
    where = "in the router, before a prefill replica takes the request"
    say = found.say(lambda value: f"{value:,.0f} ms", where, join=", ") if found.now else Say("No requests now.")
    return chart("wait", TITLES["wait"], say, found.key, frame, found.lines, unit="ms", marks=drawn)


def _waiting(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    found, running = by_unit(stage, frame, "gauge.waiting"), by_unit(stage, frame, "gauge.running")
    runs = " and ".join(f"{value:,.0f}" for _, _, value in running.now)
    say = found.say(lambda value: f"{value:,.0f} waiting", f"running: {runs}" if runs else "") if found.now else _UNKNOWN
    return chart("waiting", TITLES["waiting"], say, found.key, frame, found.lines, empty=f"{_UNSAID} who waits", marks=drawn)


def _kv(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    found = by_unit(stage, frame, "gauge.kv_use", 100)
    limit = _alarm(stage, "kv-use", 100, "%") or Limit(90, "preemption near 90%", soft=True)
    say = found.say(lambda value: f"{value:,.0f}%", _preempted(stage, frame)) if found.now else _UNKNOWN
    return chart("kv", TITLES["kv"], say, found.key, frame, found.lines, unit="%", limit=limit, marks=drawn, top=100.0)


def _preempted(stage: StageHead, frame: FrameView) -> str:
    count = _of_units(stage, frame, "engine.preemptions")
    if count is None:
        return ""
    return f"{count:,.0f} preempted in this range" if count else "no preemption in this range"


def _transfer(stage: StageHead, frame: FrameView, by_units: FrameView, whole: FrameView, drawn: Sequence[Mark]) -> Chart:
    found = by_release(stage, frame, "transfer.p99", 1000)
    say = Say("No transfers now.")
    if found.now:
        after = (_each(stage, by_units), _lost(stage, by_units, whole))
        say = found.say(lambda value: f"{value:,.0f} ms", "; ".join(part for part in after if part))
    return chart("transfer", TITLES["transfer"], say, found.key, frame, found.lines, unit="ms", empty="No KV was moved", marks=drawn)


def _of_units(stage: StageHead, frame: FrameView, name: str) -> float | None:
    return total(counted(frame, name, unit.unit) for unit in stage.units)


def _each(stage: StageHead, frame: FrameView) -> str:
    moved, transfers = _of_units(stage, frame, "engine.kv_transfer_bytes"), _of_units(stage, frame, "engine.kv_transfers")
    return f"{format_bytes(moved / transfers)} each in the mean" if moved and transfers else ""


def _lost(stage: StageHead, by_units: FrameView, whole: FrameView) -> str:
    failed, again = (counted(whole, name) or 0 for name in ("kv.failed", "kv.recomputed"))
    expired = _of_units(stage, by_units, "engine.kv_expired")
    leases = "" if expired is None else f"{expired:,.0f} leases expired, "
    fine = ": fine" if not (failed or again or expired) else ""
    return f"{failed:,.0f} failed, {leases}{again:,.0f} recomputed in this range{fine}"


def _moved(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    found = by_unit(stage, frame, "engine.kv_transfer_bytes", 1e-6)
    how = "from prefill to decode, as the engines count it"
    say = found.say(lambda value: f"{format_bytes(value * 1e6)}/s", how, join=", ") if found.now else _UNKNOWN
    return chart("moved", TITLES["moved"], say, found.key, frame, found.lines, unit="MB/s", empty=f"{_UNSAID} what they move", marks=drawn)


def _share(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    local = values(frame, "local_ratio")
    tokens = rounded(values(frame, "remote_ratio"), 100)
    requests = rounded(None if ratio is None else (1 - ratio) * 100 for ratio in local)
    now, decided = newest(tokens), newest(requests)
    ratio = f"{stage.ratio} in force{f', {stage.ratio_advised} advised' if stage.ratio_advised else ''}." if stage.ratio else ""
    say = Say("No requests now.", ratio)
    if now is not None and decided is not None:
        parts = f"from prefill, {100 - now:.0f}% computed by decode: short or cached prompts, or a full queue. Of requests {decided:.0f}%."
        say = Say(f"{now:.0f}% of prompt tokens", f"{parts} {ratio}".rstrip())
    lines = [
        Line("prompt tokens", "ink-2", tokens if any(value is not None for value in requests) else ()),
        Line("requests", "ink-3", requests, thin=True),
    ]
    return chart("share", TITLES["share"], say, (), frame, lines, unit="%", kind="area", marks=drawn, top=100.0)
