"""Reading stages: everything that a page, the command or a rollback wants to know of one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import QuerySet
from django.utils import timezone

from denvweb.core import wire
from denvweb.core.errors import NotFoundError
from fleets import selectors as fleets
from fleets.domain.refusal import Refusal
from fleets.domain.types import UnitPlacement, UnitSpec
from fleets.domain.views import FleetHead, RoutersView, UnitView
from metrics import selectors as metrics
from metrics.domain.alarm_figure import AlarmFigure
from metrics.domain.alarm_text import KV_USE, SHARES
from metrics.domain.types import AlarmSpec
from releases.domain.freezes import FreezeWindow, frozen
from releases.domain.plan_words import count, number
from releases.domain.rollout_preflight import Way, preflight
from releases.domain.rollout_types import BACKWARD, Phase, RolloutState
from releases.domain.rollout_units import of_release, serving
from releases.domain.rollout_words import stage_words
from releases.domain.scaling import Counts
from releases.domain.spec import StageSpec
from releases.domain.views import AlarmView, PreflightView, StageView
from releases.models import Release, Rollout, Stage
from releases.selectors.freezes import freeze_windows
from releases.selectors.releases import release_key, release_unit, stage_spec, units_wanted
from releases.selectors.rollouts import Views, bring_ups_of, fleets_for, fleets_once, last_rollouts, placer, state_of, view_of
from releases.selectors.scales import counts_of

ALARM_SPAN_S = 300.0


def stage_rows() -> QuerySet[Stage]:
    """Stages with what nearly every reader of them needs."""
    return Stage.objects.select_related("model", "release__model", "previous__model", "scale")


def stage_row(key: str) -> Stage:
    """The row of `ds-flash/prod-us`, or NotFoundError."""
    model, _, name = key.partition("/")
    row = stage_rows().filter(model__name=model, name=name).first()
    if row is None:
        raise NotFoundError(f"There is no stage {key}.")
    return row


@dataclass(frozen=True, slots=True)
class _Seen:
    """One stage as it stands, from all three apps."""

    row: Stage
    spec: StageSpec
    units: tuple[UnitView, ...]
    routers: RoutersView
    rollout: Rollout | None
    state: RolloutState | None
    windows: tuple[FreezeWindow, ...]
    bring_up_s: float | None  # how long a unit took to come up the last time
    figures: Mapping[str, AlarmFigure]  # beside each alarm
    wanted: Counts  # of units and replicas, as asked for at run time
    views: Views
    now: datetime

    @property
    def active(self) -> bool:
        """Whether a rollout is under way."""
        return self.rollout is not None and self.rollout.state not in Rollout.ENDED


def _looks(rows: Sequence[Stage], windows: tuple[FreezeWindow, ...] = ()) -> list[_Seen]:
    """All of the stages, in a number of queries that does not grow with theirs."""
    now, keys, last = timezone.now(), [str(row) for row in rows], last_rollouts(list(rows))
    specs = [wire.from_plain(row.settings, StageSpec) for row in rows]
    services = fleets.service_views(stages=keys, now=now)
    bring_ups, views = bring_ups_of(rows), fleets_once()
    alarms = {key: spec.alarm_specs for key, spec in zip(keys, specs, strict=True)}
    figures = metrics.alarm_figures_by_stage(alarms=alarms, span_s=ALARM_SPAN_S, now=now)
    return [
        _Seen(
            row=row,
            spec=spec,
            units=services[key][0],
            routers=services[key][1],
            rollout=last.get(row.pk),
            state=state_of(last[row.pk]) if row.pk in last else None,
            windows=windows,
            bring_up_s=bring_ups.get(row.pk),
            figures=figures[key],
            wanted=counts_of(row.scale.wanted) if hasattr(row, "scale") else {},
            views=views,
            now=now,
        )
        for row, key, spec in zip(rows, keys, specs, strict=True)
    ]


def stages_view(*, keys: Collection[str] | None = None) -> tuple[StageView, ...]:
    """Every stage, or these, by model and position."""
    heads = _fleet_heads()
    rows = [row for row in stage_rows() if keys is None or str(row) in keys]
    return _with_breaches(_view(seen, heads) for seen in _looks(rows, freeze_windows()))


def stage_view(*, stage: str) -> StageView:
    """One stage."""
    row = stage_row(stage)
    return _with_breaches([_view(_looks([row], freeze_windows())[0], _fleet_heads())])[0]


def _with_breaches(views: Iterable[StageView]) -> tuple[StageView, ...]:
    found = list(views)
    quiet = {view.stage for view in found if view.rollout is None or not view.rollout.active}
    breaches = metrics.breaches_view(stages=quiet) if quiet else {}
    return tuple(replace(view, breaches=breaches[view.stage]) if view.stage in breaches else view for view in found)


def preflight_view(*, stage: str, to: int | None = None) -> PreflightView:
    """What a rollback would do if it were asked for now; `to` a release number other than the one before."""
    row = stage_row(stage)
    seen = _looks([row])[0]
    if to is None or seen.active:
        return _preflight(seen)
    target = Release.objects.select_related("model").filter(model=row.model, number=to).first()
    if target is None:
        raise NotFoundError(f"There is no release {to} of {row.model.name}.")
    return _preflight_to(seen, target)


def _fleet_heads() -> dict[str, FleetHead]:
    """All fleets by name: one query."""
    return {head.fleet: head for head in fleets.fleet_heads()}


def _view(seen: _Seen, heads: Mapping[str, FleetHead]) -> StageView:
    row, rollout = seen.row, seen.rollout
    stable = release_key(row.release) if row.release else ""
    state = _state(seen, stable)
    held = frozen(seen.windows, model=row.model.name, stage=row.name, now=seen.now)
    current = rollout.to_release.number if rollout is not None and seen.active and row.release is None else None
    return StageView(
        stage=str(row),
        model=row.model.name,
        name=row.name,
        fleets=seen.spec.fleets,
        replicas=seen.state.replicas if seen.active and seen.state else _wanted(seen),
        state=state,
        sentence=_sentence(seen, state),
        release=row.release.number if row.release else current,
        releases={release: weight / 10_000 for release, weight in sorted(seen.routers.weights.items())},
        units_ready=len(_ready(seen)),
        simulated=any(heads[name].simulated for name in seen.spec.fleets if name in heads),
        endpoint=min(seen.routers.urls, default=""),
        units=seen.units,
        routers=seen.routers,
        alarms=_alarms(seen),
        rollout=view_of(rollout) if rollout else None,
        preflight=_preflight(seen),
        frozen=held.sentence if held else "",
        frozen_until=held.until if held else None,
        healing_frozen=tuple(heads[name].frozen for name in seen.spec.fleets if name in heads and heads[name].frozen),
    )


def _ready(seen: _Seen) -> list[UnitView]:
    """Units that carry the stage: those of releases with weight, or of the stable one before there are weights."""
    weights = seen.routers.weights
    return [unit for unit in serving(seen.units) if weights.get(unit.release, 0) > 0 or not weights]


def _state(seen: _Seen, stable: str) -> str:
    words = stage_words(seen.state, seen.active) if seen.state else "steady"
    if words != "steady":
        return words
    if not stable:
        return "rolling" if seen.active else "empty"
    complete = [unit for unit in of_release(seen.units, stable) if unit.complete and unit.routable]
    return "steady" if len(complete) >= _wanted(seen) else "degraded"


def _wanted(seen: _Seen) -> int:
    """Units that the stable release should have; the settings may be those of a release that has not begun."""
    return units_wanted(seen.row.release, seen.row.name, seen.wanted) if seen.row.release else seen.spec.replicas


def _sentence(seen: _Seen, state: str) -> str:
    if state in {"steady", "degraded"} and seen.row.release is not None:
        stable = release_key(seen.row.release)
        complete = [unit for unit in of_release(seen.units, stable) if unit.complete and unit.routable]
        serves = f"release {seen.row.release.number} serves on {count(len(complete), 'unit')}"
        lacking = next((unit.detail for unit in of_release(seen.units, stable) if not unit.complete and unit.detail), "")
        wanted = _wanted(seen)
        return serves if state == "steady" else f"{serves} of {wanted}{f'; {lacking}' if lacking else '; the rest is being brought up'}"
    if seen.rollout is not None and seen.active:
        return seen.rollout.why
    return "nothing serves here yet" if seen.rollout is None else f"nothing serves here: {seen.rollout.why}"


def _preflight(seen: _Seen) -> PreflightView:
    if seen.active and seen.state is not None:
        return _preflight_under_way(seen, seen.state)
    if seen.row.release is None or seen.row.previous is None:
        sentence = "Nothing serves here, so there is nothing to roll back." if seen.row.release is None else ""
        return preflight(Way(str(seen.row), None, "", seen.spec.replicas, None, sentence), units=(), routers=seen.routers, place=_no_place)
    return _preflight_to(seen, seen.row.previous)


def _preflight_under_way(seen: _Seen, state: RolloutState) -> PreflightView:
    release = number(state.old.release) if state.old else None
    desired = state.replicas_back or state.replicas
    if state.phase in BACKWARD:
        where = f"release {release}" if release else "nothing, as before its first release"
        sentence = f"It is on its way back to {where}: {seen.rollout.why if seen.rollout else state.why}."
        return PreflightView(False, release, 0, desired, 0.0, None, sentence, "rolling-back")
    if state.phase is Phase.PENDING:
        sentence = f"Release {number(state.new.release)} has not begun here; rolling back cancels it and changes nothing else."
        return PreflightView(True, release, desired, desired, 1.0, 0.0, sentence)
    if state.old is None:
        sentence = f"Release {number(state.new.release)} is the first one here; rolling back stops it, and nothing serves then."
        return PreflightView(True, None, 0, desired, 0.0, None, sentence)
    way = Way(str(seen.row), state.old, state.new.release, desired, state.bring_up_s)
    return preflight(way, units=seen.units, routers=seen.routers, place=placer(fleets_for(state), seen.views))


def _preflight_to(seen: _Seen, target: Release) -> PreflightView:
    current = release_key(seen.row.release) if seen.row.release else ""
    spec = stage_spec(target, seen.row.name)
    unit, desired = release_unit(target, seen.row.name, wanted=seen.wanted), units_wanted(target, seen.row.name, seen.wanted)
    way = Way(str(seen.row), unit, current, desired, seen.bring_up_s)
    return preflight(way, units=seen.units, routers=seen.routers, place=placer(lambda _: spec.fleets, seen.views))


def _no_place(spec: UnitSpec, planned: UnitPlacement | None) -> UnitPlacement | Refusal:
    return Refusal("nothing-to-roll-back", "there is nothing to place")


def _alarms(seen: _Seen) -> tuple[AlarmView, ...]:
    specs = seen.spec.alarm_specs
    if not specs:
        return ()
    return tuple(_alarm(spec, seen.spec.alarms.get(spec.name, ""), seen.figures[spec.name]) for spec in specs)


def _alarm(spec: AlarmSpec, text: str, figure: AlarmFigure) -> AlarmView:
    return AlarmView(
        name=spec.name,
        metric=spec.metric,
        quantile=None if spec.limit_s is None else round(1 - spec.p0, 6),
        limit_s=spec.limit_s,
        limit_ratio=spec.p0 if spec.metric in SHARES and spec.over is None else spec.limit if spec.metric == KV_USE else None,
        limit_text=text,
        value=figure.value,
        state=figure.state,
        value_text=figure.text,
    )
