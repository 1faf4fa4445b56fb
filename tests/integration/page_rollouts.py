"""The made-up evening's rollouts: those of the stages, those before them, and what they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from denvweb.core.errors import NotFoundError
from metrics.domain.views import AlarmVerdict, EventView
from releases.domain.views import ChangeView, DiffView, PlanStepView, RolloutView, StagePlanView, StageView
from tests.integration.page_figures import NOW, ago

TOLD = "n=1,204; highest evidence 2.1 : 1 (itl-p99), rolls back at 300 : 1."
PASSED = ("ttft-p99: 3 of 1,204 requests over 1,500 ms (0.25%, 0.05-0.73%), evidence 0.01 : 1, rolls back at 300 : 1; health proved",)


def plan(stage: str, old: int, new: int) -> StagePlanView:
    steps = (
        PlanStepView(0, "bring-up", "Bring up unit 2", "Beside the old one, in gb200-use1/d02.", "done", None,
                     ago(minutes=14), None, ago(minutes=6), PASSED),
        PlanStepView(1, "hold", "Canary 10%", TOLD, "now", 1000, ago(minutes=6), NOW + timedelta(minutes=4)),
        PlanStepView(2, "shift", "50%", "Hold 10 min.", weight_bp=5000),
        PlanStepView(3, "shift", "100%", "Hold 10 min. The old release stays warm.", weight_bp=10000),
        PlanStepView(4, "replace", "Replace unit 1", "About 11 min."),
        PlanStepView(5, "bake", "Bake", "30 min, alarms armed."),
    )  # fmt: skip
    return StagePlanView(
        stage, old, new, "decode only (draft length 2 -> 3)", True, 1.0, f"Release {old} stays warm until unit 1 is replaced.", steps
    )


def verdicts(tripped: bool = False) -> tuple[AlarmVerdict, ...]:
    ttft = AlarmVerdict("ttft-p99", "ttft", 1.5, 0.01, 1204, 9, 0.0075, 0.0034, 0.0141, 0.06, 300, False, 138, 20, True, 10836, 78)
    itl = AlarmVerdict(
        "itl-p99", "itl", 0.06, 0.01, 1204, 15.2, 0.0126, 0.0071, 0.0198, 1667 if tripped else 2.1, 300, tripped, 0.4, 20, False, 10811, 69
    )
    errors = AlarmVerdict(
        "error-rate", "error-rate", None, 0.01, 1204, 2, 0.0017, 0.0002, 0.006, 0.03, 300, False, 8.6e6, 20, True, 10836, 20
    )
    slower = replace(itl, alarm="itl-p99-over-baseline", limit_s=0.05, over=1.25, base_s=0.04, evidence=3.2, tripped=False, health=0)
    made = replace(ttft, alarm="ttft-p99 synthetic", n=120, k=1, rate=0.0083, rate_low=0.0002, rate_high=0.0456, synthetic=True)
    return ttft, itl, slower, errors, made


def rollout(
    stage: str, state: str, old: int, new: int, *, reason: str = "", why: str = "", active: bool = True, weight_bp: int = 1000
) -> RolloutView:
    return RolloutView(
        id=f"ro-{stage.replace('/', '-')}",
        stage=stage,
        kind="rollout",
        from_release=old,
        to_release=new,
        state=state,
        reason=reason,
        why=why or "Hold 6:00 of 10:00 min. Its ITL p99 is 62 ms, 2 over the limit; at 2.1 : 1 that may still be chance.",
        generation=4118,
        started_at=ago(minutes=14),
        started_by="deployer-b",
        ended_at=None if active else ago(minutes=1),
        step_index=1,
        step_count=6,
        weight_bp=weight_bp,
        plan=plan(stage, old, new),
        verdicts=verdicts(state == "rolling-back"),
        active=active,
        note="Draft length 2 → 3 on decode: lower ITL",
    )


def rollouts() -> tuple[RolloutView, ...]:
    """Of the stage's earlier days."""
    why = "itl-p99 tripped at 412 : 1, 40 s after 6 took 10%; all traffic is on release 5"
    good = rollout("ds-flash/prod-us", "succeeded", 6, 7, why="release 7 serves all with 2 units", active=False)
    return replace(good, id="ro-6"), replace(good, id="ro-5", state="rolled-back", from_release=5, to_release=6, why=why)


def diff() -> DiffView:
    """Of releases 7 and 8."""
    path = "release.engine.decode.speculative-draft-length"
    return DiffView("ds-flash", 8, 7, "decode only (draft length 2 -> 3)", (ChangeView(path, "2", "3"),), "")


def patch_all(
    patch: Callable[[str, object], object], stages: Sequence[StageView], one_stage: Callable[..., StageView], events: Sequence[EventView]
) -> None:
    """Put them where the pages read."""
    known = {view.rollout.id: view.rollout for view in stages if view.rollout}

    def one_rollout(*, id: str) -> RolloutView:
        if id not in known:
            raise NotFoundError(f"There is no rollout {id}.")
        return known[id]

    pages = "frontend.pages"
    patch(f"{pages}.rollout.rollout_view", one_rollout)
    patch(f"{pages}.rollout.stage_view", one_stage)
    patch(f"{pages}.rollout.events_view", lambda **_: events)
    for module in ("rollout", "releases"):
        patch(f"{pages}.{module}.diff_view", lambda **_: diff())
    for module in ("rollout", "releases"):
        patch(f"{pages}.{module}.rollouts_view", lambda **_: rollouts())


def patch_later(patch: Callable[[str, object], object], events: Sequence[EventView]) -> None:
    """A little later: the canary has passed, and an event is gone from the middle."""
    now = rollout("ds-flash/prod-us", "held", 7, 8, reason="approval", why="waits for a person", weight_bp=1000)
    passed = replace(now.plan.steps[1], state="done", ended_at=NOW, told=PASSED)
    steps = (now.plan.steps[0], passed, replace(now.plan.steps[2], state="now"), *now.plan.steps[3:])
    patch("frontend.pages.rollout.rollout_view", lambda **_: replace(now, plan=replace(now.plan, steps=steps)))
    patch("frontend.pages.rollout.events_view", lambda **_: (*events[:2], *events[3:]))
