"""The charts of a stage: which lines they hold, what they say in a sentence, which events are drawn on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from frontend import charts, goodputchart, tailchart, words
from frontend.charts import Chart, Key, Limit, Line, Mark, Say, Values, newest, rounded
from frontend.stagerows import two_releases
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
    "queue": "Prefill queue, depth",
    "kv": "Decode KV in use",
    "transfer": "KV transfer p99",
    "share": "Prefilled remotely",
    "requests": "Requests a second",
    "goodput": goodputchart.TITLE,
}
_BIG = ("ttft", "itl")


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
    names = (*(name for name, _, _ in PHASES), "requests", "errors", *(name for _, classes in ERRORS for name in classes), "local_ratio")
    groups = {
        "release": (*LATENCIES, "requests", "transfer.p99", *(name for name, _, _ in tailchart.PHASES), *goodputchart.LINES),
        "total": names,
        "unit": ("gauge.prefill_queue", "gauge.kv_use"),
    }
    frames = frames_view(stage=stage.stage, names=groups, span_s=seen.span_s, step_s=seen.step_s, now=seen.end)
    frame, total, by_unit = (frames[by] for by in groups)
    releases = _release_order(stage, frame)
    built = [
        _latency(stage, frame, drawn, "ttft"),
        _latency(stage, frame, drawn, "itl"),
        tailchart.build(frame, releases, drawn),
        _phases(total, drawn),
        _errors(stage, total, drawn),
        _queue(stage, by_unit, drawn),
        _kv(stage, by_unit, drawn),
        _transfer(stage, frame, drawn),
        _share(total, drawn),
        _requests(stage, frame, drawn),
        goodputchart.build(frame, releases, stage.limits, drawn, _past(stage, releases)),
    ]
    since, until = _axis_of(seen, total)
    for chart in built:
        if chart.figure:
            axis = chart.figure["layout"]["xaxis"]
            axis["range"] = [charts.iso(since), charts.iso(until)]
            axis["tickformat"] = "%H:%M:%S" if until - since < _SECONDS_UNDER else "%H:%M"
    return Built(built, since, until)


def _axis_of(seen: TimeRange, total: FrameView) -> tuple[datetime, datetime]:
    """From when to when all charts are drawn: a range that stands still is as it was asked for."""
    if not seen.preset or not total.at:
        return seen.since, seen.until
    return _since(total) or total.at[0], total.at[-1]


def _since(frame: FrameView) -> datetime | None:
    """Where the time axis begins: with the first request when the range holds it, so that a young stage's lines can be read."""
    first = next((index for index, value in enumerate(_total(frame, "requests")) if value is not None), None)
    if not first or not frame.at:
        return None
    return min(frame.at[first - 1], frame.at[-1] - _SHORTEST)


def _chart(name: str, say: Say, key: tuple[Key, ...], frame: FrameView, lines: Sequence[Line], **more: object) -> Chart:
    known = any(value is not None for line in lines for value in line.values)
    figure = charts.figure(frame.at, lines, **more) if known else {}  # type: ignore[arg-type]  # passed through by name
    empty = "" if known else "No figures in this range yet"
    return Chart(
        name, TITLES[name], say if known else Say("No figures yet.", "They come with the first requests."), key, figure, name in _BIG, empty
    )


def _values(frame: FrameView, name: str, group: str) -> Values:
    return next((line.values for line in frame.lines if line.name == name and line.group == group), (None,) * len(frame.at))


def _groups(frame: FrameView) -> list[str]:
    return list(dict.fromkeys(line.group for line in frame.lines))


def _release_order(stage: StageHead, frame: FrameView) -> list[tuple[str, bool]]:
    """Releases with figures, what you have first, each with whether it is on trial."""
    base, _ = two_releases(stage)
    groups = [group for group in _groups(frame) if any(value is not None for value in _values(frame, "ttft.p99", group))]
    return sorted(((group, bool(base) and words.release_of(group) != base) for group in groups), key=lambda pair: (pair[1], pair[0]))


