"""Delivers notices until none is due. One thread a process, beside the worker's own: a slow receiver holds up nobody else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from django.db import close_old_connections
from django.utils import timezone

from denvweb.core.errors import DenvError
from frontend.sending import DeliveryError
from frontend.slack.app import slack_prune
from frontend.slack.notices import slack_send
from frontend.slack.replies import replies_send
from frontend.webhooks import webhook_send
from metrics.services import Notice, outbox_claim, outbox_failed, outbox_sent

log = logging.getLogger(__name__)

_SENDERS: Mapping[str, Callable[[Notice], None]] = {"webhook": webhook_send, "slack": slack_send}
_busy = threading.Lock()


def deliver_soon() -> threading.Thread | None:
    """Begin to deliver in a thread of its own, unless one is at it already; what it misses, the next beat finds."""
    if not _busy.acquire(blocking=False):
        return None
    thread = threading.Thread(target=_run, name="deliver", daemon=True)
    thread.start()
    return thread


def _run() -> None:
    try:
        replies_send()
        deliver()
        replies_send()
        slack_prune()
    finally:
        _busy.release()
        close_old_connections()


def deliver() -> int:
    """Send all that is due; how many arrived."""
    arrived = 0
    while (notice := outbox_claim(now=timezone.now())) is not None:
        arrived += _one(notice)
    return arrived


def _one(notice: Notice) -> bool:
    try:
        _SENDERS[notice.kind](notice)
    except DeliveryError as error:
        log.warning("notice of event %d to %s did not arrive: %s", notice.event.seq, notice.kind, error.detail)
        outbox_failed(notice, error=error.detail, retry_after_s=error.retry_after_s, hopeless=error.hopeless)
        return False
    except DenvError as error:  # a secret that cannot be read, a Slack that was never set up
        outbox_failed(notice, error=error.detail)
        return False
    outbox_sent(notice)
    return True
