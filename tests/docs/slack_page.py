"""docs/reference/slack.md, written from the code that sends to Slack: `page()` is what the file has to be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from denvweb.access import ALLOWED, Action
from frontend.slack.manifest import manifest
from tests.docs import slack_samples as samples
from tests.docs.slack_samples import Sample

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "slack.md"
PICTURES = ROOT / "docs" / "images" / "slack"
_WIDTH = 120  # characters of a line of JSON
URL = "https://denv.example.com"

# verb: how it is written, what happens, what one has to be allowed
COMMANDS: Mapping[str, tuple[str, str, Action | None]] = {
    "status": ("[MODEL/STAGE]", "all stages that you may see, a line each; or one, with what a rollback would do", Action.SEE),
    "rollback": ("MODEL/STAGE [why]", "all traffic goes back", Action.ROLL_BACK),
    "pause": ("MODEL/STAGE [why]", "holds the rollout; its alarms stay armed", Action.PAUSE),
    "resume": ("MODEL/STAGE [why]", "goes on after a pause", Action.PAUSE),
    "promote": ("MODEL/STAGE [why]", "ends the present watch", Action.PROMOTE),
    "approve": ("MODEL/STAGE [why]", "lets a rollout that waits for an approval go on", Action.APPROVE),
    "unlink": ("", "forgets who you are", None),
    "help": ("", "says how commands are written", None),
}

HEAD = """\
# What denv sends to Slack

<!-- Written by `make slack-docs` from the code that sends; tests/docs fails when this page is not what it writes. -->

Every message, with the JSON that Slack is given. [How to set Slack up](../howto/slack.md) is another page.
The pictures are drawn by denv from that JSON, in Chromium: they are **not screenshots of Slack**, which was not at hand.
Paste the `blocks` of a message into [Block Kit Builder](https://app.slack.com/block-kit-builder) to see what Slack makes of them.

What others wrote (reasons, names, an alarm's figures) is `plain_text`, in which Slack makes no mention and no link.
denv opens no modals: what asks before something happens is the `confirm` dialog of each button.

## Two ways in

| | HTTP | Socket Mode |
| --- | --- | --- |
| who calls whom | Slack calls denv | denv calls Slack: nothing of denv need be reached from outside |
| started by | nothing: the web program answers | `manage.py slack_socket`, once |
| who it is, is proved by | `v0` signature of the raw body, five minutes old at most | the connection, which takes an app token |
| a second time is refused by | the signature | the envelope's id |
| secrets | bot token, signing secret | bot token, app token |
| answers to commands | body of the response | payload of the acknowledgement |

Commands, buttons and messages are the same. The app's manifest (`manage.py slack_manifest`) differs:
"""

NOTICES = """\
## Notices

`chat.postMessage` for each event that people are told of, with the buttons that fit the rollout when the message is sent.
The first message of a rollout begins its thread; what cannot wait (`reply_broadcast`) is shown in the channel too.
"""

BUTTONS = """\
## Buttons

A button carries the rollout, its generation when it was drawn, and the message's nonce: one use of any button of the message.

```json
{value}
```

All but *Pause* ask first:

![Confirm dialog of a button]({picture})

```json
{confirm}
```
"""

REPLIES = """\
## Answers

A command is answered at once; a click through its `response_url`, after it was committed.
"""


def pretty(value: Any, indent: str = "") -> str:
    """JSON in few lines: what fits on a line is on one."""
    flat = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or len(indent) + len(flat) <= _WIDTH:
        return flat
    more = indent + "  "
    if isinstance(value, dict):
        rows = [f"{more}{json.dumps(key)}: {pretty(part, more)}" for key, part in value.items()]
    else:
        rows = [more + pretty(part, more) for part in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    return f"{left}\n" + ",\n".join(rows) + f"\n{indent}{right}"


def picture(name: str, payload: Any) -> str:
    """The file of a picture: another payload is another file, so that no picture outlives what it shows."""
    return f"{name}-{hashlib.sha256(json.dumps(payload).encode()).hexdigest()[:6]}.webp"


def confirm() -> dict[str, Any]:
    """The dialog of *Roll back*."""
    actions = samples.notice_of("rollout-started")["blocks"][-1]
    found: dict[str, Any] = next(element["confirm"] for element in actions["elements"] if "confirm" in element)
    return found


def pictured() -> dict[str, Any]:
    """What there is a picture of: file and payload."""
    shown = [*(sample for _, sample in samples.notices()), *samples.replies()]
    dialog = {"confirm": confirm()}
    return {picture(one.name, one.payload): one.payload for one in shown} | {picture("confirm", dialog): dialog}


def _message(title: str, sample: Sample) -> Iterator[str]:
    yield f"### {title}\n"
    yield f"![{title}](../images/slack/{picture(sample.name, sample.payload)})\n"
    yield f"<details><summary>JSON</summary>\n\n```json\n{pretty(sample.payload)}\n```\n\n</details>\n"


def _commands() -> str:
    rows = [f"| `{f'/denv {verb} {rest}'.strip()}` | {what} | {_roles(action)} |" for verb, (rest, what, action) in COMMANDS.items()]
    return "\n".join(["## Commands\n", "| write | what happens | roles |", "| --- | --- | --- |", *rows, ""])


def _roles(action: Action | None) -> str:
    return ", ".join(role for role, allowed in ALLOWED.items() if action in allowed) if action else "whoever is linked"


def _parts() -> Iterator[str]:
    yield HEAD
    for mode, made in (("HTTP", manifest(url=URL)), ("Socket Mode", manifest(url=URL, socket_mode=True))):
        yield f"<details><summary>Manifest for {mode}</summary>\n\n```json\n{json.dumps(made, indent=2)}\n```\n\n</details>\n"
    yield _commands()
    yield NOTICES
    for event, sample in samples.notices():
        yield from _message(f"{event.kind}: {sample.what[0].lower()}{sample.what[1:]}", sample)
    dialog = confirm()
    yield BUTTONS.format(
        value=samples.button(), confirm=pretty(dialog), picture=f"../images/slack/{picture('confirm', {'confirm': dialog})}"
    )
    yield REPLIES
    for sample in samples.replies():
        yield from _message(sample.what, sample)


def page() -> str:
    """The whole page."""
    return "\n".join(part for part in _parts() if part).rstrip() + "\n"
