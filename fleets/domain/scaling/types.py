"""The nouns of scaling: what can be moved, between what, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleets.domain.types import Role


class Knob(StrEnum):
    """A number that may change at run time. Those of roles are replicas of one serving unit; all units of a stage are alike."""

    UNITS = "units"
    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"

    @property
    def role(self) -> Role | None:
        """The pool whose replicas it counts; None for units."""
        return None if self is Knob.UNITS else Role(self.value)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a number may be, both ends included."""

    least: int
    most: int

    @property
    def fixed(self) -> bool:
        """Whether only a release changes it."""
        return self.least == self.most

    def clamp(self, count: int) -> int:
        """The nearest number inside."""
        return max(self.least, min(self.most, count))