def _past(stage: StageHead, releases: Sequence[tuple[str, bool]]) -> list[str]:
    """Releases that were on trial once, and are no more."""
    return [release for release, canary in releases if canary and words.release_of(release) != two_releases(stage)[1]]


def _latency(stage: StageHead, frame: FrameView, drawn: Sequence[Mark], metric: str) -> Chart:
    lines: list[Line] = []
    said: list[tuple[str, bool, float]] = []
    keys: list[Key] = []
    for release, canary in _release_order(stage, frame):
        number, colour = words.number_of(release), "canary" if canary else "base"
        high = rounded(_values(frame, f"{metric}.p99", release), 1000)
        past = canary and words.release_of(release) != two_releases(stage)[1]
        lines.append(Line(f"release {number} p50", colour, rounded(_values(frame, f"{metric}.p50", release), 1000), canary, True, past))
        lines.append(Line(f"release {number} p99", colour, high, canary, past=past))
        keys.append(Key(number, colour))
        last = newest(high)
        if last is not None:
            said.append((number, canary, last))
    limit_s = stage.limits.get(metric)
    limit_ms = limit_s * 1000 if limit_s else None
    limit = Limit(limit_ms, f"alarm {limit_ms:,.0f} ms") if limit_ms else None
    keys.append(Key("p99 bold, p50 thin", "note"))
    return _chart(metric, _latency_say(said, limit_ms), tuple(keys), frame, lines, unit="ms", limit=limit, marks=drawn)


def _latency_say(said: Sequence[tuple[str, bool, float]], limit_ms: float | None) -> Say:
    if not said:
        return Say("No requests now.", "The lines show when there were some.")
    ordered = sorted(said, key=lambda item: not item[1])  # what is on trial is said first
    number, _, value = ordered[0]
    others = [f"release {other} {other_value:,.0f} ms" for other, _, other_value in ordered[1:]]
    tail = [*others, f"limit {limit_ms:,.0f} ms: {_verdict(ordered, limit_ms)}" if limit_ms else "no alarm is set on it"]
    over = limit_ms is not None and value > limit_ms
    return Say(f"Release {number} p99 {value:,.0f} ms,", ", ".join(tail) + ".", "bad" if over else "")


def _verdict(said: Sequence[tuple[str, bool, float]], limit_ms: float) -> str:
    over = [f"release {number} is over by {value - limit_ms:,.3g} ms" for number, _, value in said if value > limit_ms]
    return ", ".join(over) or "fine"


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _total(frame: FrameView, name: str) -> Values:
    return _values(frame, name, "total")


