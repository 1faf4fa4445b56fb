"""The last half hour of a stage in few numbers: what the overview draws of each of hundreds of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

STEP_S = 30
POINTS = 60
NAMES = ("ttft.p99", "itl.p99")
REDONE = 2  # steps that are worked out again each time: reports of them may still come in

Values = tuple[float | None, ...]
Lines = Mapping[str, Mapping[str, Values]]  # by group (a release), then by name


@dataclass(frozen=True, slots=True)
class GlanceView:
    """Lines of `POINTS` steps that end at the step which has just ended, and the rate and errors of the last minute."""

    lines: Lines = field(default_factory=dict)
    requests: int = 0
    errors: int = 0
    span_s: float = 60.0  # of the two counts: since the first request, when that is under a minute ago

    @property
    def per_s(self) -> float:
        """Requests a second."""
        return self.requests / self.span_s

    @property
    def error_ratio(self) -> float | None:
        """None without a request."""
        return self.errors / self.requests if self.requests else None


def shifted(lines: Lines, steps: int) -> dict[str, dict[str, list[float | None]]]:
    """The lines as they look `steps` later: what has left the span is gone, the new steps and the `REDONE` ones are unknown."""
    kept = max(0, POINTS - steps - REDONE)
    unknown = [None] * (POINTS - kept)
    return {
        group: {name: [*values[steps : steps + kept], *unknown] for name, values in by_name.items()} for group, by_name in lines.items()
    }


def living(lines: Mapping[str, Mapping[str, Sequence[float | None]]]) -> dict[str, dict[str, Values]]:
    """The lines without groups of which nothing is left."""
    return {
        group: {name: tuple(values) for name, values in by_name.items()}
        for group, by_name in lines.items()
        if any(value is not None for values in by_name.values() for value in values)
    }
