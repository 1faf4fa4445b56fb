"""All stages at a glance: seven queries whatever their number, and nothing worked out that a list does not show."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from django.db.models import FilteredRelation, Q, TextField
from django.db.models.functions import Cast

from denvweb.core import wire
from denvweb.core.errors import InvalidError, NotFoundError
from fleets import selectors as fleets
from fleets.domain.scaling.types import Knob
from fleets.domain.views import UnitHead
from metrics import selectors as metrics
from metrics.domain.views import BreachView
from releases.domain.plan_words import count
from releases.domain.rollout_types import RolloutState
from releases.domain.rollout_words import stage_words
from releases.domain.scaling import Counts, in_force, shape_text
from releases.domain.spec_types import Mode, StageSpec
from releases.domain.views import StageHead
from releases.models import Rollout, Stage
from releases.selectors.rollouts import rollout_rows, state_of, view_of
from releases.selectors.scales import counts_of


@dataclass(frozen=True, slots=True)
class _Seen:
    """One stage as it stands, from all three apps. `counts` are what it should have between rollouts."""

    model: str
    name: str
    spec: StageSpec
    release: int | None
    counts: Counts
    advised: Counts
    rollout: Rollout | None
    state: RolloutState | None
    units: tuple[UnitHead, ...]
    weights: dict[str, int]

    @property
    def in_force(self) -> int:
        """Units."""
        return self.counts[Knob.UNITS]

    @property
    def active(self) -> RolloutState | None:
        """The state of a rollout that is under way."""
        return self.state if self.rollout is not None and self.rollout.state not in Rollout.ENDED else None


def stage_heads(*, model: str = "", simulated: frozenset[str] | None = None) -> tuple[StageHead, ...]:
    """Every stage, or those of a model, by model and position. `simulated` are fleets' names where the caller knows them already."""
    return _heads({"model__name": model} if model else {}, simulated)


def drawn_head(*, stage: str) -> StageHead:
    """What charts draw of one stage: four queries. How its units and it are is left out: which are ready, its state, what it breaks."""
    model, _, name = stage.partition("/")
    found = _look({"model__name": model, "name": name}, ranks=False)
    if not found:
        raise NotFoundError(f"There is no stage {stage}.")
    return _head(found[0], frozenset(), {})


def stage_keys() -> tuple[str, ...]:
    """`model/stage` of every stage, by model and position: what menus of them need."""
    return tuple(f"{model}/{name}" for model, name in Stage.objects.values_list("model__name", "name"))


def stages_found(
    *, model: str = "", state: str = "", fleet: str = "", after: str = "", limit: int | None = None, models: Collection[str] | None = None
) -> tuple[str, ...]:
    """The stages that these words fit, by model and position, of those `models` that may be seen; `after` ends the page before."""
    keys = stage_keys()
    if after and after not in keys:
        raise InvalidError(f"after: there is no stage {after}.", fields={"after": ["not a stage"]})
    rest = keys[keys.index(after) + 1 :] if after else keys
    if state or fleet:
        fits = {
            head.stage for head in stage_heads(simulated=frozenset()) if state in ("", head.state) and (not fleet or fleet in head.fleets)
        }
        rest = tuple(key for key in rest if key in fits)
    seen = [key for key in rest if model in ("", _model(key)) and (models is None or _model(key) in models)]
    return tuple(seen[:limit])


def _model(key: str) -> str:
    return key.partition("/")[0]


def stage_bases() -> dict[str, str]:
    """The release that each stage has, `ds-flash@7`, or is getting as its first; stages without one are left out. One query."""
    coming = FilteredRelation("rollouts", condition=~Q(rollouts__state__in=Rollout.ENDED))
    rows = Stage.objects.annotate(coming=coming).values_list("model__name", "name", "release__number", "coming__to_release__number")
    return {f"{model}/{name}": f"{model}@{has or gets}" for model, name, has, gets in rows if has or gets}


def _heads(within: Mapping[str, str], simulated: frozenset[str] | None) -> tuple[StageHead, ...]:
    seen = _look(within)
    if simulated is None:
        simulated = frozenset(fleet.fleet for fleet in fleets.fleet_heads() if fleet.simulated)
    breaches = metrics.breaches_view(stages=[f"{one.model}/{one.name}" for one in seen] if within else None)
    return tuple(_head(one, simulated, breaches) for one in seen)