def _phases(frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    lines = [Line(text, colour, rounded(_total(frame, name), 1000)) for name, text, colour in PHASES]
    now = {line.name: newest(line.values) for line in lines}
    total = _sum(now.values())
    parts = ", ".join(f"{now[line.name] or 0:,.0f} {line.name}" for line in reversed(lines))
    say = Say("No requests now.") if total is None else Say(f"{total:,.0f} ms:", f"{parts}. Means add up; p99s do not.")
    key = tuple(Key("1st step" if "step" in line.name else line.name, line.colour.replace("-", "")) for line in reversed(lines))
    return _chart("phases", say, key, frame, lines, unit="ms", kind="stack", marks=drawn)


def _errors(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    lines = [
        Line(
            text,
            colour,
            rounded([_sum(column) for column in zip(*(_total(frame, name) for name in names), strict=True)], 60),
            pattern=pattern,
        )
        for (text, names), colour, pattern in zip(ERRORS, _RAMP, _PATTERNS, strict=True)
    ]
    requests, errors = (sum(value or 0 for value in _total(frame, name)) * frame.step_s for name in ("requests", "errors"))
    key = tuple(Key(line.name.rpartition(", ")[2], line.colour.replace("-", "")) for line in lines)
    return _chart("errors", _errors_say(stage, requests, errors), key, frame, lines, kind="bars", marks=drawn, top=None if errors else 5.0)


def _errors_say(stage: StageHead, requests: float, errors: float) -> Say:
    if not requests:
        return Say("No requests in this range.")
    ratio, limit = errors / requests, stage.limits.get("error-rate")
    verdict = "" if limit is None else f", limit {words.share(limit)}: {'fine' if ratio <= limit else 'over'}"
    return Say(
        f"{errors:,.0f} of {requests:,.0f} requests",
        f"in this range ({ratio * 100:.2f}%){verdict}.",
        "bad" if limit is not None and ratio > limit else "",
    )


def _unit_lines(stage: StageHead, frame: FrameView, name: str, scale: float) -> list[Line]:
    base, _ = two_releases(stage)
    lines = []
    for unit in sorted(stage.units, key=lambda unit: unit.slot):
        canary = bool(base) and unit.release != base
        lines.append(
            Line(
                f"unit {unit.slot}",
                "canary" if canary else "base",
                rounded(_values(frame, name, unit.unit), scale),
                canary,
                thin=bool(unit.slot % 2 == 0),
            )
        )
    return lines


def _unit_say(lines: Sequence[Line], say: Callable[[float], str]) -> Say:
    known = [(line.name, value) for line in lines if (value := newest(line.values)) is not None]
    if not known:
        return Say("No figures now.")
    (first, value), *others = known
    rest = ", ".join(f"{say(other)} on {name}" for name, other in others)
    return Say(f"{say(value)} on {first}{',' if rest else '.'}", f"{rest}." if rest else "")


def _queue(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    lines = _unit_lines(stage, frame, "gauge.prefill_queue", 1)
    key = tuple(Key(line.name, line.colour) for line in lines)
    return _chart("queue", _unit_say(lines, lambda value: f"{value:,.0f} waiting"), key, frame, lines, marks=drawn)


def _kv(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    lines = _unit_lines(stage, frame, "gauge.kv_use", 100)
    key = tuple(Key(line.name, line.colour) for line in lines)
    limit = Limit(90, "preemption near 90%", soft=True)
    say = _unit_say(lines, lambda value: f"{value:,.0f}%")
    return _chart("kv", say, key, frame, lines, unit="%", limit=limit, marks=drawn, top=100.0)


def _transfer(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    lines, keys, said = [], [], []
    for release, canary in _release_order(stage, frame):
        number, colour = words.number_of(release), "canary" if canary else "base"
        values = rounded(_values(frame, "transfer.p99", release), 1000)
        lines.append(Line(f"release {number}", colour, values, canary))
        keys.append(Key(number, colour))
        if (last := newest(values)) is not None:
            said.append(f"{last:,.0f} ms on release {number}")
    say = Say(f"{said[0]},", f"{', '.join([*said[1:], 'from the decode leg sent to KV on board'])}.") if said else Say("No transfers now.")
    return _chart("transfer", say, tuple(keys), frame, lines, unit="ms", marks=drawn)


def _share(frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    local = _total(frame, "local_ratio")
    values = [None if ratio is None else (1 - ratio) * 100 for ratio in local]
    now = newest(values)
    say = Say("No requests now.")
    if now is not None:
        say = Say(
            f"{now:.0f}% of requests",
            f"prefilled on a prefill replica, {100 - now:.0f}% locally by decode: short prompts, or a full queue.",
        )
    return _chart(
        "share", say, (), frame, [Line("prefilled remotely", "ink-2", rounded(values))], unit="%", kind="area", marks=drawn, top=100.0
    )


def _requests(stage: StageHead, frame: FrameView, drawn: Sequence[Mark]) -> Chart:
    lines, keys, now = [], [], {}
    for release, canary in _release_order(stage, frame):
        number, colour = words.number_of(release), "canary" if canary else "base"
        values = rounded(_values(frame, "requests", release))
        lines.append(Line(f"release {number}", colour, values, canary, past=canary and words.release_of(release) != two_releases(stage)[1]))
        keys.append(Key(number, colour))
        now[number] = newest(values) or 0.0
    total = sum(now.values())
    parts = ", ".join(f"release {number} {value:,.1f} ({words.share(value / total)})" for number, value in now.items()) if total else ""
    say = Say(f"{total:,.1f} a second:", f"{parts}.") if total else Say("No requests now.")
    return _chart("requests", say, tuple(keys), frame, lines, marks=drawn)
