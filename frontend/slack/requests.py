"""A request of Slack, whichever way it came: done and committed first, then answered."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from denvweb.core.errors import ConflictError, DenvError
from denvweb.wake import wake
from frontend.models import SlackReply
from frontend.slack import acts, answers, blocks
from frontend.slack.answers import only_you
from frontend.slack.app import use_once
from frontend.slack.people import Caller, unlink
from releases.selectors.rollouts import rollout_view
from releases.services.access import access_rollout

log = logging.getLogger(__name__)

LOCK_WAIT = "1s"  # with the first look at the rollout afterwards, well within the three seconds that Slack waits


def command(data: Mapping[str, str], *, seen: str) -> dict[str, Any]:
    """A slash command's answer. `seen` is what makes the request itself, such as its signature: good once."""
    caller = Caller(data.get("team_id", "")[:20], data.get("user_id", "")[:20], data.get("user_name", "")[:60])
    text = data.get("text", "").strip()
    try:
        with transaction.atomic():
            _hurry()
            use_once("request", seen)
            return _command(caller, text)
    except OperationalError as error:
        return _busy(error)


def _command(caller: Caller, text: str) -> dict[str, Any]:
    try:
        user = acts.person_of(caller, f"/denv {text}"[:300])
        verb, _, rest = text.partition(" ")
        if verb.lower() in {"", "help"}:
            return only_you(answers.HELP)
        if verb.lower() == "status":
            return only_you(acts.status_text(user, rest.strip().strip("`")))
        if verb.lower() == "unlink":
            unlink(caller, account=user, via="slack")
            return only_you(answers.FORGOTTEN)
        done = acts.fulfil(user, acts.parse_command(text))
    except DenvError as error:
        return only_you(answers.refused(error.detail) if error.code != "slack-unlinked" else error.detail)
    return answers.to_all(done.sentence, done.rollout.why)


def click(payload: Mapping[str, Any], *, seen: str) -> None:
    """A button. The answer goes to the message's own address, once this is committed."""
    user = payload.get("user") or {}
    caller = Caller(str((payload.get("team") or {}).get("id", ""))[:20], str(user.get("id", ""))[:20], str(user.get("username", ""))[:60])
    url = str(payload.get("response_url", ""))
    message = payload.get("message") or {}
    try:
        with transaction.atomic():
            _hurry()
            use_once("request", seen)
            for action in payload.get("actions") or ():
                _reply_later(url, _click(caller, action, message.get("blocks") or []))
    except OperationalError as error:
        _reply_later(url, _busy(error))


def _click(caller: Caller, action: Mapping[str, Any], shown: list[blocks.Block]) -> dict[str, Any]:
    verb, button = str(action.get("action_id", "")).removeprefix("denv:"), blocks.parse_button(str(action.get("value", "")))
    if verb not in acts.VERBS or button is None:
        return only_you(answers.refused("this button is none of this version's."))
    try:
        user = acts.person_of(caller, f"the button {verb} of rollout {button.rollout}"[:300])
        done = acts.press(user, verb, button)
    except acts.UnlinkedError as error:
        return only_you(error.detail)
    except ConflictError as error:
        return only_you(answers.refused(error.detail, _present(user, button.rollout)))
    except DenvError as error:
        return only_you(answers.refused(error.detail))
    return answers.in_place(shown, done.sentence)


def _present(user: User, rollout: str) -> str:
    """How the rollout stands, for whoever acted on an older view of it and may see it."""
    try:
        view = access_rollout(user, rollout_view(id=rollout))
    except DenvError:
        return ""
    return answers.now_words(view)


def _hurry() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")


def _busy(error: OperationalError) -> dict[str, Any]:
    log.warning("a request from Slack was not done: %s", error)
    return only_you(answers.BUSY)


def is_slacks(url: str) -> bool:
    """Whether an address that came with a request is Slack's own host: it names where an answer goes."""
    wanted, given = urlsplit(settings.SLACK_HOOKS_URL), urlsplit(url)
    return (given.scheme, given.netloc) == (wanted.scheme, wanted.netloc)


def _reply_later(url: str, payload: dict[str, Any]) -> None:
    if not is_slacks(url):
        log.warning("a click came with a response_url that is not Slack's; it is not answered")
        return
    SlackReply.objects.create(url=url, payload=payload, next_at=timezone.now())
    wake("frontend.deliver")