def _look(within: Mapping[str, str], *, ranks: bool = True) -> list[_Seen]:
    """Stages, rollouts, units, ranks and weights: five queries."""
    columns = ("pk", "model__name", "name", Cast("settings", TextField()), "release__number", "scale__wanted", "scale__advised")
    rows = list(Stage.objects.filter(**within).values_list(*columns))
    keys = [f"{model}/{name}" for _, model, name, *_ in rows] if within else None
    rollouts = _rollouts(within)
    units, weights = fleets.unit_heads(stages=keys, ranks=ranks), fleets.weights_view(stages=keys)
    return [
        _Seen(
            model=model,
            name=name,
            spec=_spec(settings),
            release=release,
            counts=in_force(_spec(settings), counts_of(scaled or {})),
            advised=counts_of(advised or {}),
            rollout=rollouts.get(pk),
            state=state_of(rollouts[pk]) if pk in rollouts else None,
            units=units.get(f"{model}/{name}", ()),
            weights=weights.get(f"{model}/{name}", {}),
        )
        for pk, model, name, settings, release, scaled, advised in rows
    ]


@lru_cache(maxsize=4096)
def _spec(settings: str) -> StageSpec:
    return wire.decode(settings, StageSpec)


def _rollouts(within: Mapping[str, str]) -> dict[int, Rollout]:
    """The active rollout of each stage; of a stage on which nothing serves, the last one too, for what it says."""
    stages = {f"stage__{name}": value for name, value in within.items()}
    rows = rollout_rows().filter(~Q(state__in=Rollout.ENDED) | Q(stage__release=None), **stages)
    return {row.stage_id: row for row in rows.order_by("stage_id", "-created_at").distinct("stage_id")}


def _head(seen: _Seen, simulated: frozenset[str], breaches: Mapping[str, tuple[BreachView, ...]]) -> StageHead:
    key, rollout = f"{seen.model}/{seen.name}", seen.rollout if seen.active else None
    stable = f"{seen.model}@{seen.release}" if seen.release is not None else ""
    complete = sum(unit.release == stable and not unit.stopping and unit.complete and unit.routable for unit in seen.units)
    state = _state(seen, complete)
    serving = [unit for unit in seen.units if unit.ready and unit.routable and not unit.stopping]
    current = rollout.to_release.number if rollout is not None else None
    return StageHead(
        stage=key,
        model=seen.model,
        name=seen.name,
        fleets=seen.spec.fleets,
        replicas=seen.active.replicas if seen.active else seen.in_force,
        state=state,
        sentence=_sentence(seen, state, complete),
        release=seen.release if seen.release is not None else current,
        releases={release: weight / 10_000 for release, weight in sorted(seen.weights.items())},
        units_ready=sum(seen.weights.get(unit.release, 0) > 0 or not seen.weights for unit in serving),
        simulated=any(name in simulated for name in seen.spec.fleets),
        limits=_limits(seen.spec),
        rollout=view_of(rollout, seen.state) if rollout is not None else None,
        units=seen.units,
        breaches=() if rollout is not None else breaches.get(key, ()),
        ratio=shape_text(seen.counts),
        ratio_advised=shape_text({**seen.counts, **seen.advised}) if seen.advised else "",
        queue_above=seen.spec.topology.conditional.prefill_queue_above if seen.spec.topology.mode is Mode.DISAGGREGATED else None,
    )


def _limits(spec: StageSpec) -> dict[str, float]:
    """Limits of the stage's alarms, of several on one metric that of the highest quantile; comparisons with a release beside have none."""
    specs = sorted(spec.alarm_specs, key=lambda alarm: -alarm.p0)
    return {
        alarm.metric: next(limit for limit in (alarm.limit_s, alarm.limit, alarm.p0) if limit is not None)
        for alarm in specs
        if not alarm.over
    }


def _state(seen: _Seen, complete: int) -> str:
    words = stage_words(seen.state, seen.active is not None) if seen.state is not None else "steady"
    if words != "steady":
        return words
    if seen.release is None:
        return "rolling" if seen.active else "empty"
    # While a rollout is under way the settings may be the other release's.
    back = seen.active.replicas_back if seen.active else 0
    return "steady" if complete >= (back or seen.in_force) else "degraded"


def _sentence(seen: _Seen, state: str, complete: int) -> str:
    if state in {"steady", "degraded"} and seen.release is not None:
        serves = f"release {seen.release} serves on {count(complete, 'unit')}"
        lacking = next((unit.detail for unit in seen.units if not unit.complete and unit.detail), "the rest is being brought up")
        return serves if state == "steady" else f"{serves} of {seen.in_force}; {lacking}"
    if seen.rollout is None:
        return "nothing serves here yet"
    return seen.rollout.why if seen.active else f"nothing serves here: {seen.rollout.why}"
