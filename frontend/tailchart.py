"""The chart of TTFT's p99 by phase.

A p99 has no parts: the request that waited longest in the queue need not be the one whose prefill took longest, so the phases' own
p99s add up to nothing. What has parts is each request. So the slowest percent of each release's streams is split, by the means of
its phases, which add up to the mean of its TTFT (metrics.domain.split).
"""

from __future__ import annotations

from collections.abc import Sequence

from frontend import charts, words
from frontend.charts import Chart, Key, Line, Mark, Say, rounded
from metrics.domain.split import Tail
from metrics.domain.views import FrameView

TITLE = "TTFT p99 by phase"
RAMP = (  # from the bottom of the stack up
    ("first-step", "first decode step", "ph-4"),
    ("transfer", "transfer", "ph-3"),
    ("prefill", "prefill", "ph-2"),
    ("queue", "queue", "ph-1"),
)
PHASES = tuple((f"tail.{phase}", text, colour) for phase, text, colour in RAMP)
_PANELS_MAX = 3


def build(frame: FrameView, releases: Sequence[tuple[str, bool]], drawn: Sequence[Mark]) -> Chart:
    """A panel for each release with streams in the range; `releases` are its groups, each with whether it is on trial."""
    known = [(release, canary, frame.slowest[release]) for release, canary in releases if release in frame.slowest]
    stacks = [(f"release {words.number_of(release)}", _lines(frame, release)) for release, _, _ in known[-_PANELS_MAX:]]
    key = tuple(Key("1st step" if "step" in text else text, colour.replace("-", "")) for _, text, colour in reversed(PHASES))
    figure = charts.panels(frame.at, stacks, unit="ms", marks=drawn) if stacks else {}
    empty = "" if stacks else "No streams with a first token in this range yet"
    return Chart(
        "tail", TITLE, say([(canary, words.number_of(release), tail) for release, canary, tail in known]), key, figure, empty=empty
    )


def _lines(frame: FrameView, release: str) -> list[Line]:
    values = {line.name: line.values for line in frame.lines if line.group == release}
    number = words.number_of(release)
    return [Line(f"{number} {text}", colour, rounded(values.get(name, ()), 1000)) for name, text, colour in PHASES]


def say(slowest: Sequence[tuple[bool, str, Tail]]) -> Say:
    """What is on trial first, and how it is worked out."""
    if not slowest:
        return Say("No figures yet.", "They come with the first streams.")
    (_, number, first), *others = sorted(slowest, key=lambda item: not item[0])
    rest = "; ".join(
        [_parts(first), *(f"{_head(other, tail).replace('Release', 'release', 1)} {_parts(tail)}" for _, other, tail in others)]
    )
    return Say(_head(number, first), f"{rest}. Means over each release's slowest 1%, which add up; p99s of phases do not.")


def _head(number: str, tail: Tail) -> str:
    return f"Release {number}'s slowest {tail.n:,} of {tail.of:,}: {tail.ttft_s * 1000:,.0f} ms,"


def _parts(tail: Tail) -> str:
    parts = (("queue", tail.queue_s), ("prefill", tail.prefill_s), ("transfer", tail.transfer_s), ("1st step", tail.first_step_s))
    return ", ".join(f"{seconds * 1000:,.0f} {name}" for name, seconds in parts)
