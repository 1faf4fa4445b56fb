"""Reading a stage's scale: in force, advised, its bounds, who holds it, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from django.utils import timezone

from denvweb.core import wire
from fleets import selectors as fleets
from fleets.domain.scaling.types import Bounds, Knob
from fleets.domain.views import UnitView
from metrics import selectors as metrics
from releases.domain.rollout_units import of_release, serving
from releases.domain.scaling import bounds_of, in_force, shape_text
from releases.domain.scaling_views import KnobView, ScaleView
from releases.domain.spec_types import StageSpec
from releases.models import StageScale
from releases.selectors.releases import release_key, stage_spec
from releases.selectors.scales import conditional_now, counts_of
from releases.selectors.stages import stage_row

SHOWN = 10  # decisions


def scale_view(*, stage: str) -> ScaleView:
    """One stage; before its first release, what its settings start with."""
    row, now = stage_row(stage), timezone.now()
    spec = stage_spec(row.release, row.name) if row.release else wire.from_plain(row.settings, StageSpec)
    scale = StageScale.objects.filter(stage=row).first() or StageScale(stage=row)
    units = fleets.units_view(stage=stage, now=now)
    mine = of_release(units, release_key(row.release)) if row.release else []
    counts, advised = in_force(spec, counts_of(scale.wanted)), counts_of(scale.advised)
    return ScaleView(
        stage=stage,
        scaling=spec.scaling.value,
        ratio=shape_text(counts),
        ratio_advised=shape_text({**counts, **advised}) if advised else "",
        knobs=tuple(_knob(knob, bounds, counts[knob], mine, advised.get(knob), scale.manual) for knob, bounds in bounds_of(spec).items()),
        why=scale.advised_why,
        looked_at=scale.looked_at,
        cool_down_s={knob: rest_s for knob, until in scale.waits.items() if (rest_s := _rest_s(until, now)) > 0},
        local_prefill_below=conditional_now(row, spec.topology.conditional).local_prefill_below,
        decisions=metrics.events_view(stage=stage, kind="scale.", limit=SHOWN),
    )


def _rest_s(until: str, now: datetime) -> float:
    return (datetime.fromisoformat(until) - now).total_seconds()


def _knob(
    knob: Knob, bounds: Bounds, count: int, units: Sequence[UnitView], advised: int | None, manual: Mapping[str, dict[str, str]]
) -> KnobView:
    held = manual.get(knob.value)
    if knob is Knob.UNITS:
        ready = len(serving(units))
    else:
        ready = min((pool.ready for unit in units for pool in unit.pools if pool.role is knob.role), default=0)
    return KnobView(
        knob=knob.value,
        in_force=count,
        ready=ready,
        advised=advised,
        least=bounds.least,
        most=bounds.most,
        held_by=held["by"] if held else "",
        held_at=datetime.fromisoformat(held["at"]) if held else None,
    )
