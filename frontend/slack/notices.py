"""Notices into Slack: one thread a rollout, with the buttons that fit the rollout as it stands when the message is sent."""

from __future__ import annotations

import http.client
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.urls import reverse

from denvweb.core.errors import NotFoundError
from denvweb.core.ids import random_id
from frontend.models import SlackThread
from frontend.sending import DeliveryError, retry_after_s
from frontend.slack import blocks
from frontend.slack.app import slack_config
from metrics.domain.views import EventView
from metrics.services import Notice
from releases.domain.views import RolloutView
from releases.selectors.rollouts import rollout_view

if TYPE_CHECKING:
    from slack_sdk.errors import SlackApiError

# Trying again would say the same; all else (a token that was revoked, a bot not yet invited) somebody may mend meanwhile.
_HOPELESS = {"invalid_blocks", "invalid_blocks_format", "channel_not_found", "is_archived", "msg_too_long", "no_text"}
_LOUD = {"rollout.rolling-back", "rollout.blocked"}  # shown in the channel too, though they answer in a thread


def slack_send(notice: Notice) -> None:
    """Post one notice; DeliveryError when Slack did not take it."""
    from slack_sdk.errors import SlackApiError, SlackClientError

    event = notice.event
    thread = SlackThread.objects.filter(rollout=event.rollout, channel=notice.channel).first() if event.rollout else None
    told = posting(
        event,
        _rollout(event.rollout),
        channel=notice.address,
        thread_ts=thread.ts if thread else "",
        nonce=random_id("b", 16),
        home=settings.PUBLIC_URL,
    )
    try:
        answer = slack_config().client().chat_postMessage(**told)
    except SlackApiError as error:
        raise _refused(error) from error
    except (SlackClientError, OSError, http.client.HTTPException) as error:
        raise DeliveryError(f"Slack did not answer: {type(error).__name__} {error}".strip()) from error
    if event.rollout and thread is None:
        SlackThread.objects.get_or_create(rollout=event.rollout, channel=notice.channel, defaults={"ts": str(answer["ts"])})


def posting(event: EventView, rollout: RolloutView | None, *, channel: str, thread_ts: str, nonce: str, home: str) -> dict[str, Any]:
    """What chat.postMessage is given for an event: its blocks, and in which thread it goes. All buttons of it share the nonce.

    `home` is where people reach the dashboard.
    """
    who = f"by {event.actor}" if event.actor != "system" else ""
    details = [event.stage, f"rollout {event.rollout}" if event.rollout else event.fleet, who, event.at.strftime("%Y-%m-%d %H:%M:%S UTC")]
    button = blocks.Button(rollout.id, rollout.generation, nonce) if rollout else None
    page = f"{home}{reverse('rollout', args=(rollout.id,))}" if rollout else ""
    verbs = blocks.verbs_for(rollout)
    shown = blocks.notice(level=event.level, sentence=event.sentence, details=details, verbs=verbs, button=button, page=page)
    told = {"channel": channel, "text": event.sentence[: blocks.TEXT_MAX], "blocks": shown, "unfurl_links": False}
    return told | ({"thread_ts": thread_ts, "reply_broadcast": event.kind in _LOUD} if thread_ts else {})


def _rollout(id: str) -> RolloutView | None:
    try:
        return rollout_view(id=id) if id else None
    except NotFoundError:
        return None


def _refused(error: SlackApiError) -> DeliveryError:
    headers = getattr(error.response, "headers", None) or {}
    after = next((value for name, value in headers.items() if name.lower() == "retry-after"), None)
    code = str(error.response.get("error", "")) if hasattr(error.response, "get") else str(error)
    return DeliveryError(f"Slack answered {code}", retry_after_s=retry_after_s(after, now=datetime.now(UTC)), hopeless=code in _HOPELESS)
