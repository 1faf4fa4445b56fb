"""What if the traffic were another: the shape that is there and the shape that would be advised, from little load to much.

For somebody who moves a slider and waits for the answer: fewer requests are simulated than `denv size` does, so a p99 is a rough one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from denvweb.core.errors import InvalidError
from fleets.domain.simulator.types import StageShape
from fleets.domain.sizing.advise import at_load
from fleets.domain.sizing.forecast import overrun, play
from fleets.domain.sizing.load import Load, load_of
from fleets.domain.sizing.size import size, steady_apart, steady_together
from fleets.domain.sizing.types import MakeDraws, Need, Serving, Sizing

_REQUESTS = 600
_LOADS = (0.1, 0.4, 0.7, 1.0, 1.3, 1.6, 2.0)  # times the load asked for


@dataclass(frozen=True, slots=True)
class At:
    """What users see at one load. None: the shape is overrun there."""

    rate_per_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    meets: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """One shape over all loads. `carries_per_s` is the largest load looked at within both limits, 0 when there is none."""

    shape: StageShape
    at: tuple[At, ...]
    asked_per_s: float  # one of the loads
    carries_per_s: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer. Without `advised`, `refusal` says why there is none."""

    present: Curve
    advised: Curve | None
    sizing: Sizing | None
    refusal: str


def what_if(serving: Serving, need: Need, present: StageShape, make_draws: MakeDraws) -> WhatIf:
    """Both shapes under the traffic of `need`, and the advised one for it: of the same kind, with or without roles."""
    quick = replace(need, requests=_REQUESTS)
    load = load_of(quick, present.conditional, make_draws)
    now = _curve(serving, quick, load, present, make_draws)
    try:
        sizing = size(serving, quick, make_draws, aggregated=len(present.pools) == 1)
    except InvalidError as error:
        return WhatIf(now, None, None, error.detail)
    return WhatIf(now, _curve(serving, quick, load, sizing.shape, make_draws), sizing, "")


def _curve(serving: Serving, need: Need, load: Load, shape: StageShape, make_draws: MakeDraws) -> Curve:
    points = tuple(_at(serving, need, load, shape, need.process.rate_per_s * times, make_draws) for times in _LOADS)
    kept = [point.rate_per_s for point in points if point.meets]
    return Curve(shape, points, need.process.rate_per_s, max(kept, default=0.0))


def _at(serving: Serving, need: Need, load: Load, shape: StageShape, rate_per_s: float, make_draws: MakeDraws) -> At:
    steady_of = steady_apart if len(shape.pools) > 1 else steady_together
    steady = steady_of(serving, replace(load, rate_per_s=rate_per_s), shape)
    if overrun(replace(load, rate_per_s=rate_per_s), shape, steady):
        return At(rate_per_s, None, None, None, None, False)
    result = play(shape, at_load(need, rate_per_s), steady, make_draws, requests=_REQUESTS)
    ttft, itl = result.ttft, result.itl
    return At(rate_per_s, ttft.p50_s, ttft.p99_s, itl.p50_s, itl.p99_s, result.meets(need.limits))
