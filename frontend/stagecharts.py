"""The charts of a stage: which lines they hold, what they say in a sentence, which events are drawn on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from frontend import charts, flowcharts, goodputchart, tailchart, words
from frontend.chartlines import by_release, chart, counted, is_past, release_order, total, values
from frontend.charts import Chart, Key, Limit, Line, Mark, Say, newest, rounded
from frontend.timerange import TimeRange
from metrics.domain.views import FrameView
from metrics.selectors import events_view, frames_view
from releases.domain.views import StageHead

PHASES = tuple((f"phase.{phase}", text, colour) for phase, text, colour in tailchart.RAMP)
ERRORS = (  # what a client sees, and the router's classes behind it
    ("queue full, 429", ("errors.queue-full",)),
    ("too late, 504", ("errors.timeout",)),
    ("stream cut", ("errors.stream-cut",)),
    ("engine, 5xx", ("errors.decode", "errors.prefill", "errors.connect", "errors.no-unit")),
)
LATENCIES = ("ttft.p50", "ttft.p99", "itl.p50", "itl.p99")
_MARKS_MAX = 8
_SHORTEST = timedelta(minutes=3)
_SECONDS_UNDER = timedelta(minutes=8)  # shorter axes have several ticks a minute
_MARK_KINDS = ("rollout", "rollback", "alarm", "release", "scale.decided", "scale.set", "scale.released")
_RAMP = ("ph-1", "ph-2", "ph-3", "ph-4")
_PATTERNS = ("", "/", "", "x")
TITLES = {
    "ttft": "TTFT, at the router",
    "itl": "ITL, at the router",
    "tail": tailchart.TITLE,
    "phases": "TTFT by phase, mean",
    "errors": "Errors by class, per minute",
    **flowcharts.TITLES,
    "requests": "Requests a second",
    "goodput": goodputchart.TITLE,
}
_BIG = ("ttft", "itl")
_LINES = {  # by grouping
    "release": (
        *(*LATENCIES, "requests", *flowcharts.BY_RELEASE),
        *(*(name for name, _, _ in tailchart.PHASES), *goodputchart.LINES),
    ),
    "total": (
        *(*(name for name, _, _ in PHASES), "requests", "errors", "cancelled"),
        *(*(name for _, classes in ERRORS for name in classes), *flowcharts.IN_TOTAL),
    ),
    "unit": flowcharts.BY_UNIT,
}


def stubs() -> list[Chart]:
    """Empty places for a refresh, which leaves the drawn charts alone."""
    return [Chart(name, title, Say(""), (), big=name in _BIG) for name, title in TITLES.items()]


def marks(stage: str, seen: TimeRange) -> tuple[Mark, ...]:
    """The newest events of rollouts and alarms in the range, lettered in the order they came."""
    events = [
        event for event in events_view(stage=stage, since=seen.since, until=seen.until, limit=60) if event.kind.startswith(_MARK_KINDS)
    ]
    oldest_first = list(reversed(events[:_MARKS_MAX]))
    return tuple(Mark(chr(ord("A") + index), event.at, event.sentence) for index, event in enumerate(oldest_first))


@dataclass(frozen=True, slots=True)
class Built:
    """The charts, and from when to when their axis goes."""

    charts: list[Chart]
    since: datetime
    until: datetime


def build(stage: StageHead, seen: TimeRange, drawn: Sequence[Mark]) -> Built:
    """All charts of the page, from one read of the figures."""
    frames = frames_view(stage=stage.stage, names=_LINES, span_s=seen.span_s, step_s=seen.step_s, now=seen.end)
    frame, whole, by_unit = (frames[by] for by in _LINES)
    releases = release_order(stage, frame)
    past = [release for release, canary in releases if is_past(stage, release, canary)]
    built = [
        _latency(stage, frame, drawn, "ttft"),
        _latency(stage, frame, drawn, "itl"),
        tailchart.build(frame, releases, drawn),
        _phases(whole, drawn),
        _errors(stage, whole, drawn),
        *flowcharts.build(stage, frame, by_unit, whole, drawn),
        _requests(stage, frame, drawn),
        goodputchart.build(frame, releases, stage.limits, drawn, past),
    ]
    since, until = _axis_of(seen, whole)
    for figure in (made.figure for made in built):
        if figure:
            axis = figure["layout"]["xaxis"]
            axis["range"] = [charts.iso(since), charts.iso(until)]
            axis["tickformat"] = "%H:%M:%S" if until - since < _SECONDS_UNDER else "%H:%M"
    return Built(built, since, until)


def _axis_of(seen: TimeRange, whole: FrameView) -> tuple[datetime, datetime]:
    """From when to when all charts are drawn: a range that stands still is as it was asked for."""
    if not seen.preset or not whole.at:
        return seen.since, seen.until
    return _since(whole) or whole.at[0], whole.at[-1]


def _since(frame: FrameView) -> datetime | None:
    """Where the time axis begins: with the first request when the range holds it, so that a young stage's lines can be read."""
    first = next((index for index, value in enumerate(values(frame, "requests")) if value is not None), None)
    if not first or not frame.at:
        return None
    return min(frame.at[first - 1], frame.at[-1] - _SHORTEST)


