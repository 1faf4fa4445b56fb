"""A made-up evening for the pages: two models, four stages in different states, two fleets, one of them in trouble."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from denvweb.core.errors import NotFoundError
from fleets.domain.hardware import GPUS
from fleets.domain.simulator.types import Limits, PoolShape, StageShape
from fleets.domain.types import NodeState, Role
from fleets.domain.views import (
    DomainMap,
    FleetHead,
    FleetMap,
    GpuCell,
    NodeMap,
    PoolView,
    RankView,
    ReplicaState,
    ReplicaView,
    RoutersView,
    UnitHead,
    UnitView,
)
from metrics.domain.glance import NAMES, POINTS, STEP_S, GlanceView, Values
from metrics.domain.split import Tail
from metrics.domain.views import BreachView, EventView, FrameView, LineView
from releases.catalog import catalog
from releases.domain.scaling_views import KnobView, ScaleView
from releases.domain.serving import process_of, serving_of
from releases.domain.views import (
    AlarmView,
    DryRunView,
    FindingView,
    PreflightView,
    ReleaseView,
    RolloutView,
    StageHead,
    StageView,
)
from releases.selectors.ground import Ground
from tests.integration import page_rollouts
from tests.integration.page_figures import NOW, ago, metrics, values_of
from tests.integration.page_rollouts import plan, rollout

YAML = """\
release:
  model: ds-flash
  weights: hf://deepseek-ai/DeepSeek-V4.1-Flash-1017@c41a7e2
  recipe: deepseek-v4.1-flash/deepinfer@3
  topology:
    mode: disaggregated
    prefill: { gpus: 4, replicas: 2 }
    decode: { gpus: 64, replicas: 1 }
stages:
  prod-us:
    fleets: [gb200-use1]
    replicas: 2
