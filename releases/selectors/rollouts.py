"""Reading rollouts: as views, and as what decisions about them are made on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from functools import cache

from django.db.models import Count, Q, QuerySet

from denvweb.core import wire
from denvweb.core.errors import InvalidError, NotFoundError
from fleets import selectors as fleets
from fleets.domain.refusal import Refusal
from fleets.domain.types import UnitPlacement, UnitSpec
from metrics.domain.views import AlarmVerdict
from releases.domain.rollout_room import Fleets, place_near
from releases.domain.rollout_types import Placer, RolloutState
from releases.domain.rollout_words import step_index, steps_now
from releases.domain.views import RolloutView, StagePlanView
from releases.models import Rollout, Stage

ACTIVE = "active"
_UNSAID = (
    *("stage__settings", "stage__draining"),
    *(f"{release}__{column}" for release in ("from_release", "to_release") for column in ("yaml", "spec", "generations")),
)


def rollout_rows() -> QuerySet[Rollout]:
    """Rollouts with what their views say of stage and releases, and without what they do not, which is ten times as large."""
    return Rollout.objects.select_related("stage__model", "from_release", "to_release").defer(*_UNSAID)


def rollout_view(*, id: str) -> RolloutView:
    """One rollout, under way or over."""
    row = rollout_rows().filter(pk=id).first() if "\0" not in id else None
    if row is None:
        raise NotFoundError(f"There is no rollout {id}.")
    return view_of(row)


def rollouts_view(
    *,
    model: str = "",
    stage: str = "",
    release: int | None = None,
    state: str = "",
    kind: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
    before: str = "",
    limit: int = 50,
    models: Collection[str] | None = None,
) -> tuple[RolloutView, ...]:
    """The rollouts that these words fit, newest first, of those `models` that may be seen; `before` ends the page before.

    `stage` is `ds-flash/prod-us`, `release` the number of one of the `model` that they lead to or away from, `state` the state
    machine's, or `active` for all that have not ended. They began from `since` on and before `until`.
    """
    of, _, name = stage.partition("/")
    words = {"stage__model__name": model, "kind": kind, "state": "" if state == ACTIVE else state}
    if stage:
        words |= {"stage__model__name": of, "stage__name": name or of}
    bounds = {"created_at__gte": since, "created_at__lt": until, "stage__model__name__in": models}
    rows = rollout_rows().filter(**{name: value for name, value in words.items() if value})
    rows = rows.filter(**{name: value for name, value in bounds.items() if value is not None})
    if release is not None:
        rows = rows.filter(Q(to_release__number=release) | Q(from_release__number=release))
    if state == ACTIVE:
        rows = rows.exclude(state__in=Rollout.ENDED)
    if before:
        rows = rows.filter(_older(before))
    return tuple(view_of(row) for row in rows.order_by("-created_at", "-id")[:limit])


def rollout_counts() -> tuple[tuple[str, str, str, int], ...]:
    """How many rollouts there are by stage, kind and state: one query."""
    rows = Rollout.objects.order_by().values_list("stage__model__name", "stage__name", "kind", "state").annotate(count=Count("pk"))
    return tuple((f"{model}/{name}", kind, state, count) for model, name, kind, state, count in rows)


def _older(id: str) -> Q:
    at = Rollout.objects.filter(pk=id).values_list("created_at", flat=True).first()
    if at is None:
        raise InvalidError(f"before: there is no rollout {id}.", fields={"before": ["not a rollout"]})
    return Q(created_at__lt=at) | Q(created_at=at, id__lt=id)


def view_of(row: Rollout, state: RolloutState | None = None) -> RolloutView:
    """The view of a row that came with its stage and releases; `state` where the caller has read it already."""
    state, plan = state or state_of(row), wire.from_plain(row.plan, StagePlanView)
    return RolloutView(
        id=row.pk,
        stage=str(row.stage),
        kind=row.kind,
        from_release=row.from_release.number if row.from_release else None,
        to_release=row.to_release.number,
        state=row.state,
        reason=row.reason,
        why=row.why,
        generation=row.generation,
        started_at=row.created_at,
        started_by=row.started_by,
        ended_at=row.ended_at,
        step_index=step_index(state),
        step_count=len(plan.steps),
        weight_bp=10_000 - state.weight_bp if row.kind == "rollback" else state.weight_bp,
        plan=StagePlanView(
            plan.stage,
            plan.from_release,
            plan.to_release,
            plan.changed,
            plan.surge,
            plan.capacity_ratio_min,
            plan.way_back,
            steps_now(plan, state),
        ),
        verdicts=wire.from_plain(row.verdicts, tuple[AlarmVerdict, ...]),
        active=row.state not in Rollout.ENDED,
        note=row.to_release.note,
    )


def state_of(row: Rollout) -> RolloutState:
    """What the state machine remembers."""
    return wire.from_plain(row.data, RolloutState)


def last_rollouts(stages: list[Stage]) -> dict[int, Rollout]:
    """The newest rollout of each stage, which is the active one if there is one: one query."""
    rows = Rollout.objects.filter(stage__in=stages).select_related("stage__model", "from_release__model", "to_release__model")
    return {row.stage_id: row for row in rows.order_by("stage_id", "-created_at").distinct("stage_id")}


def bring_up_s_of(stage: Stage) -> float | None:
    """How long a unit of this stage took to come up the last time that one did; None when none was watched yet."""
    return bring_ups_of([stage]).get(stage.pk)


def bring_ups_of(stages: Collection[Stage]) -> dict[int, float]:
    """The same for any number of stages, by their keys: one query."""
    rows = Rollout.objects.filter(stage__in=stages, data__bring_up_s__gt=0).order_by("stage_id", "-created_at").distinct("stage_id")
    return {stage: float(took) for stage, took in rows.values_list("stage_id", "data__bring_up_s")}


Views = Callable[[tuple[str, ...]], Fleets]


def fleets_once() -> Views:
    """Reads fleets when they are first asked for, and each set of them once."""

    @cache
    def views(names: tuple[str, ...]) -> Fleets:
        return fleets.fleet_views(names=names)

    return views


def placer(fleets_of: Callable[[UnitSpec], tuple[str, ...]], views: Views | None = None) -> Placer:
    """Finds room in a spec's fleets as they are at the first question; most looks never ask."""
    views = views or fleets_once()

    def place(spec: UnitSpec, planned: UnitPlacement | None) -> UnitPlacement | Refusal:
        return place_near(spec, views(fleets_of(spec)), planned)

    return place


def fleets_for(state: RolloutState) -> Callable[[UnitSpec], tuple[str, ...]]:
    """Each of the two releases has the fleets that its own file names."""
    return lambda spec: state.fleets if spec.release == state.new.release else state.fleets_back
