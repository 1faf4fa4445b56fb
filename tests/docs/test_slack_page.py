"""The page about Slack is what the code sends, all of it, and Slack would take it."""

from __future__ import annotations

import json
import re

from frontend.slack.acts import VERBS
from frontend.slack.blocks import parse_button
from metrics.services.notices import NOTICES
from tests.docs import slack_samples as samples
from tests.docs.slack_page import COMMANDS, PAGE, PICTURES, ROOT, page, pictured
from tests.integration.slack_fake import blocks_problem

HOWTO = (ROOT / "docs/howto/slack.md").read_text(encoding="utf-8")


def shown_in(text: str) -> set[str]:
    return set(re.findall(r"images/slack/([\w.-]+)", text))


def test_the_page_is_what_the_code_sends() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make slack-docs`"
    assert {path.name for path in PICTURES.iterdir()} == set(pictured()), "run `make slack-docs`"
    assert shown_in(HOWTO) <= set(pictured()), "a picture of the how-to is of a message that is another now"


def test_every_kind_of_notice_and_every_button_is_shown() -> None:
    shown = list(samples.notices())
    assert {event.kind for event, _ in shown} == NOTICES
    buttons = {
        element["action_id"].removeprefix("denv:")
        for _, sample in shown
        for block in sample.payload["blocks"]
        if block["type"] == "actions"
        for element in block["elements"]
    }
    assert buttons == set(VERBS)
    assert parse_button(samples.button()) is not None


def test_slack_would_take_all_of_it() -> None:
    for payload in pictured().values():
        assert blocks_problem(payload.get("blocks", [])) == ""
    for text in re.findall(r"```json\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        json.loads(text)


def test_every_command_is_named_on_both_pages() -> None:
    assert set(VERBS) | {"status", "unlink", "help"} == set(COMMANDS)
    assert [verb for verb in COMMANDS if f"/denv {verb}" not in HOWTO] == []
