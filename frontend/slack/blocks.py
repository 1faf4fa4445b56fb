"""Messages as Block Kit. What others wrote goes into plain text, where Slack makes no mention and no link of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from releases.domain.views import RolloutView

Block = dict[str, Any]
TEXT_MAX = 3000  # Slack's limit of a section
_LABELS = {"approve": "Approve", "promote": "Promote", "pause": "Pause", "resume": "Resume", "rollback": "Roll back"}
_STYLES = {"approve": "primary", "resume": "primary", "rollback": "danger"}
_SIGNS = {"bad": "🔴 Bad:", "warn": "🟡 Look:", "info": "🔵"}  # not by colour alone


@dataclass(frozen=True, slots=True)
class Button:
    """What a button stands for: a rollout as somebody saw it. The nonce is shared by all buttons of a message."""

    rollout: str
    generation: int
    nonce: str

    def value(self) -> str:
        """As Slack carries it."""
        return json.dumps({"rollout": self.rollout, "generation": self.generation, "nonce": self.nonce})


def parse_button(value: str) -> Button | None:
    """The opposite; None when it is none of ours."""
    try:
        data = json.loads(value)
        return Button(str(data["rollout"]), int(data["generation"]), str(data["nonce"]))
    except (ValueError, KeyError, TypeError):
        return None


def plain(text: str, most: int = TEXT_MAX) -> dict[str, Any]:
    """A text object."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return {"type": "plain_text", "text": cut or " ", "emoji": False}


def section(text: str) -> Block:
    """A paragraph."""
    return {"type": "section", "text": plain(text)}


def context(*texts: str) -> Block:
    """Small print."""
    return {"type": "context", "elements": [plain(text, 300) for text in texts if text][:10]}


def link(url: str, text: str) -> dict[str, Any]:
    """A link for small print. Slack reads this text as markup, so neither part may hold what others wrote."""
    return {"type": "mrkdwn", "text": f"<{url}|{text}>", "verbatim": True}


def verbs_for(rollout: RolloutView | None) -> tuple[str, ...]:
    """What can be done to a rollout as it stands."""
    if rollout is None or not rollout.active or rollout.state in {"rolling-back", "rollback-blocked"}:
        return ()
    if rollout.state == "held":
        forward = {"approval": ("approve",), "manual": ("resume",)}.get(rollout.reason, ("promote",))
        return (*forward, "rollback")
    return ("pause", "rollback")


def actions(verbs: Sequence[str], button: Button) -> Block:
    """A row of buttons. Each asks first: a thumb on a telephone is no decision."""
    elements = []
    for verb in verbs:
        element: dict[str, Any] = {"type": "button", "action_id": f"denv:{verb}", "text": plain(_LABELS[verb]), "value": button.value()}
        if verb in _STYLES:
            element["style"] = _STYLES[verb]
        if verb != "pause":
            element["confirm"] = {
                "title": plain(f"{_LABELS[verb]}?"),
                "text": plain("It begins at once."),
                "confirm": plain("Yes"),
                "deny": plain("No"),
            }
        elements.append(element)
    return {"type": "actions", "elements": elements}


def notice(
    *, level: str, sentence: str, details: Sequence[str], verbs: Sequence[str], button: Button | None, page: str = ""
) -> list[Block]:
    """A notice: what happened, where, what can be done about it, and the page that says more."""
    head = section(f"{_SIGNS.get(level, _SIGNS['info'])} {sentence}")
    small = context(*details)
    if page:
        small["elements"].append(link(page, "its page"))
    blocks = [head, small] if small["elements"] else [head]
    return [*blocks, actions(verbs, button)] if verbs and button else blocks
