"""What users of a shape would see, by simulation, with an interval for what the timing model does not know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from fleets.domain.simulator.arrivals import drawn
from fleets.domain.simulator.run import simulate
from fleets.domain.simulator.types import Arrival, Result, Run, StageShape
from fleets.domain.sizing.interval import step_factors
from fleets.domain.sizing.load import Load, prefill_times
from fleets.domain.sizing.types import Forecast, MakeDraws, Need, Span
from fleets.domain.timing import StepTimes
from fleets.domain.types import Role

_BUSY_MAX = 0.98  # of prefill's time
_MOST_UNITS = 4  # simulated at once; more are like these
_MOST_OF_TRACE = 20_000  # requests of a trace that are played


@dataclass(frozen=True, slots=True)
class Steady:
    """The state to begin in: sequences on each replica that decodes, as the closed form has them."""

    batch: int
    input_tokens: int
    output_tokens: int


def forecast(shape: StageShape, need: Need, steady: Steady, make_draws: MakeDraws, *, requests: int = 4000) -> Forecast:
    """Three simulations: as the timing model says, and with every step as short and as long as four fifths of what was measured are."""
    result = play(shape, need, steady, make_draws, requests=requests)
    ends = []
    factors = step_factors(shape.model)
    for factor in (factors.fast, factors.slow):
        scaled = replace(shape, calibration=replace(shape.calibration, scale=shape.calibration.scale * factor))
        start = replace(steady, batch=ceil(steady.batch * factor))
        ends.append(play(scaled, need, start, make_draws, requests=requests))
    fast, slow = ends
    rate = need.process.rate_per_s
    return Forecast(
        ttft_p50=_span(fast.ttft.p50_s, result.ttft.p50_s, slow.ttft.p50_s),
        ttft_p99=_span(fast.ttft.p99_s, result.ttft.p99_s, slow.ttft.p99_s),
        itl_p50=_span(fast.itl.p50_s, result.itl.p50_s, slow.itl.p50_s),
        itl_p99=_span(fast.itl.p99_s, result.itl.p99_s, slow.itl.p99_s),
        goodput_ratio=result.goodput_ratio,
        goodput_per_gpu_s=rate * result.goodput_ratio / shape.gpus,
        output_tokens_per_gpu_s=rate * need.process.output_tokens * result.completed / max(1, result.requests) / shape.gpus,
        meets=result.meets(need.limits),
        rejected_ratio=result.rejected / max(1, result.requests),
        result=result,
    )


def play(shape: StageShape, need: Need, steady: Steady, make_draws: MakeDraws, *, requests: int) -> Result:
    """One simulation. A drawn load is played on at most four units with their share of it; a trace on all."""
    run = Run(limits=need.limits)
    if need.arrivals:
        return simulate(shape, need.arrivals[:_MOST_OF_TRACE], run)
    units = min(shape.units, _MOST_UNITS)
    process = replace(need.process, rate_per_s=need.process.rate_per_s * units / shape.units)
    arrivals: Iterable[Arrival] = drawn(process, need.requests or requests, make_draws(2))
    warm = replace(run, warm_batch=steady.batch, warm_input_tokens=steady.input_tokens, warm_output_tokens=steady.output_tokens)
    return simulate(replace(shape, units=units), arrivals, warm)


def overrun(load: Load, shape: StageShape, steady: Steady) -> Role | None:
    """The pool to which requests come faster than it can do them; None when there is none.

    A simulation of a few thousand requests need not show it, since a queue takes its time to grow.
    """
    last, first = shape.pools[-1], shape.pools[0]
    if steady.batch > last.max_sequences or steady.batch * load.context_tokens > shape.kv_tokens(last):
        return last.role
    if first.role is not Role.PREFILL:
        return None
    steps = StepTimes(shape.model, shape.gpu, first.gpus, shape.calibration)
    service_s, _ = prefill_times(load.remote, steps, first.max_batched_tokens)
    busy = load.rate_per_s * load.remote_ratio * service_s / (first.replicas * shape.units)
    return Role.PREFILL if busy >= _BUSY_MAX else None


def _span(low: float | None, value: float | None, high: float | None) -> Span:
    return Span(low or 0.0, value or 0.0, high or 0.0)