"""


# ---- fleets ----


def cell(index: int, unit: UnitView | None, role: Role | None, ordinal: int, first: bool) -> GpuCell:
    if unit is None:
        return GpuCell(index, "free")
    return GpuCell(index, "used", unit.stage, unit.unit, unit.slot, role, ordinal, unit.release, first)


def nvl72(name: str, unit: UnitView | None, lost: int | None = None) -> DomainMap:
    nodes = []
    for number in range(18):
        role, ordinal = (Role.PREFILL, number) if number < 2 else (Role.DECODE, 0)
        first = number in (0, 1, 2)
        state = NodeState.LOST if number == lost else NodeState.READY
        cells = tuple(cell(i, unit, role, ordinal, first and i == 0) for i in range(4))
        nodes.append(NodeMap(f"gb200-use1-{name}-n{number + 1:02d}", state, number == 9 and unit is None, ago(seconds=2), cells))
    return DomainMap(f"gb200-use1/{name}", 72, 0 if unit else 72 - 4 * (lost is not None) - 4, tuple(nodes))


def hgx(number: int, unit: UnitView | None, state: NodeState = NodeState.READY) -> DomainMap:
    cells = tuple(cell(i, unit, Role.PREFILL if i < 4 else Role.DECODE, 0, i in (0, 4)) for i in range(8))
    node = NodeMap(f"h200-use1-d{number:02d}-n01", state, False, ago(seconds=2 if state is NodeState.READY else 70), cells)
    return DomainMap(f"h200-use1/d{number:02d}", 8, 0 if unit or state is not NodeState.READY else 8, (node,))


def fleets() -> tuple[FleetMap, ...]:
    one, two = units()
    gb = (nvl72("d01", one), nvl72("d02", two), nvl72("d03", None, lost=6))
    h2 = (hgx(1, small_unit()), hgx(2, None), hgx(3, None, NodeState.SUSPECT), hgx(4, None, NodeState.SUSPECT))
    frozen = "2 of 4 nodes went silent at once: over a third, so nothing is healed or evicted until they answer."
    return (
        FleetMap("gb200-use1", "GB200", True, 216, 64, 54, 1, "", gb),
        FleetMap("h200-use1", "H200", True, 32, 8, 4, 2, frozen, h2),
    )


def many_domains(count: int = 40) -> FleetMap:
    domains = tuple(hgx(number, None, NodeState.SUSPECT if number == 7 else NodeState.READY) for number in range(1, count + 1))
    return FleetMap("h200-many", "H200", True, count * 8, count * 8 - 8, count, 1, "", domains)


# ---- units ----


def replica(role: Role, ordinal: int, release: str, gpus: int, state: ReplicaState = ReplicaState.READY, **gauges: float) -> ReplicaView:
    detail = "" if state is ReplicaState.READY else "rank 3 waits for its leader"
    rank = RankView("k-1", 0, "gb200-use1-d01-n01", tuple(range(min(4, gpus))), None, 0, "")
    return ReplicaView(f"r-{role.value}-{ordinal}-{release}", role, ordinal, release, "9f2c41", state, detail, dict(gauges), (rank,))


def unit(slot: int, release: str, domain: str, weight: float, busy: float, stage: str = "ds-flash/prod-us") -> UnitView:
    prefill = tuple(replica(Role.PREFILL, i, release, 4, waiting=round(19 * busy), running=round(4 * busy)) for i in range(2))
    decode = (replica(Role.DECODE, 0, release, 64, kv_use=0.71 * busy, running=round(1050 * busy), waiting=0),)
    return UnitView(
        unit=f"u-{slot}",
        slot=slot,
        stage=stage,
        release=release,
        shape="2P1D",
        gpus=72,
        fleet="gb200-use1",
        domain=domain,
        stopping=False,
        ready=True,
        complete=True,
        probed=True,
        routable=True,
        failed=False,
        detail="",
        inflight=round(1060 * busy),
        weight_seen=weight,
        pools=(PoolView(Role.PREFILL, 4, 2, 2, prefill), PoolView(Role.DECODE, 64, 1, 1, decode)),
    )


def units() -> tuple[UnitView, ...]:
    return unit(1, "ds-flash@7", "gb200-use1/d01", 0.9, 1.0), unit(2, "ds-flash@8", "gb200-use1/d02", 0.1, 0.2)


def small_unit() -> UnitView:
    pools = (PoolView(Role.AGGREGATED, 8, 1, 0, (replica(Role.AGGREGATED, 0, "llama-70b@22", 8, ReplicaState.STARTING),)),)
    return UnitView(
        "u-9", 1, "llama-70b/prod-us", "llama-70b@22", "1A", 8, "h200-use1", "h200-use1/d01",
        False, False, False, False, False, False, "aggregated replica 1: rank 3 waits for its leader", 4, None, pools,
    )  # fmt: skip


# ---- rollouts and stages ----


BREACH = "itl-p99 tripped at 1,667 : 1, 11 s after 22 took 25%. All traffic is on 21."
DOMAIN = "fleet h200-use1 domain is 8 GPUs; serving unit needs 72 (same-domain)"
SUM = "2 x 4 + 1 x 64 = 72, the domain has 8, short by 64"


def broken_stage() -> StageView:
    """Between rollouts, over a limit."""
    sentence = "llama-70b/staging breaks its limit: ttft-p99: 486 of 6,000 requests over 1,500 ms (8.1%, 7.42-8.82%) in 5:00 min"
    told = f"{sentence}, for 4:00 min without a break; evidence over 1,000,000 : 1, told at 34,560 : 1"
    over = tuple(replace(alarm, state="over") if alarm.name == "ttft-p99" else alarm for alarm in alarms(ttft=1.9))
    quiet = stage("llama-70b/staging", "steady", 21, on=(small_unit(),), fleet="h200-use1")
    return replace(quiet, alarms=over, breaches=(BreachView("ttft-p99", ago(minutes=7), told),))


def alarms(ttft: float = 1.12, itl: float = 0.055) -> tuple[AlarmView, ...]:
    return (
        AlarmView("ttft-p99", "ttft", 0.99, 1.5, None, "1500ms", ttft, "ok", f"{ttft * 1000:,.0f} ms"),
        AlarmView("itl-p99", "itl", 0.99, 0.06, None, "60ms", itl, "over" if itl > 0.06 else "ok", f"{itl * 1000:,.0f} ms"),
        AlarmView("itl-p99-over-baseline", "itl", None, None, None, "+25%", None, "rests"),
        AlarmView("error-rate", "error-rate", None, None, 0.01, "1%", 0.002, "ok", "0.2%"),
        AlarmView("kv-effective", "kv-effective", None, None, 0.01, "99%", 0.9995, "ok", "99.9%"),
        AlarmView("prefill-queue", "prefill-queue", None, None, None, "32", 0.0, "ok", "0% of requests over"),
    )


def preflight(to: int | None) -> PreflightView:
    if to is None:
        return PreflightView(False, None, 0, 1, 0, None, "There is no earlier release to go back to.", "no-earlier-release")
    sentence = f"Release {to} is warm on unit 1: all traffic in about 2 s, at 50% of capacity until unit 2 is back (about 20 s)."
    return PreflightView(True, to, 1, 2, 0.5, 20, sentence)


def stage(
    key: str,
    state: str,
    release: int | None,
    *,
    ro: RolloutView | None = None,
    shares: dict[str, float] | None = None,
    on: tuple[UnitView, ...] = (),
    fleet: str = "gb200-use1",
    back_to: int | None = None,
    sentence: str = "",
) -> StageView:
    model, _, name = key.partition("/")
    weights = shares if shares is not None else {f"{model}@{release}": 1.0}
    routers = RoutersView(
        key, 4118, 4118, 1, ("http://127.0.0.1:9100",), {k: round(v * 10000) for k, v in weights.items()}, {f"{model}@8": 118}
    )
    return StageView(
        stage=key,
        model=model,
        name=name,
        fleets=(fleet,),
        replicas=2,
        state=state,
        sentence=sentence or f"Release {release} serves on 2 units.",
        release=release,
        releases=weights,
        units_ready=len(on) or 2,
        simulated=True,
        endpoint="http://127.0.0.1:9100/v1",
        units=on,
        routers=routers,
        alarms=alarms(),
        rollout=ro,
        preflight=preflight(back_to),
    )


def stages() -> tuple[StageView, ...]:
    return (
        stage("ds-flash/staging", "steady", 8),
        rolling_stage(),
        held_stage(),
        stage(
            "llama-70b/prod-us",
            "rolling-back",
            21,
            ro=rollout("llama-70b/prod-us", "rolling-back", 21, 22, why=BREACH, weight_bp=0),
            shares={"llama-70b@21": 1.0, "llama-70b@22": 0.0},
            on=(small_unit(),),
            fleet="h200-use1",
            back_to=21,
            sentence="itl-p99 at 1,667 : 1; draining 22",
        ),
    )  # fmt: skip


def rolling_stage() -> StageView:
    return stage(
        "ds-flash/prod-us",
        "rolling",
        7,
        ro=rollout("ds-flash/prod-us", "rolling", 7, 8),
        shares={"ds-flash@7": 0.9, "ds-flash@8": 0.1},
        on=units(),
        back_to=7,
        sentence="hold 6:00 of 10:00 min, then 50%",
    )


def held_stage() -> StageView:
    why = "All 3 alarms proved healthy, n = 3,515. Waits for a person who is not deployer-b."
    return stage(
        "kimi-k2/prod-us",
        "held",
        12,
        ro=rollout("kimi-k2/prod-us", "held", 12, 13, reason="approval", why=why),
        shares={"kimi-k2@12": 0.9, "kimi-k2@13": 0.1},
        back_to=12,
        sentence=why,
    )


# ---- figures ----


def frame(*, stage: str, names: Sequence[str], span_s: float, step_s: float, by: str = "release", now: datetime = NOW) -> FrameView:
    points = int(span_s // step_s)
    at = tuple(now - timedelta(seconds=step_s * (points - i)) for i in range(points))
    view = next((view for view in stages() if view.stage == stage), rolling_stage())
    keys = {"unit": [unit.unit for unit in view.units], "total": ["total"]}.get(by, list(view.releases))
    lines = [LineView(key, name, values) for i, key in enumerate(keys) for name in names for values in values_of(name, i, points)]
    slowest = {key: Tail(109 - 96 * i, 10_836 - 9632 * i, 1.1, 0.6, 0.45 + 0.1 * i, 0.12, 0.05) for i, key in enumerate(keys)}
    return FrameView(stage, step_s, at, tuple(lines), slowest if by == "release" else {})


def frames(*, stage: str, names: Mapping[str, Sequence[str]], span_s: float, step_s: float, now: datetime = NOW) -> dict[str, FrameView]:
    return {by: frame(stage=stage, names=group, span_s=span_s, step_s=step_s, by=by, now=now) for by, group in names.items()}


def events() -> tuple[EventView, ...]:
    rows = [
        (9, 1, "rollout.shifted", "info", "Routers confirmed 10% on release 8", "system", "system", "ds-flash/prod-us"),
        (8, 2, "alarm.tripped", "bad", "Rolled back: itl-p99 over 60 ms, 1,667 : 1", "alarm", "alarm", "llama-70b/prod-us"),
        (7, 3, "rollout.refused", "info", "Promote refused: generation 4,117 had moved on", "deployer-b", "cli", "ds-flash/prod-us"),
        (6, 5, "fleet.frozen", "warn", "2 of 4 nodes silent: over a third, healing frozen", "system", "system", ""),
        (5, 6, "rollout.ready", "info", "Release 8: unit 2 ready and probed end to end", "system", "system", "ds-flash/prod-us"),
        (4, 14, "rollout.started", "info", "deployer-b started release 8", "deployer-b", "ui", "ds-flash/prod-us"),
    ]  # fmt: skip
    return tuple(
        EventView(
            seq, ago(minutes=minutes), kind, level, sentence, actor, via,
            stage=where, fleet="" if where else "h200-use1", evidence={"n": 120, "k": 8} if level == "bad" else {},
        )
        for seq, minutes, kind, level, sentence, actor, via, where in rows
    )  # fmt: skip


# ---- releases ----


def release(number: int, model: str = "ds-flash") -> ReleaseView:
    yaml = YAML if number == 7 else YAML.replace("replicas: 2 }", "replicas: 3 }")
    generations = {"prefill": "9f2c41" if number > 6 else "0b1d22", "decode": f"aa{number}f10", "compat": "c0ffee"}
    return ReleaseView(
        model, number, "deepseek-v4.1-flash/deepinfer@3", "hf://deepseek-ai/DeepSeek-V4.1-Flash-1017@c41a7e2", ago(days=9 - number),
        "deployer-b", "Draft length 2 → 3 on decode: lower ITL" if number == 8 else "", yaml, {}, generations,
        ("prod-us",) if number in (7, 8) else (), "" if number != 6 else "rolled back by an alarm; a person lifts it",
    )  # fmt: skip


def releases(model: str = "ds-flash") -> tuple[ReleaseView, ...]:
    return tuple(release(number, model) for number in (8, 7, 6))


def dry_run(state: str = "done", errors: bool = True) -> DryRunView:
    findings = (
        FindingView("error", "domain-too-small", "stage prod-us", DOMAIN, SUM, "fleet gb200-use1"),
        FindingView("warn", "no-room-to-surge", "stage prod-us", "Units are replaced one at a time."),
        FindingView("advice", "decode-near-limit", "stage prod-us", "Decode KV rises from 71% to 81%."),
    )  # fmt: skip
    return DryRunView(
        "dry-1", state, 1.0 if state == "done" else 0.4, "placing units", "ds-flash@9", "deepseek-v4.1-flash/deepinfer@3",
        (), findings if errors else findings[1:], () if errors else (plan("ds-flash/prod-us", 8, 9),), int(errors), 1,
    )  # fmt: skip


def heads(model: str = "", *, broken: bool = False) -> tuple[StageHead, ...]:
    """The same stages as lists see them."""
    same = ("stage", "model", "name", "fleets", "replicas", "state", "sentence", "release", "releases", "units_ready", "simulated")
    unit_same = ("unit", "slot", "stage", "release", "stopping", "ready", "complete", "routable", "detail")
    return tuple(
        StageHead(
            **{name: getattr(view, name) for name in same},
            limits={
                alarm.metric: alarm.limit_s or alarm.limit_ratio or float(alarm.limit_text)
                for alarm in view.alarms
                if alarm.state != "rests"
            },
            rollout=view.rollout if view.rollout and view.rollout.active else None,
            units=tuple(UnitHead(**{name: getattr(unit, name) for name in unit_same}) for unit in view.units),
            ratio="2P1D",
            ratio_advised="3P1D",
            queue_above=64,
        )
        for view in (*stages(), *([broken_stage()] if broken else []))
        if model in ("", view.model)
    )


def bases(found: Sequence[StageHead]) -> dict[str, str]:
    """What each of the stages has."""
    return {head.stage: f"{head.model}@{head.release}" for head in found if head.release is not None}


def fleet_heads() -> tuple[FleetHead, ...]:
    return tuple(FleetHead(fleet.fleet, fleet.simulated, fleet.nodes, fleet.nodes_silent, fleet.frozen) for fleet in fleets())


def glances() -> dict[str, GlanceView]:
    """The half hour before NOW."""
    found = {}
    for view in stages():
        drawn = frame(stage=view.stage, names=NAMES, span_s=POINTS * STEP_S, step_s=STEP_S, by="release", now=NOW)
        lines: dict[str, dict[str, Values]] = {}
        for line in drawn.lines:
            lines.setdefault(line.group, {})[line.name] = line.values
        total = metrics(stage=view.stage, span_s=60, by="release", now=NOW).total
        found[view.stage] = GlanceView(lines, total.requests, round(total.requests * (total.error_ratio or 0)), 60.0)
    return found


def ground(*, stage: str) -> Ground:
    """What the demo's stage is sized on: two units of 2P1D on GB200, 60 requests a second measured."""
    known = catalog()["deepseek-v4.1-flash/deepinfer@3"]
    serving = serving_of(known, GPUS["GB200"], simulated=True)
    pools = (PoolShape(Role.PREFILL, 2, 4, 64, 16_384), PoolShape(Role.DECODE, 1, 64, 256))
    shape = StageShape(serving.model, serving.gpu, 2, pools)
    return Ground(serving, shape, Limits(1.5, 0.06), process_of(60.0, 4000, 300, 0.3))


