"""What the releases app answers with: the same values feed pages, API and command."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleets.domain.views import RoutersView, UnitHead, UnitView
from metrics.domain.views import AlarmVerdict, BreachView


@dataclass(frozen=True, slots=True)
class FindingView:
    """One line of a dry run. `arithmetic` and `fits` are further sentences under it."""

    severity: str  # `error`, `warn`, `advice`, `ok`
    code: str
    subject: str  # `stage prod-us`
    sentence: str
    arithmetic: str = ""
    fits: str = ""


@dataclass(frozen=True, slots=True)
class PlanStepView:
    """One step of a plan or of a running rollout, in words."""

    index: int
    kind: str  # `bring-up`, `shift`, `hold`, `approve`, `replace`, `retire`, `bake`
    title: str  # `canary 10%`
    detail: str
    state: str = "planned"  # `planned`, `now`, `done`, `stopped`: where it turned round, or ended before its end
    weight_bp: int | None = None
    started_at: datetime | None = None
    ends_at: datetime | None = None
    ended_at: datetime | None = None
    told: tuple[str, ...] = ()  # of a step that is over: what was known of each alarm when its watch ended


@dataclass(frozen=True, slots=True)
class StagePlanView:
    """What a release would do, or does, to one stage."""

    stage: str
    from_release: int | None
    to_release: int
    changed: str  # `decode only (draft length 2 -> 3)`
    surge: bool
    capacity_ratio_min: float  # of the stage's units that serve at the worst moment
    way_back: str
    steps: tuple[PlanStepView, ...]


@dataclass(frozen=True, slots=True)
class DryRunView:
    """A dry run: running, or its findings and plans. `errors` are those of the file, by place."""

    id: str
    state: str  # `queued`, `running`, `done`
    progress: float  # 0 to 1
    progress_text: str
    release: str  # `ds-flash@8`: the number it would get
    recipe: str
    file_errors: tuple[str, ...]
    findings: tuple[FindingView, ...]
    plans: tuple[StagePlanView, ...]
    error_count: int
    warning_count: int


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """One release."""

    model: str
    number: int
    recipe: str
    weights: str
    created_at: datetime
    created_by: str
    note: str
    yaml: str
    spec: dict[str, Any]  # normalised
    generations: dict[str, str]  # by role, and `compat`
    stages: tuple[str, ...]  # where it serves now
    held: str  # the reason when automation may not deploy it; empty otherwise


@dataclass(frozen=True, slots=True)
class ReleaseHead:
    """What lists of hundreds of releases say of one; the words are ReleaseView's."""

    model: str
    number: int
    recipe: str
    created_at: datetime
    created_by: str
    note: str
    held: str
    stages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutView:
    """One rollout, over or under way. `why` always says what it waits for."""

    id: str
    stage: str
    kind: str  # `rollout` or `rollback`
    from_release: int | None
    to_release: int
    state: str  # the state machine's
    reason: str  # code
    why: str  # sentence
    generation: int
    started_at: datetime
    started_by: str
    ended_at: datetime | None
    step_index: int
    step_count: int
    weight_bp: int  # of the new release, wanted
    plan: StagePlanView
    verdicts: tuple[AlarmVerdict, ...]
    active: bool
    note: str = ""  # why, in the words of whoever made the release that it goes to


@dataclass(frozen=True, slots=True)
class PreflightView:
    """What a rollback would do now."""

    possible: bool
    to_release: int | None
    warm_units: int
    desired_units: int
    capacity_ratio: float  # at once
    full_after_s: float | None  # until all units are back; 0 when they are
    sentence: str  # `Release 7 is warm on unit 1: all traffic in about 2 s, at 50% of capacity until unit 2 is back (about 20 s).`
    blocked_by: str = ""


