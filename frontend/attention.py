"""What needs a person, what moves by itself, and the sentence at the top of the overview."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fleets.domain.views import FleetHead, FleetMap
from frontend import words
from frontend.words import Badge, StageLook
from releases.domain.views import PlanStepView, RolloutView

_HURT = {"rolling-back", "blocked"}  # states in which users are, or were until just now, hurt
_WAITS = {"held", "blocked", "degraded"}
_MOVES = {"rolling", "baking", "rolling-back"}


@dataclass(frozen=True, slots=True)
class Item:
    """A row of one of the two lists. `stage` or `fleet` says where its link goes."""

    badge: Badge
    title: str
    sentence: str
    stage: str = ""
    fleet: str = ""
    rollout: str = ""  # its page says more
    action: str = ""  # the button that ends the wait: `promote`, `resume` or none
    action_text: str = ""
    generation: int | None = None
    steps: tuple[PlanStepView, ...] = ()
    step_text: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`bad` is said first and in red; `rest` follows."""

    bad: str
    rest: str
    stage: str = ""  # the only one that `bad` is about


def _journey(rollout: RolloutView) -> str:
    if rollout.kind == "rollback":
        return f"back to release {rollout.to_release}"
    if rollout.state in {"rolling-back", "rollback-blocked"} and rollout.from_release is not None:
        return f"back to release {rollout.from_release}"
    start = f"{rollout.from_release} → " if rollout.from_release is not None else "release "
    return f"{start}{rollout.to_release}"


def _held_item(stage: StageLook, badge: Badge) -> Item:
    rollout = stage.rollout
    if rollout is None or not rollout.active:
        return Item(badge, badge.text.lower(), stage.sentence, stage=stage.stage)
    action, text = ("promote", "Approve") if rollout.reason == "approval" else ("resume", "Resume")
    if stage.state == "blocked":
        action, text = "", ""
    return Item(
        badge,
        f"{_journey(rollout)}: {badge.text.lower()}",
        rollout.why or stage.sentence,
        stage=stage.stage,
        rollout=rollout.id,
        action=action,
        action_text=text,
        generation=rollout.generation,
        since=rollout.started_at,
    )


def needs_person(stages: Sequence[StageLook], fleets: Sequence[FleetHead | FleetMap]) -> list[Item]:
    """Whatever waits for somebody: frozen fleets, broken alarms, held rollouts, blocked rollbacks, stages short of units."""
    frozen = [
        Item(
            Badge("warn", "lost", "Frozen"),
            f"{words.plural(fleet.nodes_silent, 'node')} of {fleet.nodes} silent",
            fleet.frozen,
            fleet=fleet.fleet,
        )
        for fleet in fleets
        if fleet.frozen
    ]
    broken = [
        Item(Badge("bad", "bad", "Alarm"), f"{breach.alarm} is over its limit", breach.sentence, stage=stage.stage, since=breach.since)
        for stage in stages
        for breach in stage.breaches
    ]
    return frozen + broken + [_held_item(stage, words.stage_badge(stage)) for stage in stages if stage.state in _WAITS]


def moving(stages: Sequence[StageLook]) -> list[Item]:
    """What goes on by itself, with how far it is."""
    items = []
    for stage in stages:
        rollout = stage.rollout
        if stage.state not in _MOVES or rollout is None:
            continue
        at = f"step {rollout.step_index + 1} of {rollout.step_count}" if rollout.step_count else ""
        items.append(
            Item(
                words.stage_badge(stage),
                _journey(rollout),
                rollout.why or stage.sentence,
                stage=stage.stage,
                rollout=rollout.id,
                steps=rollout.plan.steps,
                step_text=at,
                since=rollout.started_at,
            )
        )
    return items


def _bad_sentence(stages: Sequence[StageLook]) -> str:
    if len(stages) > 1:
        return f"{words.plural(len(stages), 'stage')} in trouble: {', '.join(stage.stage for stage in stages)}."
    stage = stages[0]
    if stage.state == "blocked":
        return f"{stage.stage}: the rollback is blocked."
    if stage.breaches:
        return f"{stage.stage} breaks its limit on {' and '.join(breach.alarm for breach in stage.breaches)}."
    breached = stage.rollout is not None and any(verdict.tripped for verdict in stage.rollout.verdicts)
    return f"{stage.stage} breached and is rolling back." if breached else f"{stage.stage} is rolling back."


def verdict(stages: Sequence[StageLook], needs: Sequence[Item], moves: Sequence[Item]) -> Verdict:
    """The page in one sentence."""
    if not stages:
        return Verdict("", "Nothing is released yet")
    hurt = [stage for stage in stages if stage.state in _HURT or stage.breaches]
    waiting = [item for item in needs if not item.stage or item.stage not in {stage.stage for stage in hurt}]
    rest = f"{words.plural(len(waiting), 'thing waits', 'things wait')} for a person." if waiting else ""
    if hurt:
        more = rest.replace("thing ", "more thing ").replace("things ", "more things ") if rest else ""
        return Verdict(_bad_sentence(hurt), more, hurt[0].stage if len(hurt) == 1 else "")
    if rest:
        return Verdict("", rest)
    if moves:
        return Verdict(
            "",
            f"Nothing needs a person. {words.plural(len(moves), 'stage moves', 'stages move')} by itself.".replace(
                "stages move by itself", "stages move by themselves"
            ),
        )
    empty = all(stage.state == "empty" for stage in stages)
    return Verdict("", "Nothing runs yet" if empty else "Everything is steady")
