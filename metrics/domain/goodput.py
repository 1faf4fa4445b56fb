"""Goodput: the requests that met their limits, for each second and GPU (DistServe, OSDI 2024: both TTFT and time per output token).

A stage's limits are those of its `ttft` and `itl` alarms at their highest quantile. A request meets them if its first token came
within the first and its gaps were, in their mean, within the second: what the simulator and the sizing count as good, so that what
was promised and what is measured are the same thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metrics.domain.types import AlarmSpec, Metric

MET, OF = "goodput.met", "goodput.of"  # the routers' counters


@dataclass(frozen=True, slots=True)
class GoodLimits:
    """Seconds; None: no such limit."""

    ttft_s: float | None = None
    itl_s: float | None = None

    @property
    def given(self) -> bool:
        """Whether there is anything to meet."""
        return self.ttft_s is not None or self.itl_s is not None

    def met(self, *, ttft_s: float | None, gap_s: float | None, failed: bool, left: bool) -> bool | None:
        """Whether a request met them, by its TTFT and its mean gap; None for one of which that cannot be said.

        Those are an answer in one piece, which has no first token, and a stream that was fine until its client `left`.
        """
        if failed:
            return False
        if ttft_s is not None and self.ttft_s is not None and ttft_s > self.ttft_s:
            return False
        if gap_s is not None and self.itl_s is not None and gap_s > self.itl_s:
            return False
        return None if left or ttft_s is None else True


def good_limits(alarms: Sequence[AlarmSpec]) -> GoodLimits:
    """The limits of a stage's alarms; a comparison with a release beside is none."""
    found = {alarm.metric: alarm.limit_s for alarm in sorted(alarms, key=lambda alarm: -alarm.p0) if alarm.over is None}
    return GoodLimits(found.get(Metric.TTFT), found.get(Metric.ITL))


@dataclass(frozen=True, slots=True)
class Goodput:
    """Of one group over a span: `met` of `of` requests, while it held `gpus` (their mean over the span; None when nobody said)."""

    met: int
    of: int
    gpus: float | None
    per_gpu_s: float | None  # requests that met the limits, a second and GPU


def goodput(counters: dict[str, int], gpus: float | None, span_s: float) -> Goodput | None:
    """None when no request was held against limits."""
    of = counters.get(OF, 0)
    if not of:
        return None
    met = counters.get(MET, 0)
    return Goodput(met, of, gpus, met / span_s / gpus if gpus else None)