def scale(*, stage: str) -> ScaleView:
    """Its ratio and numbers, before anything was decided about it."""
    units, prefill = KnobView("units", 2, 2, None, 1, 4), KnobView("prefill", 2, 1, 3, 1, 4, "oncall-a", ago(minutes=9))
    return ScaleView(stage, "auto", "2P1D", "", (units, prefill, KnobView("decode", 1, 1, 1, 1, 1)), "", None)


def patch_all(patch: Callable[[str, object], object]) -> None:
    """Put the samples where the pages read; `patch` is `monkeypatch.setattr`."""

    def one_stage(*, stage: str) -> StageView:
        found = next((view for view in (*stages(), broken_stage()) if view.stage == stage), None)
        if found is None:
            raise NotFoundError(f"There is no stage {stage}.")
        return found

    def one_head(*, stage: str) -> StageHead:
        one_stage(stage=stage)
        return next(head for head in heads(broken=True) if head.stage == stage)

    pages = "frontend.pages"
    patch(f"{pages}.whatif.sizing_ground", ground)
    for module in ("whatif", "scale"):
        patch(f"{pages}.{module}.scale_view", scale)
    for module in ("events", "releases"):
        patch(f"{pages}.{module}.stage_keys", lambda: [view.stage for view in stages()])
    for module in ("overview", "releases"):
        patch(f"{pages}.{module}.stage_heads", lambda model="", simulated=None: heads(model))
    patch(f"{pages}.fleets.stage_bases", lambda: bases(heads()))
    patch(f"{pages}.fleets.unit_releases", lambda: {head.stage: {unit.unit: unit.release for unit in head.units} for head in heads()})
    for module in ("stage", "actions"):
        patch(f"{pages}.{module}.stage_view", one_stage)
    patch("fleets.api.access.fleet_maps", lambda names: fleets())
    for module in ("stage", "logs"):
        patch(f"{pages}.{module}.units_view", lambda *, stage, now: one_stage(stage=stage).units)
    patch(f"{pages}.overview.fleet_heads", fleet_heads)
    patch(f"{pages}.overview.glances_view", lambda now: glances())
    patch("frontend.stagecharts.frames_view", frames)
    patch(f"{pages}.stage.drawn_head", one_head)
    patch(f"{pages}.stage.metrics_view", metrics)
    for module in ("pages.overview", "pages.events", "stagecharts"):
        patch(f"frontend.{module}.events_view", lambda **_: events())
    page_rollouts.patch_all(patch, stages(), one_stage, events())
    patch(f"{pages}.releases.releases_view", lambda *, model, **_: releases(model))
    patch(f"{pages}.releases.releases_newest", lambda *, models, limit: {model: releases(model)[:limit] for model in models})
    patch(f"{pages}.releases.release_view", lambda *, model, number: release(number, model))
    patch(f"{pages}.releases.dry_run_view", lambda **_: dry_run(errors=False))


