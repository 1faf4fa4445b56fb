"""Answers to clicks, sent after the click was acknowledged; Slack takes five within half an hour, and nobody waits longer."""

from __future__ import annotations

import http.client
import logging
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from denvweb.core.backoff import Backoff
from frontend.models import SlackReply
from frontend.sending import retry_after_s
from frontend.slack.app import CALL_TIMEOUT_S

log = logging.getLogger(__name__)

_GOOD_FOR = timedelta(minutes=30)
_MOST_TRIES = 5
_BACKOFF = Backoff(first_s=1, cap_s=60)
_SENDING = timedelta(seconds=30)


def replies_send() -> int:
    """Send what is due; how many arrived."""
    SlackReply.objects.filter(created_at__lt=timezone.now() - _GOOD_FOR).delete()
    SlackReply.objects.filter(tries__gte=_MOST_TRIES, next_at__lte=timezone.now()).delete()
    arrived = 0
    while (row := _claim()) is not None:
        wait_s = _send(row)
        if wait_s is None:
            row.delete()
            arrived += 1
        else:
            SlackReply.objects.filter(pk=row.pk, tries=row.tries).update(next_at=timezone.now() + timedelta(seconds=wait_s))
    return arrived


def _claim() -> SlackReply | None:
    with transaction.atomic():
        due = SlackReply.objects.select_for_update(skip_locked=True).filter(next_at__lte=timezone.now(), tries__lt=_MOST_TRIES)
        row = due.order_by("pk").first()
        if row is not None:
            SlackReply.objects.filter(pk=row.pk).update(tries=F("tries") + 1, next_at=timezone.now() + _SENDING)
            row.tries += 1
        return row


def _send(row: SlackReply) -> float | None:
    """None when it was taken, else the seconds until the next try."""
    from slack_sdk import WebhookClient

    try:
        answer = WebhookClient(row.url, timeout=CALL_TIMEOUT_S, retry_handlers=[]).send_dict(row.payload)
    except (OSError, http.client.HTTPException) as error:
        log.warning("an answer to a click did not arrive: %s", error)
        return _BACKOFF.delay_s(row.tries, lambda: 1.0)
    if answer.status_code == 200:
        return None
    log.warning("Slack did not take an answer to a click: %d %s", answer.status_code, answer.body[:200])
    after = retry_after_s({name.lower(): value for name, value in answer.headers.items()}.get("retry-after"), now=datetime.now(UTC))
    return after if after is not None else _BACKOFF.delay_s(row.tries, lambda: 1.0)
