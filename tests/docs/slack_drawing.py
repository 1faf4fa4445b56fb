"""A message of Block Kit as HTML: near enough to Slack's look to be read, and labelled for what it is in the docs."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

_DOTS = {"🔴": "#d1242f", "🟡": "#d4a72c", "🔵": "#2f6fde"}  # no font for emoji is needed
_HEAD = f'<!doctype html><meta charset="utf-8"><style>{Path(__file__).with_name("slack.css").read_text(encoding="utf-8")}</style>'


def _text(text: Mapping[str, Any] | str) -> str:
    if not isinstance(text, str) and text["type"] == "mrkdwn":  # of markup there are links alone
        return f"<u>{escape(text['text'].partition('|')[2].rstrip('>'))}</u>"
    words = escape(str(text if isinstance(text, str) else text["text"]))
    for sign, colour in _DOTS.items():
        words = words.replace(sign, f'<span class="d" style="background:{colour}"></span>')
    return words


def _block(block: Mapping[str, Any]) -> str:
    if block["type"] == "section":
        return f"<div>{_text(block['text'])}</div>"
    if block["type"] == "context":
        return '<div class="c">' + "".join(f"<span>{_text(element)}</span>" for element in block["elements"]) + "</div>"
    buttons = [f'<span class="k {element.get("style", "")}">{_text(element["text"])}</span>' for element in block["elements"]]
    return f'<div class="r">{"".join(buttons)}</div>'


def _dialog(confirm: Mapping[str, Any]) -> str:
    buttons = f'<span class="k">{_text(confirm["deny"])}</span><span class="k primary">{_text(confirm["confirm"])}</span>'
    return f'<div class="x"><h1>{_text(confirm["title"])}</h1>{_text(confirm["text"])}<div class="r">{buttons}</div></div>'


def html(payload: Mapping[str, Any]) -> str:
    """A page with `#m`, the message or the confirm dialog."""
    if "confirm" in payload:
        return f'{_HEAD}<div id="m">{_dialog(payload["confirm"])}</div>'
    aside = {"ephemeral": "Only visible to you"}.get(payload.get("response_type", ""), "")
    aside = aside or ("Also sent to the channel" if payload.get("reply_broadcast") else "In the thread" if payload.get("thread_ts") else "")
    shown = "".join(map(_block, payload["blocks"])) if "blocks" in payload else _text(payload["text"])
    head = f'<div><span class="n">denv</span><span class="g">APP</span><span class="t">{aside}</span></div>'
    return f'{_HEAD}<div id="m"><div class="a">d</div><div class="b">{head}{shown}</div></div>'
