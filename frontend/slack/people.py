"""Who somebody in Slack is here: linked once, by a signed link that they open while logged in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core import signing
from django.db import transaction
from django.urls import reverse

from denvweb.core.errors import InvalidError, NotFoundError
from denvweb.core.ids import random_id
from frontend.models import SlackUser
from frontend.slack.app import use_once
from metrics.services import event_append

_SALT = "denv.slack.link"
LINK_GOOD_FOR_S = 600


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody in Slack."""

    team: str
    user: str  # `U0123456789`
    name: str = ""

    @property
    def words(self) -> str:
        """For the journal."""
        return f"Slack user {self.user}" + (f" ({self.name})" if self.name else "")


def account_of(caller: Caller) -> User | None:
    """The person here, if linked and active."""
    row = SlackUser.objects.select_related("account").filter(team=caller.team, user=caller.user, account__is_active=True).first()
    return row.account if row else None


def link_url(caller: Caller) -> str:
    """A link that is good once, for ten minutes."""
    token = signing.dumps({"team": caller.team, "user": caller.user, "name": caller.name, "nonce": random_id("n", 16)}, salt=_SALT)
    return f"{settings.PUBLIC_URL}{reverse('slack-link')}?t={token}"


def link_read(token: str) -> tuple[Caller, str]:
    """Who the link is for, and its nonce. InvalidError when it is too old or not ours."""
    try:
        data: dict[str, Any] = signing.loads(token, salt=_SALT, max_age=LINK_GOOD_FOR_S)
    except signing.BadSignature:  # a signature that is too old is one too
        raise InvalidError("This link is too old, or not whole. Ask for a new one in Slack with `/denv status`.", code="link-bad") from None
    return Caller(str(data["team"]), str(data["user"]), str(data["name"])), str(data["nonce"])


def link_redeem(token: str, *, account: User) -> Caller:
    """From now on the Slack user is this person. UsedError the second time."""
    caller, nonce = link_read(token)
    with transaction.atomic():
        use_once("link", nonce)
        SlackUser.objects.update_or_create(team=caller.team, user=caller.user, defaults={"account": account})
        sentence = f"{account.get_username()} linked {caller.words}, who now acts with the same roles"
        event_append(kind="slack.linked", sentence=sentence, actor=account.get_username(), via="ui")
    return caller


def unlink(caller: Caller, *, account: User, via: str) -> None:
    """The Slack user is nobody here any more."""
    with transaction.atomic():
        if not SlackUser.objects.filter(team=caller.team, user=caller.user, account=account).delete()[0]:
            raise NotFoundError("This Slack account is not linked.")
        sentence = f"{account.get_username()} unlinked {caller.words}"
        event_append(kind="slack.unlinked", sentence=sentence, actor=account.get_username(), via=via)