def _latency(stage: StageHead, frame: FrameView, drawn: Sequence[Mark], metric: str) -> Chart:
    high, low = (by_release(stage, frame, f"{metric}.{which}", 1000) for which in ("p99", "p50"))
    lines = [replace(line, name=f"{line.name} p50", thin=True) for line in low.lines] + [
        replace(line, name=f"{line.name} p99") for line in high.lines
    ]
    limit_s = stage.limits.get(metric)
    limit_ms = limit_s * 1000 if limit_s else None
    limit = Limit(limit_ms, f"alarm {limit_ms:,.0f} ms") if limit_ms else None
    key = (*high.key, Key("p99 bold, p50 thin", "note"))
    drawing = chart(metric, TITLES[metric], _latency_say(high.now, limit_ms), key, frame, lines, unit="ms", limit=limit, marks=drawn)
    return replace(drawing, big=True)


def _latency_say(said: Sequence[tuple[str, bool, float]], limit_ms: float | None) -> Say:
    if not said:
        return Say("No requests now.", "The lines show when there were some.")
    ordered = sorted(said, key=lambda item: not item[1])  # what is on trial is said first
    name, _, value = ordered[0]
    others = [f"{other} {other_value:,.0f} ms" for other, _, other_value in ordered[1:]]
    tail = [*others, f"limit {limit_ms:,.0f} ms: {_verdict(ordered, limit_ms)}" if limit_ms else "no alarm is set on it"]
    over = limit_ms is not None and value > limit_ms
    return Say(f"{name.capitalize()} p99 {value:,.0f} ms,", ", ".join(tail) + ".", "bad" if over else "")


def _verdict(said: Sequence[tuple[str, bool, float]], limit_ms: float) -> str:
    over = [f"{name} is over by {value - limit_ms:,.3g} ms" for name, _, value in said if value > limit_ms]
    return ", ".join(over) or "fine"


def _phases(frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    lines = [Line(text, colour, rounded(values(frame, name), 1000)) for name, text, colour in PHASES]
    now = {line.name: newest(line.values) for line in lines}
    whole = total(now.values())
    parts = ", ".join(f"{now[line.name] or 0:,.0f} {line.name}" for line in reversed(lines))
    say = Say("No requests now.") if whole is None else Say(f"{whole:,.0f} ms:", f"{parts}. Means add up; p99s do not.")
    key = tuple(Key("1st step" if "step" in line.name else line.name, line.colour.replace("-", "")) for line in reversed(lines))
    return chart("phases", TITLES["phases"], say, key, frame, lines, unit="ms", kind="stack", marks=drawn)


def _errors(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    columns = [[total(column) for column in zip(*(values(frame, name) for name in names), strict=True)] for _, names in ERRORS]
    lines = [
        Line(text, colour, rounded(column, 60), pattern=pattern)
        for (text, _), column, colour, pattern in zip(ERRORS, columns, _RAMP, _PATTERNS, strict=True)
    ]
    by_class = {text: round((total(column) or 0) * frame.step_s) for (text, _), column in zip(ERRORS, columns, strict=True)}
    requests, errors, left = (counted(frame, name) or 0 for name in ("requests", "errors", "cancelled"))
    key = tuple(Key(line.name.rpartition(", ")[2], line.colour.replace("-", "")) for line in lines)
    say = _errors_say(stage, requests, errors, by_class, left)
    return chart("errors", TITLES["errors"], say, key, frame, lines, kind="bars", marks=drawn, top=None if errors else 5.0)


def _errors_say(stage: StageHead, requests: float, errors: float, by_class: Mapping[str, int], left: float) -> Say:
    if not requests:
        return Say("No requests in this range.")
    ratio, limit = errors / requests, stage.limits.get("error-rate")
    verdict = "" if limit is None else f", limit {words.share(limit)}: {'fine' if ratio <= limit else 'over'}"
    classes = ", ".join(f"{count:,} {text.replace(', ', ' (')}{')' if ', ' in text else ''}" for text, count in by_class.items() if count)
    gone = f" Clients who left: {left:,.0f}, not errors." if left else ""
    return Say(
        f"{errors:,.0f} of {requests:,.0f} requests",
        f"in this range ({ratio * 100:.2f}%){verdict}.{f' {classes}.' if classes else ''}{gone}",
        "bad" if limit is not None and ratio > limit else "",
    )


def _requests(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    found = by_release(stage, frame, "requests")
    whole = sum(value for _, _, value in found.now)
    parts = ", ".join(f"{name} {value:,.1f} ({words.share(value / whole)})" for name, _, value in found.now) if whole else ""
    say = Say(f"{whole:,.1f} a second:", f"{parts}.") if whole else Say("No requests now.")
    return chart("requests", TITLES["requests"], say, found.key, frame, found.lines, marks=drawn)
