"""Reading the glances of stages."""

from __future__ import annotations

from datetime import datetime

from django.db.models import TextField
from django.db.models.functions import Cast

from denvweb.core import wire
from metrics.domain.glance import POINTS, STEP_S, GlanceView, living
from metrics.models import Glance
from metrics.selectors.windows import floor_to


def glances_view(*, now: datetime) -> dict[str, GlanceView]:
    """The glance of every stage that has one, by stage: one query. What has not been written yet is a gap at the lines' end."""
    end = floor_to(now, STEP_S)
    rows = Glance.objects.values_list("stage", "end_at", Cast("data", TextField()))  # as text: one decoder, not two
    return {stage: _view(wire.decode(data, GlanceView), int((end - end_at).total_seconds()) // STEP_S) for stage, end_at, data in rows}


def _view(view: GlanceView, late_steps: int) -> GlanceView:
    if late_steps <= 1:  # the step that has just ended is being written
        return view
    lines = {
        group: {name: [*values[late_steps:], *([None] * min(late_steps, POINTS))] for name, values in by_name.items()}
        for group, by_name in view.lines.items()
    }
    return GlanceView(living(lines))
