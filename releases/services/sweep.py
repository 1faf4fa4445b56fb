"""One look at every rollout under way at once: a fixed number of queries, each decided in memory, most of them with nothing to decide.

A rollout that waits, as nearly all do nearly always, only gets its newest figures and its sentence written, all of them in one
statement that waits for no lock. Whatever really decides something is left to `drive`, which looks anew under that rollout's lock:
nothing is ever decided on what was read here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction
from django.db.models import TextField
from django.db.models.functions import Cast

from denvweb.core import wire
from denvweb.failpoints import reach
from fleets import selectors as fleets
from fleets.domain.views import RoutersView, UnitView
from metrics.domain.views import AlarmVerdict
from metrics.services import alarm_keep, alarm_sweep
from metrics.services.alarms import Seen
from releases.domain.freezes import FreezeWindow, frozen
from releases.domain.rollout import step
from releases.domain.rollout_types import Observations, RollbackWish, RolloutState
from releases.models import Rollout, StageScale
from releases.selectors.freezes import freeze_windows
from releases.selectors.rollouts import Views, fleets_for, fleets_once, placer
from releases.services.decisions import has_moved
from releases.services.drive import ask_of, finite, plans_now, scaled_by, turn_of


@dataclass(frozen=True, slots=True)
class _Row:
    """A rollout as it was read. JSON comes as text: by way of dicts it costs more than all that is decided."""

    pk: str
    generation: int
    why: str
    data: str
    verdicts: str
    after: str | None
    wish_by: str | None
    wish_via: str | None
    wish_reason: str | None

    @property
    def wish(self) -> RollbackWish | None:
        """The committed request to go back, if there is one."""
        return RollbackWish(self.wish_by, self.wish_via or "", self.wish_reason or "") if self.wish_by is not None else None


@dataclass(frozen=True, slots=True)
class _Quiet:
    """A rollout that goes on waiting: what there is to write of it."""

    pk: str
    generation: int
    why: str
    verdicts: tuple[AlarmVerdict, ...] | None  # None: as they were


@dataclass(frozen=True, slots=True)
class _World:
    """All that was read for all rollouts."""

    units: dict[str, tuple[UnitView, ...]]
    routers: dict[str, RoutersView]
    windows: tuple[FreezeWindow, ...]
    views: Views


def rollouts_sweep(now: datetime) -> list[str]:
    """Look at all rollouts under way, oldest first; the ids of those that have something to decide."""
    rows = _read()
    states = _states(rows)
    asks = {pk: ask for pk, state in states.items() if (ask := ask_of(pk, state)) is not None}
    world = _world({state.stage for state in states.values()}, now)
    looks = dict(zip(asks, alarm_sweep(list(asks.values()), now), strict=True))
    busy: list[str] = []
    quiet: list[_Quiet] = []
    seen: list[Seen] = []
    for row in rows:
        look = looks.get(row.pk)
        found = None
        if look is not None or row.pk not in asks:
            found = _waits(row, states[row.pk], finite(look.verdicts) if look else (), world, now)
        if found is None:
            busy.append(row.pk)
            continue
        seen += look.seen if look else ()
        if found.why != row.why or found.verdicts is not None:
            quiet.append(found)
    _write(quiet, seen)
    return busy


def _read() -> list[_Row]:
    fields = ("generation", "why", "data_text", "verdicts_text", "after__state")
    wish = ("rollback_request__requested_by", "rollback_request__via", "rollback_request__reason")
    rows = Rollout.objects.exclude(state__in=Rollout.ENDED).order_by("created_at")
    rows = rows.annotate(data_text=Cast("data", TextField()), verdicts_text=Cast("verdicts", TextField()))
    return [_Row(*row) for row in rows.values_list("pk", *fields, *wish)]


def _states(rows: Sequence[_Row]) -> dict[str, RolloutState]:
    """What each remembers, with the numbers that are in force now where somebody ever scaled the stage."""
    states = {row.pk: wire.decode(row.data, RolloutState) for row in rows}
    scales = dict(StageScale.objects.filter(stage__rollouts__in=list(states)).values_list("stage_id", "wanted"))
    if scales:
        scaled = Rollout.objects.filter(pk__in=list(states), stage__in=list(scales)).select_related(
            "to_release__model", "from_release__model"
        )
        for row in scaled:
            states[row.pk] = scaled_by(scales[row.stage_id], states[row.pk], row.to_release, row.from_release)
    return states


def _world(stages: Collection[str], now: datetime) -> _World:
    return _World(
        units=fleets.units_views(stages=stages, now=now),
        routers=fleets.routers_views(stages=stages, now=now),
        windows=freeze_windows(),
        views=fleets_once(),
    )


def _waits(row: _Row, state: RolloutState, verdicts: tuple[AlarmVerdict, ...], world: _World, now: datetime) -> _Quiet | None:
    """What there is to write of a rollout that goes on waiting; None when it has something to decide."""
    model, _, name = state.stage.partition("/")
    obs = Observations(
        units=world.units[state.stage],
        routers=world.routers[state.stage],
        place=placer(fleets_for(state), world.views),
        verdicts=verdicts,
        rollback=row.wish,
        turn=turn_of(row.after),
        frozen=frozen(world.windows, model=model, stage=name, now=now) if world.windows else None,
    )
    if plans_now(state, obs):
        return None
    decision = step(state, obs, now)
    if decision.effects or decision.events or has_moved(wire.decode(row.data, RolloutState), decision.state):
        return None
    changed = bool(verdicts) and verdicts != wire.decode(row.verdicts, tuple[AlarmVerdict, ...])
    return _Quiet(row.pk, row.generation, decision.state.why, verdicts if changed else None)


_WRITE = """
WITH fresh AS (
    SELECT * FROM jsonb_to_recordset(%s::jsonb) AS seen (pk text, generation bigint, why text, verdicts jsonb)
), mine AS (
    SELECT kept.id FROM releases_rollout kept JOIN fresh ON fresh.pk = kept.id
    WHERE kept.generation = fresh.generation FOR NO KEY UPDATE OF kept SKIP LOCKED
)
UPDATE releases_rollout kept SET why = fresh.why, verdicts = COALESCE(fresh.verdicts, kept.verdicts)
FROM fresh JOIN mine ON mine.id = fresh.pk WHERE kept.id = mine.id
"""


def _write(quiet: Sequence[_Quiet], seen: Sequence[Seen]) -> None:
    """Two statements that wait for nobody. A rollout that was decided on meanwhile, or is being decided on, stays as it is."""
    with transaction.atomic():
        alarm_keep(seen)
        if quiet:
            with connection.cursor() as cursor:
                cursor.execute(_WRITE, [wire.encode(quiet).decode()])
        reach("sweep.before-commit")
    reach("sweep.after-commit")
