"""What denv answers to commands and clicks, as Slack takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontend.slack import blocks
from releases.domain.views import RolloutView

HELP = "/denv status [MODEL/STAGE], or /denv rollback|pause|resume|promote|approve MODEL/STAGE [why]; /denv unlink forgets you."
BUSY = "Not done: the database is busy with this stage. Nothing was changed; try again."
_DONE = {"promote": "promoted", "approve": "approved", "pause": "paused", "resume": "resumed", "rollback": "asked to roll back"}
FORGOTTEN = "Forgotten: this Slack account is linked to nobody here any more."


def only_you(text: str) -> dict[str, Any]:
    """Shown to whoever asked and to nobody else."""
    return {"response_type": "ephemeral", "replace_original": False, "text": text[: blocks.TEXT_MAX], "mrkdwn": False}


def to_all(sentence: str, why: str) -> dict[str, Any]:
    """What a command did, for everybody in the channel; `why` says what the rollout waits for now."""
    shown = [blocks.section(sentence), *([blocks.context(why)] if why else [])]  # small print without words is no block to Slack
    return {"response_type": "in_channel", "text": sentence, "blocks": shown}


def in_place(shown: Sequence[blocks.Block], sentence: str) -> dict[str, Any]:
    """What a click did, in place of the message that had the button: its buttons are gone, and it says by whom."""
    spent = [*(block for block in shown if block.get("type") != "actions"), blocks.context(sentence)]
    return {"replace_original": True, "text": sentence, "blocks": spent}


def done_words(actor: str, verb: str, stage: str, reason: str) -> str:
    """`ann approved ds-flash/prod-us: looks good`."""
    return f"{actor} {_DONE[verb]} {stage}" + (f": {reason}" if reason else "")


def refused(detail: str, now: str = "") -> str:
    """Why something was not done, and how the rollout stands instead."""
    return f"Not done: {detail}\n{now}".strip()


def stranger(url: str) -> str:
    """To somebody whom nobody here knows: the link that changes that."""
    return f"I do not know who you are here. Open this within ten minutes, logged in to denv: {url}"


def now_words(view: RolloutView) -> str:
    """How the rollout stands, for whoever acted on an older view of it."""
    return f"Now: {view.stage} {view.state} (generation {view.generation}): {view.why}"
