"""Every message that denv sends to Slack, made by the code that sends it, for an evening with one bad release and one good one.

The sentences are what the reconcilers wrote into the journal of such an evening; all else comes from `frontend.slack`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fleets.domain.lease import guard_sentence
from frontend.slack import answers
from frontend.slack.blocks import Button
from frontend.slack.notices import posting
from metrics.domain.views import EventView
from releases.domain.views import RolloutView
from tests.integration import page_rollouts

STAGE, ROLLOUT, NONCE = "ds-flash/prod-us", "r-7kq2m9xw", "b-3f7s2k9qwm4x8d6e"
CHANNEL, THREAD = "C0123456789", "1796031842.000100"
HOME = "https://denv.example.com"
LINK = f"{HOME}/slack/link?t=eyJ0ZWFt..."
_BEGAN_AT = datetime(2026, 11, 30, 9, 44, 2, tzinfo=UTC)
_BROKEN = (
    "ttft-p99: 200 of 400 requests over 1,500 ms (50%, 44.99-55.01%), evidence over 1,000,000 : 1, rolls back at 300 : 1; "
    "against the baseline over 1,000,000 : 1"
)
_STEADY = (
    "breaks its limit: ttft-p99: 486 of 6,000 requests over 1,500 ms (8.1%, 7.42-8.82%) in 5:00 min, for 4:00 min without a break; "
    "evidence over 1,000,000 : 1, told at 34,560 : 1"
)

_NO_ROOM = "fleet gb200-use1 has no domain with 72 GPUs free; serving unit needs 72 (same-domain)"


@dataclass(frozen=True, slots=True)
class Sample:
    """One message: its name in the docs, what it is, and what Slack is given."""

    name: str
    what: str
    payload: dict[str, Any]


def rollout(state: str = "rolling", reason: str = "", why: str = "") -> RolloutView:
    """The rollout that all buttons here stand for."""
    view = page_rollouts.rollout(STAGE, state, 7, 8, reason=reason, why=why, active=state not in {"succeeded", "rolled-back"})
    return replace(view, id=ROLLOUT, generation=12)


# kind of the event, what it is, level, sentence, actor, the rollout as it stands when the message is sent
_OF_ROLLOUTS = (
    ("rollout.started", "A rollout begins; what follows goes into its thread", "info",
     f"release 8 rolls out to {STAGE}, from release 7", "system", rollout()),
    ("rollout.held", "It waits for an approval", "info",
     f"{STAGE} is held (approval): waits for a person to approve more than 10% on release 8", "system", rollout("held", "approval")),
    ("rollout.held", "A person paused it", "warn",
     f"{STAGE} is held (manual): ann paused it: for lunch; the alarms stay armed", "ann", rollout("held", "manual")),
    ("rollout.held", "It waits for more than a person's word", "warn",
     f"{STAGE} is held (insufficient_samples): ttft-p99 has n=61 of 100, health 3.2 : 1 of 20 : 1", "system",
     rollout("held", "insufficient_samples")),
    ("rollout.rolling-back", "An alarm takes it back", "bad", f"release 8 is taken back to release 7: {_BROKEN}", "system",
     rollout("rolling-back", "breach")),
    ("rollout.blocked", "The way back needs a person", "bad",
     f"the way back of {STAGE} needs a person (capacity): {_NO_ROOM}", "system",
     rollout("rollback-blocked", "capacity")),
    ("rollout.unblocked", "The way back goes on", "info",
     f"the way back of {STAGE} goes on: unit 2 of release 7 comes up in gb200-use1/d03", "system", rollout("rolling-back", "breach")),
    ("rollout.rolled-back", "It is back", "info",
     f"{STAGE} is back: release 7 has all traffic again, on units 1 and 2", "system", rollout("rolled-back")),
    ("rollout.succeeded", "It is through", "info", f"release 8 serves all of {STAGE} with 2 units", "system", rollout("succeeded")),
    ("rollout.break-glass", "Somebody goes on in spite of a freeze", "bad",
     f"ann broke the glass: release 8 goes on in {STAGE} in spite of freezes: the fix for last night", "ann", rollout()),
)  # fmt: skip
_OF_OTHERS = (
    ("alarm.breached", "A stage breaks its limit with no rollout under way", "bad", f"{STAGE} {_STEADY}", STAGE, ""),
    ("alarm.recovered", "It keeps its limit again", "info",
     f"{STAGE} keeps its limit again: ttft-p99, which it broke from 09:31:02 on", STAGE, ""),
    ("node.lost", "A node is lost", "bad",
     "node h200-use1-d03-n01 is lost: no report for 60 s; what ran there is replaced", "", "h200-use1"),
    ("fleet.frozen", "A fleet is frozen: too many nodes fell silent at once", "bad",
     guard_sentence(fleet="h200-use1", silent=2, nodes=4), "", "h200-use1"),
    ("fleet.thawed", "Its nodes are back", "info", "fleet h200-use1: its nodes report again, healing goes on", "", "h200-use1"),
)  # fmt: skip


def notices() -> Iterator[tuple[EventView, Sample]]:
    """A message for each kind of event that people are told of; those of a rollout from the second on are in its thread."""
    for index, (kind, what, level, sentence, actor, view) in enumerate(_OF_ROLLOUTS):
        at = _BEGAN_AT + timedelta(minutes=index)
        event = EventView(100 + index, at, kind, level, sentence, actor, "system", stage=STAGE, rollout=ROLLOUT, release="ds-flash@8")
        held = f"-{view.reason.replace('_', '-')}" if view.state == "held" else ""
        told = posting(event, view, channel=CHANNEL, thread_ts=THREAD if index else "", nonce=NONCE, home=HOME)
        yield event, Sample(kind.replace(".", "-") + held, what, told)
    for index, (kind, what, level, sentence, stage, fleet) in enumerate(_OF_OTHERS):
        at = _BEGAN_AT + timedelta(minutes=30 + index)
        event = EventView(200 + index, at, kind, level, sentence, "system", "system", stage=stage, fleet=fleet)
        yield event, Sample(kind.replace(".", "-"), what, posting(event, None, channel=CHANNEL, thread_ts="", nonce=NONCE, home=HOME))


def notice_of(name: str) -> dict[str, Any]:
    """The notice of that name."""
    return next(sample.payload for _, sample in notices() if sample.name == name)


def replies() -> tuple[Sample, ...]:
    """What commands and clicks are answered with."""
    view = rollout(why="hold 0:40 of 10:00 min; all alarms within their limits")
    moved = answers.now_words(rollout("held", "manual", "a person paused it; the alarms stay armed"))
    stale = "The rollout has moved on to generation 12 since 11: a person paused it; the alarms stay armed. Look again, then decide."
    done = answers.done_words("ann", "rollback", STAGE, "TTFT doubled")
    return (
        Sample("command-done", f"`/denv rollback {STAGE} TTFT doubled`: what was done is for everybody in the channel",
               answers.to_all(done, "the routers have to confirm")),
        Sample("click-done", "A click on *Approve*: the message is written anew, without buttons and with who it was",
               answers.in_place(notice_of("rollout-held-approval")["blocks"], answers.done_words("ann", "approve", STAGE, ""))),
        Sample("click-stale", "A click on *Approve* of a message that is older than the rollout",
               answers.only_you(answers.refused(stale, moved))),
        Sample("status", f"`/denv status {STAGE}`",
               answers.only_you(f"{STAGE}: {view.why}\nRelease 7 is warm on unit 1: all traffic in about 2 s, then unit 2 in about 20 s.")),
        Sample("stranger", "Somebody whose Slack account is linked to nobody", answers.only_you(answers.stranger(LINK))),
        Sample("refused", "Somebody without the role",
               answers.only_you(answers.refused("You may not roll back ds-flash; that takes the role operator or admin."))),
        Sample("help", "`/denv help`, and words that denv does not know", answers.only_you(answers.HELP)),
        Sample("busy", "The database is busy with that stage", answers.only_you(answers.BUSY)),
        Sample("unlinked", "`/denv unlink`", answers.only_you(answers.FORGOTTEN)),
    )  # fmt: skip


def button() -> str:
    """What a button carries."""
    return Button(ROLLOUT, 12, NONCE).value()
