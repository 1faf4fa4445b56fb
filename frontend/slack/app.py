"""The installation's Slack app: its settings, and things that are good for once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from denvweb.core.errors import ConflictError, UnavailableError
from denvweb.secrets import seal, unseal
from frontend.models import SlackApp, SlackSeen
from frontend.slack.signature import SEEN_FOR_S
from metrics.services import event_append

if TYPE_CHECKING:
    from slack_sdk import WebClient

CALL_TIMEOUT_S = 5
_NONCES_KEPT = timedelta(days=30)


class UsedError(ConflictError):
    """It is good for once, and was used."""

    code = "used"


@dataclass(frozen=True, slots=True)
class SlackConfig:
    """The app with its secrets in the clear; never stored, never logged."""

    team: str
    bot_token: str
    signing_secret: str
    app_token: str

    def client(self) -> WebClient:
        """A client that tries once: the outbox decides about more."""
        from slack_sdk import WebClient  # 4 MB, for those only who have Slack

        return WebClient(token=self.bot_token, base_url=settings.SLACK_API_URL, timeout=CALL_TIMEOUT_S, retry_handlers=[])


def slack_config() -> SlackConfig:
    """UnavailableError `slack-not-set-up` when there is no app."""
    row = SlackApp.objects.order_by("-updated_at").first()
    if row is None:
        raise UnavailableError("Slack is not set up here; an administrator does it under Settings.", code="slack-not-set-up")
    token, secret, app = (unseal(text) if text else "" for text in (row.bot_token, row.signing_secret, row.app_token))
    return SlackConfig(row.team, token, secret, app)


def slack_app_set(*, team: str, bot_token: str, signing_secret: str, app_token: str = "", actor: str, via: str) -> None:
    """Set or change the app; an empty secret leaves the one that is there."""
    with transaction.atomic():
        row = SlackApp.objects.select_for_update().filter(team=team).first() or SlackApp(team=team)
        for name, text in (("bot_token", bot_token), ("signing_secret", signing_secret), ("app_token", app_token)):
            if text:
                setattr(row, name, seal(text))
        row.updated_by = actor
        row.save()
        SlackApp.objects.exclude(pk=row.pk).delete()
        event_append(kind="slack.set", sentence=f"{actor} set up Slack for team {team}", actor=actor, via=via)


def use_once(what: str, *parts: str) -> None:
    """Note a thing down as used, within the caller's transaction; UsedError when it was. Two at once: the second waits, and is refused."""
    digest = hashlib.sha256("\x1f".join((what, *parts)).encode()).hexdigest()
    try:
        with transaction.atomic():
            SlackSeen.objects.create(digest=digest)
    except IntegrityError:
        raise UsedError(f"This {what} was used before.") from None


def slack_prune() -> None:
    """Forget what can no longer be used again: signatures after ten minutes would do, nonces after a month."""
    SlackSeen.objects.filter(at__lt=timezone.now() - max(_NONCES_KEPT, timedelta(seconds=SEEN_FOR_S))).delete()
