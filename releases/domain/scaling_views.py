"""What is answered about scaling: the same values feed page, API and command."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from metrics.domain.views import EventView


@dataclass(frozen=True, slots=True)
class KnobView:
    """One number of a stage. `ready` is the fewest that any unit has of that role; of units, those that serve."""

    knob: str  # `units`, `prefill`, `decode`, `aggregated`
    in_force: int
    ready: int
    advised: int | None  # None: nothing was decided about it yet
    least: int
    most: int
    held_by: str = ""  # the person who set it, until they give it back
    held_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ScaleView:
    """A stage's numbers of units and replicas. `ratio` is the shape of one serving unit, `2P1D`."""

    stage: str
    scaling: str  # `auto`, `advisory` or `manual`, as the release has it
    ratio: str
    ratio_advised: str  # empty: nothing was decided yet
    knobs: tuple[KnobView, ...]
    why: str  # of the last decision, with its numbers
    looked_at: datetime | None  # when the traffic was last looked at
    cool_down_s: dict[str, float] = field(default_factory=dict)  # by knob: how long until it may move again; those that may are not there
    local_prefill_below: int = 0  # tokens: shorter uncached prompts are prefilled by decode
    decisions: tuple[EventView, ...] = ()  # newest first
