"""What the charts of a stage share: values out of a frame, and a line for each release or unit with its key and its words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from frontend import charts, words
from frontend.charts import Chart, Key, Line, Say, Values, newest, rounded
from frontend.stagerows import two_releases
from metrics.domain.views import FrameView
from releases.domain.views import StageHead

NOTHING_YET = "No figures in this range yet"
NO_FIGURES = Say("No figures yet.", "They come with the first requests.")


@dataclass(frozen=True, slots=True)
class Drawn:
    """Lines with their key, and the newest value of each that has one: its name, whether it is on trial, the value."""

    lines: tuple[Line, ...]
    key: tuple[Key, ...]
    now: tuple[tuple[str, bool, float], ...]

    def say(self, one: Callable[[float], str], after: str = "", *, join: str = "; ") -> Say:
        """`19 waiting on unit 1,` and `2 waiting on unit 2; over 64 ...`."""
        first, *others = [f"{one(value)} on {name}" for name, _, value in self.now]
        rest = join.join(part for part in (", ".join(others), after) if part)
        return Say(f"{first}{',' if rest else '.'}", f"{rest}." if rest else "")


def values(frame: FrameView, name: str, group: str = "total") -> Values:
    """One line of a frame; without it, nothing at each of its instants."""
    return next((line.values for line in frame.lines if line.name == name and line.group == group), (None,) * len(frame.at))


def counted(frame: FrameView, name: str, group: str = "total") -> float | None:
    """What a line of counts a second comes to over the whole range; None when nothing was measured."""
    known = total(values(frame, name, group))
    return None if known is None else known * frame.step_s


def total(found: Iterable[float | None]) -> float | None:
    """The sum of what is known; None of nothing."""
    known = [value for value in found if value is not None]
    return sum(known) if known else None


def groups_of(frame: FrameView) -> list[str]:
    """In the order of the frame."""
    return list(dict.fromkeys(line.group for line in frame.lines))


def release_order(stage: StageHead, frame: FrameView) -> list[tuple[str, bool]]:
    """Releases with figures, what you have first, each with whether it is on trial."""
    base, _ = two_releases(stage)
    groups = [group for group in groups_of(frame) if any(value is not None for value in values(frame, "ttft.p99", group))]
    return sorted(((group, bool(base) and words.release_of(group) != base) for group in groups), key=lambda pair: (pair[1], pair[0]))


def is_past(stage: StageHead, release: str, canary: bool) -> bool:
    """Whether it was on trial once, and is no more."""
    return canary and words.release_of(release) != two_releases(stage)[1]


def by_release(stage: StageHead, frame: FrameView, name: str, scale: float = 1.0) -> Drawn:
    """A line for each release."""
    lines, keys, now = [], [], []
    for release, canary in release_order(stage, frame):
        number, colour = words.number_of(release), "canary" if canary else "base"
        drawn = rounded(values(frame, name, release), scale)
        lines.append(Line(f"release {number}", colour, drawn, canary, past=is_past(stage, release, canary)))
        keys.append(Key(number, colour))
        if (last := newest(drawn)) is not None:
            now.append((f"release {number}", canary, last))
    return Drawn(tuple(lines), tuple(keys), tuple(now))


def by_unit(stage: StageHead, frame: FrameView, name: str, scale: float = 1.0) -> Drawn:
    """A line for each serving unit, even ones thin."""
    base, _ = two_releases(stage)
    lines, now = [], []
    for unit in sorted(stage.units, key=lambda unit: unit.slot):
        canary = bool(base) and unit.release != base
        drawn = rounded(values(frame, name, unit.unit), scale)
        lines.append(Line(f"unit {unit.slot}", "canary" if canary else "base", drawn, canary, thin=unit.slot % 2 == 0))
        if (last := newest(drawn)) is not None:
            now.append((f"unit {unit.slot}", canary, last))
    return Drawn(tuple(lines), tuple(Key(line.name, line.colour) for line in lines), tuple(now))


def chart(
    name: str,
    title: str,
    say: Say,
    key: tuple[Key, ...],
    frame: FrameView,
    lines: Sequence[Line],
    *,
    empty: str = NOTHING_YET,
    **more: object,
) -> Chart:
    """A chart of these lines; without a value in any of them, the sentence `empty` in its place."""
    known = any(value is not None for line in lines for value in line.values)
    figure = charts.figure(frame.at, lines, **more) if known else {}  # type: ignore[arg-type]  # passed through by name
    return Chart(name, title, say if known else NO_FIGURES, key, figure, empty="" if known else empty)