@dataclass(frozen=True, slots=True)
class AlarmView:
    """An alarm of a stage beside its newest figure."""

    name: str
    metric: str
    quantile: float | None
    limit_s: float | None
    limit_ratio: float | None
    limit_text: str  # as written: `1500ms`, `1%`; `+25%` over the baseline
    value: float | None
    state: str  # `ok`, `over`, `no-data`; `rests` for a comparison with a baseline that there is not
    value_text: str = "-"  # as a person reads it


STAGE_STATES = ("steady", "rolling", "held", "baking", "rolling-back", "blocked", "degraded", "empty")


@dataclass(frozen=True, slots=True)
class StageView:
    """One stage as a page shows it."""

    stage: str  # `ds-flash/prod-us`
    model: str
    name: str
    fleets: tuple[str, ...]
    replicas: int  # serving units wanted
    state: str  # one of STAGE_STATES
    sentence: str
    release: int | None  # that serves, or served before the rollout
    releases: dict[str, float]  # share of the traffic wanted by release key
    units_ready: int
    simulated: bool
    endpoint: str  # where clients reach it
    units: tuple[UnitView, ...]
    routers: RoutersView
    alarms: tuple[AlarmView, ...]
    rollout: RolloutView | None  # the active one, else the last
    preflight: PreflightView
    frozen: str = ""  # `frozen until 2 Jan 2027 08:00 (Europe/Berlin): holidays`; empty when it is not
    frozen_until: datetime | None = None  # also None when no end is in sight
    healing_frozen: tuple[str, ...] = ()  # why nothing is healed in some of its fleets: too many nodes are silent at once
    breaches: tuple[BreachView, ...] = ()  # alarms that it breaks now; while a rollout is under way, that judges them


@dataclass(frozen=True, slots=True)
class FreezeWindowView:
    """One freeze window. `on` says whether it is in force now; `ends` is then when it ends, and `begins` when it begins the next time."""

    id: str
    model: str  # empty: every model
    stage: str  # empty: every stage
    zone: str
    days: tuple[str, ...]  # `mon` to `sun`; empty for one that is once
    start: str  # `18:00`, local to the zone
    end: str
    begins_at: datetime | None
    ends_at: datetime | None
    reason: str
    created_by: str
    created_at: datetime
    sentence: str  # `every stage, mon-fri 18:00-08:00 (Europe/Berlin)`
    on: bool
    begins: datetime | None
    ends: datetime | None


@dataclass(frozen=True, slots=True)
class StageHead:
    """What lists of hundreds of stages say of one; the words are StageView's."""

    stage: str
    model: str
    name: str
    fleets: tuple[str, ...]
    replicas: int
    state: str
    sentence: str
    release: int | None
    releases: dict[str, float]
    units_ready: int
    simulated: bool
    limits: dict[str, float]  # by metric: seconds, or a share
    rollout: RolloutView | None  # the active one
    units: tuple[UnitHead, ...]
    breaches: tuple[BreachView, ...] = ()
    ratio: str = ""  # in force, of one unit: `2P1D`
    ratio_advised: str = ""  # by scaling; empty before its first look
    queue_above: int | None = None  # requests waiting for prefill, over which more prompts are computed by decode; None: it never is


@dataclass(frozen=True, slots=True)
class ChangeView:
    """One value that differs between two spec files, as written in each; empty where it is not written."""

    path: str  # `release.engine.decode.speculative-draft-length`
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class DiffView:
    """Two releases of a model beside each other."""

    model: str
    number: int
    against: int
    touches: str  # `decode only (speculative-draft-length 2 -> 3)`
    changes: tuple[ChangeView, ...]
    unified: str  # diff of the two files, as `diff -u` writes it


@dataclass(frozen=True, slots=True)
class RecipeView:
    """One recipe of the catalogue."""

    recipe: str  # `deepseek-v4.1-flash/deepinfer@3`
    summary: str
    engine: str
    engine_version: str
    protocol: str
    gpu_kinds: tuple[str, ...]
    modes: tuple[str, ...]  # `aggregated`, `disaggregated`
    weight_bytes: float
    kv_bytes_per_token: float
    options: dict[str, dict[str, str]]  # engine flags by role
