"""All stages at a glance: seven queries whatever their number, and nothing worked out that a list does not show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django.db.models import Q, QuerySet

from denvweb.core import wire
from denvweb.core.errors import NotFoundError
from fleets import selectors as fleets
from fleets.domain.views import UnitHead
from metrics import selectors as metrics
from metrics.domain.types import AlarmSpec
from releases.domain.plan_words import count
from releases.domain.rollout_words import stage_words
from releases.domain.views import StageHead
from releases.models import Rollout, Stage
from releases.selectors.releases import release_key
from releases.selectors.rollouts import state_of, view_of

_LARGE = [f"{release}__{column}" for release in ("from_release", "to_release") for column in ("yaml", "spec", "generations")]


def stage_heads(*, model: str = "", simulated: frozenset[str] | None = None) -> tuple[StageHead, ...]:
    """Every stage, or those of a model, by model and position. `simulated` are fleets' names where the caller knows them already."""
    return _heads(_rows().filter(**({"model__name": model} if model else {})), narrow=bool(model), simulated=simulated)


def stage_head(*, stage: str) -> StageHead:
    """One stage: six queries. Whether its fleets are simulated is left out."""
    model, _, name = stage.partition("/")
    found = _heads(_rows().filter(model__name=model, name=name), narrow=True, simulated=frozenset())
    if not found:
        raise NotFoundError(f"There is no stage {stage}.")
    return found[0]


def _heads(found: QuerySet[Stage], *, narrow: bool, simulated: frozenset[str] | None) -> tuple[StageHead, ...]:
    rows = list(found)
    keys = [str(row) for row in rows] if narrow else None
    rollouts, units, weights = _rollouts(rows), fleets.unit_heads(stages=keys), fleets.weights_view(stages=keys)
    if simulated is None:
        simulated = frozenset(fleet.fleet for fleet in fleets.fleet_heads() if fleet.simulated)
    heads = [_head(row, rollouts.get(row.pk), units.get(str(row), ()), weights.get(str(row), {}), simulated) for row in rows]
    breaches = metrics.breaches_view(stages=keys)
    return tuple(replace(head, breaches=() if head.rollout else breaches.get(head.stage, ())) for head in heads)


def _rows() -> QuerySet[Stage]:
    return Stage.objects.select_related("model", "release__model").defer("release__yaml", "release__spec", "release__generations")


def _rollouts(stages: Sequence[Stage]) -> dict[int, Rollout]:
    """The active rollout of each stage; of a stage on which nothing serves, the last one too, for what it says."""
    rows = Rollout.objects.filter(~Q(state__in=Rollout.ENDED) | Q(stage__release=None), stage__in=stages)
    linked = rows.select_related("stage__model", "from_release", "to_release").defer(*_LARGE)
    return {row.stage_id: row for row in linked.order_by("stage_id", "-created_at").distinct("stage_id")}


def _head(
    row: Stage, rollout: Rollout | None, units: tuple[UnitHead, ...], weights: dict[str, int], simulated: frozenset[str]
) -> StageHead:
    active = rollout is not None and rollout.state not in Rollout.ENDED
    stable = release_key(row.release) if row.release else ""
    wanted = row.settings["replicas"]
    complete = sum(unit.release == stable and not unit.stopping and unit.complete and unit.routable for unit in units)
    state = _state(rollout, active, stable, complete >= _wanted(rollout, active, row))
    serving = [unit for unit in units if unit.ready and unit.routable and not unit.stopping]
    current = rollout.to_release.number if rollout is not None and active else None
    return StageHead(
        stage=str(row),
        model=row.model.name,
        name=row.name,
        fleets=tuple(row.settings["fleets"]),
        replicas=wanted,
        state=state,
        sentence=_sentence(row, rollout, active, state, complete, units),
        release=row.release.number if row.release else current,
        releases={release: weight / 10_000 for release, weight in sorted(weights.items())},
        units_ready=sum(weights.get(unit.release, 0) > 0 or not weights for unit in serving),
        simulated=any(name in simulated for name in row.settings["fleets"]),
        limits=_limits(row),
        rollout=view_of(rollout) if rollout is not None and active else None,
        units=units,
    )


def _limits(row: Stage) -> dict[str, float]:
    """Limits of the stage's alarms, of several on one metric that of the highest quantile; comparisons with a release beside have none."""
    specs = sorted((wire.from_plain(plain, AlarmSpec) for plain in row.settings["alarm_specs"]), key=lambda spec: -spec.p0)
    return {
        spec.metric: next(limit for limit in (spec.limit_s, spec.limit, spec.p0) if limit is not None) for spec in specs if not spec.over
    }


def _state(rollout: Rollout | None, active: bool, stable: str, enough: bool) -> str:
    words = stage_words(state_of(rollout), active) if rollout is not None else "steady"
    if words != "steady":
        return words
    if not stable:
        return "rolling" if active else "empty"
    return "steady" if enough else "degraded"


def _wanted(rollout: Rollout | None, active: bool, row: Stage) -> int:
    """Units that the stable release should have; while a rollout is under way the settings may be the other release's."""
    back = state_of(rollout).replicas_back if rollout is not None and active else None
    return int(back or row.settings["replicas"])


def _sentence(row: Stage, rollout: Rollout | None, active: bool, state: str, complete: int, units: Sequence[UnitHead]) -> str:
    if state in {"steady", "degraded"} and row.release is not None:
        serves = f"release {row.release.number} serves on {count(complete, 'unit')}"
        lacking = next((unit.detail for unit in units if not unit.complete and unit.detail), "the rest is being brought up")
        return serves if state == "steady" else f"{serves} of {row.settings['replicas']}; {lacking}"
    if rollout is None:
        return "nothing serves here yet"
    return rollout.why if active else f"nothing serves here: {rollout.why}"