def patch_later(patch: Callable[[str, object], object]) -> None:
    """The same evening a little later: some of each list are gone from its middle, and a stage has moved on."""
    pages = "frontend.pages"
    left = tuple(view for index, view in enumerate(stages()) if index != 1)
    moved = replace(left[0], state="steady", sentence="release 8 serves on 2 units", rollout=None)
    keys = {view.stage for view in left}
    later = tuple(head for head in heads() if head.stage in keys)
    calm = (replace(later[0], state="steady", sentence=moved.sentence, rollout=None), *later[1:])
    for module in ("overview", "releases"):
        patch(f"{pages}.{module}.stage_heads", lambda model="", simulated=None: tuple(head for head in calm if model in ("", head.model)))
    patch(f"{pages}.fleets.stage_bases", lambda: bases(calm))
    for module in ("events", "releases"):
        patch(f"{pages}.{module}.stage_keys", lambda: [view.stage for view in left])
    patch(f"{pages}.stage.stage_view", lambda *, stage: next(view for view in stages() if view.stage == "kimi-k2/prod-us"))
    patch("fleets.api.access.fleet_maps", lambda names: fleets()[:1])
    for module in ("pages.overview", "pages.events"):
        patch(f"frontend.{module}.events_view", lambda **_: (*events()[:2], *events()[4:]))
    patch(f"{pages}.releases.releases_newest", lambda *, models, limit: {model: releases(model)[1:] for model in models})
    page_rollouts.patch_later(patch, events())
