"""How far off the timing model may be: the middle four fifths of what was measured, over what it says.

Quantiles of measured over predicted time a token at 3,893 points of InferenceX (`make bench-sizing` finds them anew, and fails when they
are no longer these). Each family of models counts alike, so that what was measured most is not taken for all. They are wider upwards:
an engine may be slower than the model for many reasons, and faster for few. Of a family that the quantiles were not made of, four in five
points lie inside too; that is checked by leaving each family out in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleets.domain.timing import is_dense
from fleets.domain.types import ModelShape

COVERED_RATIO = 0.8  # of systems that lie inside


@dataclass(frozen=True, slots=True)
class Factors:
    """Real over predicted time of a step, at both ends of the interval."""

    fast: float
    slow: float


DENSE = Factors(0.81, 1.39)
EXPERTS = Factors(0.80, 1.95)


def step_factors(model: ModelShape) -> Factors:
    """Those of the model's kind."""
    return DENSE if is_dense(model) else EXPERTS
